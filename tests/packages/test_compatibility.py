"""`tools/compatibility.py --check`: what a run of real trainers found against what was kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (["L0 to L3", "sampled audit"], 0),
        # `make nightly` runs some audits.
        (["L0 to L3"], 0),
        (["sampled audit"], 1),
        (["L0 to L2"], 1),
        (["L0 to L3", "L4"], 1),
        # A column of its own, which is no level.
        (["two ranks"], 0),
    ],
    ids=str,
)
def test_a_run_must_find_the_levels_that_the_table_names(
    found: list[str], status: int, tmp_path: Path
) -> None:
    folder = tmp_path / "conformance" / "verl"
    folder.mkdir(parents=True)
    for name in found:
        (folder / name).write_text("2026-11-27\na processor\n")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "compatibility.py", "--check"],
        env={**os.environ, "RUNS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
