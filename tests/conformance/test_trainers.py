"""Levels L0 to L3: real trainers against the reference, one greedy fp32 run each."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gem.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.conformance import Finding, compare_runs
from gem_bench.runspec import load_spec

_spec = importlib.util.spec_from_file_location("breaks", Path(__file__).with_name("breaks.py"))
assert _spec is not None and _spec.loader is not None
breaks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(breaks)

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "guess-easy-greedy.toml"
TRAINERS = ("verl",)
TIMEOUT_S = 900

pytestmark = pytest.mark.slow


def run(trainer: str, folder: Path, **environment: str) -> Path:
    """Run the recipe in a trainer through `gem-bench`, recording the trainer's own rows."""
    command = [sys.executable, "-m", "gem_bench", "run", str(RECIPE), "--to", trainer, "--cpu"]
    command += ["--out", str(folder), "--timeout", str(TIMEOUT_S)]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "GEM_RECORD_ROWS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 60,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("reference", tmp_path_factory.mktemp("reference") / "run")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_real_trainer_conforms_to_the_reference(
    trainer: str, reference: Path, tmp_path: Path
) -> None:
    findings = compare(reference, run(trainer, tmp_path / "run"))
    assert not findings, "\n".join(map(str, findings[:20]))
    train = [m for m in read_run(reference).metrics if m["split"] == "train"]
    # A flat line is drawn alike by trainers that learn nothing.
    assert len({m["return_mean"] for m in train}) > 3


@pytest.mark.breaks
@pytest.mark.parametrize("name", breaks.BREAKS)
def test_a_broken_trainer_does_not(name: str, reference: Path, tmp_path: Path) -> None:
    """The same run of real verl with one defect built in is told apart at the right level."""
    folder = run(
        "verl",
        tmp_path / "run",
        VERL_USE_EXTERNAL_MODULES="breaks",
        GEM_BREAK=name,
        PYTHONPATH=str(Path(__file__).parent),
    )
    level = breaks.BREAKS[name][1]
    found = {f.level for f in compare(reference, folder)}
    assert level in found, f"found {sorted(found)}"
    if level == "L3":
        assert found == {"L3"}


def compare(reference: Path, other: Path) -> list[Finding]:
    algorithm = load_spec(RECIPE).algorithm
    return compare_runs(read_run(reference), read_run(other), algorithm)
