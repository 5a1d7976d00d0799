"""The benchmark of vector environments runs and draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.nightly
def test_the_script_runs_in_seconds(tmp_path: Path) -> None:
    plot = tmp_path / "vector.svg"
    command = [sys.executable, str(BENCHMARKS / "vector.py"), "--quick", "--without-baselines"]
    command += ["--modes", "process", "--rows", "step", "killed", "--plot", str(plot)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [row[:2] for row in rows[:2]] == [["step", "process"], ["killed", "process"]]
    assert "50 equal" in done.stdout
    assert plot.read_text(encoding="utf-8").count("<polyline") == 2
