"""Real trainers on an agent program, a taskset of verifiers and a terminal task.

The audit says that the sampled tokens are those that were trained, with the updates that the
reference would have made of them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from boxes_attacks import write_task
from locks import one_at_a_time
from processes import settles

from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.audit import audit, judge, lines
from gem_bench.conformance_run import run_with_rows
from gem_bench.runspec import load_spec

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
VERIFIERS = ROOT / ".venvs" / "verifiers" / "bin" / "python"
SETTINGS = (
    *("training.iterations=2", "training.tasks=8", "training.group_size=2", "eval=[]"),
    *("optimizer.lr=1e-4", "policy.prompt_tokens=1024", "policy.response_tokens=512"),
    "policy.turn_tokens=32",
)


@pytest.fixture
def agent() -> dict[str, Any]:
    """A program that plays a game through its chat model."""
    program = ROOT / "tests" / "shared" / "agents" / "guess.py"
    return {"id": f"agent:{sys.executable} {program}"}


@pytest.fixture
def terminal(tmp_path: Path) -> dict[str, Any]:
    """A folder of Harbor, in this machine's own system."""
    write_task(tmp_path / "tasks" / "word", "host")
    return {"id": f"harbor:{tmp_path / 'tasks'}", "params": {"max_turns": 2}}


@pytest.fixture
def taskset() -> Iterator[dict[str, Any]]:
    """A taskset of verifiers, served from an environment that has verifiers."""
    if not VERIFIERS.exists():
        pytest.skip("needs verifiers: make env-verifiers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    toys = ROOT / "tests" / "verifiers" / "toys"
    command = [VERIFIERS, "-m", "gem", "serve", "--port", str(port), "--ids", "verifiers:toy_sums"]
    server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(toys)})

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return int(answer.status) == 200
        except OSError:
            return False

    try:
        assert settles(healthy)
        yield {"id": f"remote:http://127.0.0.1:{port}/verifiers:toy_sums"}
    finally:
        server.terminate()
        server.wait(60)


@pytest.mark.parametrize(
    ("world", "trainer"),
    [
        *((w, t) for t in ("reference", "trl") for w in ("agent", "terminal", "taskset")),
        *((w, "verl") for w in ("agent", "terminal")),
    ],
)
def test_what_was_sampled_is_what_was_trained(
    world: str, trainer: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    told = load_spec(ROOT / "recipes" / "guess-easy.toml", SETTINGS).to_mapping()
    told["env"] = request.getfixturevalue(world)
    folder = tmp_path / "run"
    with one_at_a_time(trainer), pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        spec = RunSpec.from_mapping(told)
        outcome = run_with_rows(spec, trainer=trainer, run_dir=folder, hardware=CPU, timeout_s=900)
    assert outcome.status == "finished", outcome.message
    run = read_run(folder)
    episodes = [each.trajectory for each in run.episodes()]
    assert len(episodes) == 32 and all(each.valid for each in episodes)
    assert all(turn.response_ids for each in episodes for turn in each.turns)
    audits = list(audit(run))
    assert len(audits) == 2
    findings = judge(audits)
    assert not findings, "\n".join([*lines(audits), *map(str, findings)])
