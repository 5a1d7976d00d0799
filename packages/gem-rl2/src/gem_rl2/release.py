"""Which RL2 is there: two that differ in almost every key have the same version number.

- `release`: `rl-square` 0.0.2 of the package index.
- `head`: a git checkout of the main branch, which also calls itself 0.0.2 (tested: commit
  9161ede). It cannot be installed as a package; its folder is put on `PYTHONPATH`.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gem.errors import ConfigurationError, MissingExtraError, UnsupportedVersionError
from gem_rl2.version import TRAINER

Form = Literal["release", "head"]

HOME = "GEM_RL2_HOME"
"""Environment variable that names a checkout, which is then used instead of an installed RL2."""
_CLONE = "git clone https://github.com/ChenmienTan/RL2"
INSTALL = f"{TRAINER.install}; or {_CLONE} and set {HOME} to the clone"

MARKERS: dict[Form, str] = {"release": "utils/comm.py", "head": "utils/communication.py"}
"""A file of the package `RL2` that only this form has."""


@dataclass(frozen=True)
class Installation:
    """An RL2 that was found."""

    folder: Path
    """Of the package `RL2`."""
    form: Form

    @property
    def path(self) -> str:
        """What to put on `PYTHONPATH` to import it."""
        return str(self.folder.parent)

    def __str__(self) -> str:
        name = "rl-square 0.0.2" if self.form == "release" else "a checkout of the main branch"
        return f"RL2: {name} in {self.path}"


def check_rl2() -> Installation:
    """Return the RL2 that runs would use; nothing of it is imported.

    Raises:
        ConfigurationError: `GEM_RL2_HOME` names no checkout.
        MissingExtraError: There is none.
        UnsupportedVersionError: It has the marks of neither form.
    """
    folder = _folder()
    forms = [form for form, marker in MARKERS.items() if (folder / marker).is_file()]
    if len(forms) != 1:
        expected = " or ".join(f"{marker} ({form})" for form, marker in MARKERS.items())
        raise UnsupportedVersionError(
            f"the RL2 in {folder.parent} is neither rl-square 0.0.2 nor a known checkout of its "
            f"main branch: expected {expected}; install one with: {INSTALL}"
        )
    if forms[0] == "release":
        TRAINER.check()
    return Installation(folder, forms[0])


def _folder() -> Path:
    home = os.environ.get(HOME)
    if home:
        folder = Path(home).absolute() / "RL2"
        if not (folder / "trainer" / "ppo.py").is_file():
            raise ConfigurationError(f"{HOME}={home} is no checkout of RL2: no RL2/trainer/ppo.py")
        return folder
    spec = importlib.util.find_spec("RL2")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if not places:
        raise MissingExtraError(f"RL2 is not installed; install it with: {INSTALL}")
    return Path(places[0])
