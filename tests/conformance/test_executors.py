"""Real trainers whose environments run in other processes: the curve is that of threads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")

pytestmark = pytest.mark.slow

SETTINGS = ("training.iterations=4",)
NIGHTLY = pytest.mark.nightly


@pytest.fixture(scope="module")
def threads(run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference's run, with environments in threads."""
    folder = tmp_path_factory.mktemp("threads") / "run"
    return run("reference", folder, "guess-easy-greedy", *SETTINGS)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server of environments in a process of its own."""
    command = [sys.executable, "-m", "gem", "serve", "--port", "0", "--ids", "game:*"]
    with subprocess.Popen(
        [*command, "--allow-parameters"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://[\w.:]+", process.stdout.readline())
        assert found is not None
        yield found[0]
        process.terminate()


ELSEWHERE = [
    pytest.param(trainer, executor, marks=NIGHTLY)
    for trainer in ("verl", "openrlhf")
    for executor in ("process:2", "ray:2", "remote")
]


@pytest.mark.parametrize(
    ("trainer", "executor"),
    [
        ("reference", "process:2"),
        *ELSEWHERE,
        pytest.param("trl", "process:2", marks=NIGHTLY),
    ],
)
def test_where_environments_run_changes_no_result(
    trainer: str,
    executor: str,
    threads: Path,
    server: str,
    run: Callable[..., Path],
    compare: Callable[[Path, Path], list[Any]],
    tmp_path: Path,
) -> None:
    if executor == "remote":
        executor = f"remote:{server}"
    folder = run(trainer, tmp_path / "run", "guess-easy-greedy", *SETTINGS, executor=executor)
    about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert about["hardware"]["executor"] == executor
    findings = compare(threads, folder)
    assert not findings, "\n".join(map(str, findings[:20]))
