"""The folder that gives every Python process the shims."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gem_cpu.openrlhf_plugin import startup_folder


def test_the_folder_can_be_reached_by_a_link(tmp_path: Path) -> None:
    """Such as a home folder on another disk: the module must not take itself for the next one."""
    link, theirs = tmp_path / "link", tmp_path / "theirs"
    link.symlink_to(startup_folder())
    theirs.mkdir()
    theirs.joinpath("sitecustomize.py").write_text("print('theirs')\n")
    known = {k: v for k, v in os.environ.items() if not k.startswith("GEM_CPU")}
    done = subprocess.run(
        [sys.executable, "-c", "print('done')"],
        env={**known, "PYTHONPATH": os.pathsep.join(map(str, (link, theirs)))},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["theirs", "done"], "")
