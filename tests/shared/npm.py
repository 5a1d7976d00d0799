"""npm, which provides what some tests need and PyPI does not have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def npm(*words: str, folder: Path) -> str:
    """Run npm in a folder; return what it prints.

    The test is skipped where npm is not installed, and where it fails three times: its registry may
    be out of reach.
    """
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    problem = ""
    for _ in range(3):
        try:
            run = subprocess.run(
                ["npm", *words, "--silent"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = "it does not end"
            continue
        if run.returncode == 0:
            return run.stdout
        problem = run.stderr.strip()[-200:]
    pytest.skip(f"npm {' '.join(words)} fails: {problem}")
