"""Running recipes with real trainers, and keeping what was found.

`GEM_PERTURB=<seed>` lets every run begin with weights that differ from the shipped ones by no more
than rounding: what holds with one seed and not with another depends on the machine.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arithmetic import arithmetic
from locks import one_at_a_time

ROOT = Path(__file__).parents[2]
FOUND = Path(os.environ.get("RUNS", ROOT / "runs")) / "conformance"
TIMEOUT_S = 900
PERTURBED = os.environ.get("GEM_PERTURB", "")


@pytest.fixture(scope="session")
def begin_with(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What runs begin with: the tiny model, perturbed if asked for."""
    if not PERTURBED:
        return "tiny"
    from gem_bench.noise import perturbed_copy
    from gem_cpu import tiny_model

    folder = tmp_path_factory.mktemp("perturbed") / "tiny"
    return str(perturbed_copy(tiny_model.ensure(), folder, seed=int(PERTURBED)))


@pytest.fixture(scope="session")
def run(begin_with: str) -> Callable[..., Path]:
    """Run a recipe through `gem-bench`, recording the trainer's own rows; returns the folder.

    `run(trainer, folder, recipe, *settings, **environment)`; settings are `key=value`.
    """

    def start(trainer: str, folder: Path, recipe: str, *settings: str, **environment: str) -> Path:
        path = ROOT / "recipes" / f"{recipe}.toml"
        command = [sys.executable, "-m", "gem_bench", "run", str(path), "--to", trainer, "--cpu"]
        command += ["--out", str(folder), "--timeout", str(TIMEOUT_S)]
        for setting in (f"policy.model={begin_with}", *settings):
            command += ["--set", setting]
        with one_at_a_time(trainer):
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "GEM_RECORD_ROWS": "1", **environment},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S + 60,
                check=False,
            )
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        return folder

    return start


@pytest.fixture(scope="session")
def keep() -> Callable[[str, str], None]:
    """Note what holds for an adapter, for `tools/compatibility.py`: a file with the date.

    To be called when it was seen, and only then: `keep("verl", "L0 to L3")`.
    """

    def write(name: str, holds: str) -> None:
        path = FOUND / name / holds
        path.parent.mkdir(parents=True, exist_ok=True)
        today = datetime.datetime.now(datetime.timezone.utc).date()
        path.write_text(f"{today}\n{arithmetic()}\n")

    return write


@pytest.fixture(scope="session")
def compare() -> Callable[[Path, Path], list[Any]]:
    """Compare a run of `guess-easy-greedy` with the reference's: `compare(reference, other)`."""
    from gem.training.record import read_run
    from gem_bench.conformance import compare_runs
    from gem_bench.runspec import load_spec

    algorithm = load_spec(ROOT / "recipes" / "guess-easy-greedy.toml").algorithm
    return lambda reference, other: compare_runs(read_run(reference), read_run(other), algorithm)
