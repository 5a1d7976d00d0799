"""Which ROLL is there: a checkout of one commit, named by `GEM_ROLL_HOME`, with unchanged seams.

ROLL has no release and promises no interface. What this package extends, replaces, calls or relies
on lies in the files of `SEAMS`; their content is compared, because a function may keep its
parameters and do something else. Nothing of ROLL is imported here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
from pathlib import Path

from gem.errors import ConfigurationError, MissingExtraError, UnsupportedVersionError
from gem_roll.version import COMMIT, SUPPORTED_ROLL

HOME = "GEM_ROLL_HOME"
"""Environment variable that names the checkout."""

LAUNCHER = "examples/start_agentic_pipeline.py"
"""The script that starts an agentic pipeline."""
SEAMS = (
    LAUNCHER,
    "roll/configs/*.py",
    "roll/distributed/scheduler/*.py",
    "roll/pipeline/*.py",
    "roll/pipeline/agentic/*.py",
    "roll/pipeline/agentic/env_manager/base_env_manager.py",
    "roll/utils/functionals.py",
)
"""Patterns of the files whose content is relied on."""
DIGEST = "5024022f1a741d2098cd3f71384c07fa428526d6089315bc933e1467a5c36d7b"
"""SHA-256 over their names and contents at the commit."""


def check_roll(home: str | Path | None = None) -> Path:
    """Return the folder of the checkout that runs use.

    Args:
        home: Its folder; by default what `GEM_ROLL_HOME` says.

    Raises:
        ConfigurationError: gem-llm is installed beside gem-core, or the folder is no checkout.
        MissingExtraError: `GEM_ROLL_HOME` is not set.
        UnsupportedVersionError: It is at another commit, or files that matter were changed.
    """
    if any(importlib.metadata.distributions(name="gem-llm")):
        raise ConfigurationError(
            "gem-llm is installed beside gem-core, and both are imported as 'gem': ROLL's "
            "requirements name it, but gem_roll.legacy has what ROLL needs of it. Run: pip "
            "uninstall -y gem-llm gem-core && pip install gem-core"
        )
    home = home or os.environ.get(HOME)
    if not home:
        raise MissingExtraError(
            f"ROLL is not installed, {HOME} is not set: git clone https://github.com/alibaba/ROLL, "
            f"git -C ROLL checkout {COMMIT[:7]}, pip install what its requirements list but gem-llm"
        )
    folder = Path(home).absolute()
    if not (folder / "roll" / "pipeline").is_dir():
        raise ConfigurationError(f"{HOME}={home} is no checkout of ROLL: no roll/pipeline")
    commit = _git(folder, "rev-parse", "HEAD") or COMMIT
    if commit != COMMIT or digest(folder) != DIGEST:
        changed = _git(folder, "diff", "--name-only", COMMIT, "--", *SEAMS).split()
        raise UnsupportedVersionError(
            f"gem-roll works with {SUPPORTED_ROLL} of ROLL; {folder} is at {commit[:7]}, changed: "
            f"{', '.join(changed) or 'nothing git knows'}; git -C {folder} checkout {COMMIT[:7]}"
        )
    return folder


def digest(folder: Path) -> str:
    """Return the SHA-256 over the names and contents of a checkout's files of `SEAMS`."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in SEAMS for path in folder.glob(pattern)):
        found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _git(folder: Path, *arguments: str) -> str:
    """Return what git says of a clone; nothing of a folder that is none."""
    if not (folder / ".git").exists() or not shutil.which("git"):
        return ""
    # git wants to be told that a clone of another user is no trap.
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
