"""`benchmarks/gpu/run.py --smoke`: what it does on a GPU, on the CPU with a tiny model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_without_nvidia_smi_the_benchmark_says_so(tmp_path: Path) -> None:
    """A container or a machine with other GPUs."""
    ended = subprocess.run(
        [sys.executable, "benchmarks/gpu/run.py", "reference", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("nvidia-smi does not say how much memory is used (")
    assert "--smoke" in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["reference", "trl"])
def test_the_smoke_run_measures_and_all_levels_hold(trainer: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "benchmarks/gpu/run.py", trainer, "--smoke", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    printed = ended.stdout
    assert float(re.findall(r"peak memory: ([0-9.]+) GiB", printed)[0]) > 0.1
    assert re.search(r"rollout: [0-9,]+ sampled tokens/s", printed)
    assert re.search(r"time of an iteration: rollout [0-9]+%", printed)
    assert "prefix cache: the engine's log does not tell" in printed
    assert printed.count(f"| {trainer} | ") == 2
    assert [re.findall(rf"{level} .*equal", printed) != [] for level in ("L0", "L1", "L2")] == [
        *(True, True, True)
    ]
