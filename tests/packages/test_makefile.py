"""`make test` runs all of its targets, whichever of them fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINERS = ("verl", "openrlhf", "oat", "tinker", "rl2", "skyrl", "inspect", "verifiers")


@pytest.mark.parametrize("target", ["test", "test-all"])
@pytest.mark.parametrize("failing", ["tests/core", "tests/trl", ""])
def test_one_target_that_fails_keeps_no_other_from_running(
    target: str, failing: str, tmp_path: Path
) -> None:
    log, python = tmp_path / "log", tmp_path / "python"
    fails = f'case "$*" in *{failing}*) exit 3;; esac\n' if failing else ""
    python.write_text(f'#!/bin/sh\necho "$*" >> {log}\n{fails}')
    python.chmod(0o755)
    interpreters = [f"{name.upper()}={python}" for name in ("dev", "site", *TRAINERS, "roll")]
    done = subprocess.run(
        ["make", target, "VENVS=true", "GEM_ROLL_HOME=", *interpreters],
        capture_output=True,
        text=True,
        cwd=ROOT,
        # Not what a make that runs these tests was called with.
        env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")},
        timeout=60,
        check=False,
    )
    ran = log.read_text()
    wanted = ["tests/core", "tests/trl", "tests/site"]
    wanted += [f"tests/{name}" for name in (*TRAINERS, "roll")] if target == "test-all" else []
    for folder in wanted:
        assert folder in ran, (folder, done.stderr)
    assert (done.returncode == 0) == (not failing)
    if failing:
        name = {"tests/core": "test-dev", "tests/trl": "test-trl"}[failing]
        assert f"{name}] Error" in done.stderr
