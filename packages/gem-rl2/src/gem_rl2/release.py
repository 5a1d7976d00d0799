"""Finds the installed RL2: `rl-square` 0.0.2 of the package index.

A git checkout of RL2's main branch calls itself 0.0.2, too, and differs in almost every key. A file
that only the release has tells it apart.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from gem.errors import MissingExtraError, UnsupportedVersionError
from gem_rl2.version import TRAINER

MARKER = "utils/comm.py"
"""A file of the package `RL2` that only the release has."""


@dataclass(frozen=True)
class Installation:
    """An RL2 that was found."""

    folder: Path
    """Of the package `RL2`."""

    @property
    def path(self) -> str:
        """What to put on `PYTHONPATH` to import it."""
        return str(self.folder.parent)

    def __str__(self) -> str:
        return f"RL2: rl-square 0.0.2 in {self.path}"


def check_rl2() -> Installation:
    """Return the RL2 that runs would use; nothing of it is imported.

    Raises:
        MissingExtraError: There is none.
        UnsupportedVersionError: It is another version, or no release.
    """
    spec = importlib.util.find_spec("RL2")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if not places:
        raise MissingExtraError(f"RL2 is not installed; install it with: {TRAINER.install}")
    folder = Path(places[0])
    if not (folder / MARKER).is_file():
        raise UnsupportedVersionError(
            f"the RL2 in {folder.parent} is not rl-square 0.0.2: it has no {MARKER}; "
            f"{TRAINER.by} supports the release only, install it with: {TRAINER.install}"
        )
    TRAINER.check()
    return Installation(folder)
