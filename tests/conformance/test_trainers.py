"""Levels L0 to L3: real trainers against the reference, one greedy fp32 run each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "guess-easy-greedy.toml"
TRAINERS = ("verl",)
TIMEOUT_S = 900

pytestmark = pytest.mark.slow


def run(trainer: str, folder: Path, **settings: str) -> Path:
    """Run the recipe in a trainer through `gem-bench`, recording the trainer's own rows."""
    command = [sys.executable, "-m", "gem_bench", "run", str(RECIPE), "--to", trainer, "--cpu"]
    command += ["--out", str(folder), "--timeout", str(TIMEOUT_S)]
    for key, value in settings.items():
        command += ["--set", f"{key.replace('__', '.')}={value}"]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "GEM_RECORD_ROWS": "1"},
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
    from gem.experiment import RunSpec
    from gem.record import read_run
    from gem_bench.conformance import compare_runs
    from gem_bench.runspec import load_spec

    spec: RunSpec = load_spec(RECIPE)
    theirs = read_run(run(trainer, tmp_path / "run"))
    ours = read_run(reference)
    findings = compare_runs(ours, theirs, spec.algorithm)
    assert not findings, "\n".join(map(str, findings[:20]))
    curve = [m["return_mean"] for m in ours.metrics if m["split"] == "train"]
    # A flat line is drawn alike by trainers that learn nothing.
    assert len(set(curve)) > 3, json.dumps(curve)
