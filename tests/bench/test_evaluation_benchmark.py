"""The benchmark of evaluations runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.nightly
def test_the_script_runs_in_seconds(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "evaluation.py"), "--quick", "--memory"]
    command += ["--inspect", str(tmp_path / "python")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    rows = done.stdout.splitlines()[1:]
    assert [row[:24].strip() for row in rows[:2]] == ["gem eval", "gem eval, no server"]
    assert "make env-inspect" in rows[2]
    assert rows[3].startswith("memory") and "'200'" in rows[4] and "'peak'" in rows[4]
