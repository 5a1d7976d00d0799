"""GEM in oat: environments, multi-turn rollouts and turn-level advantages.

oat is extended by subclassing: `Args`, `Actor` and `Learner` are subclasses of oat's own, and
`python -m gem_oat --gem_tasks gem:... [oat's flags]` starts them with oat's Launchpad launcher.
See docs/oat.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gem_train.doctor import Requirement
from gem_train.imports import lazy

if TYPE_CHECKING:
    from gem_oat.__main__ import main
    from gem_oat.learner import Learner
    from gem_oat.rollout import Actor
    from gem_oat.settings import Args

__version__ = "0.1.0"

SUPPORTED_OAT = ">=0.2.3,<0.3"
"""Versions of oat-llm that this package works with."""

INSTALL = 'pip install vllm==0.8.4 && pip install "gem-oat[oat]" (Python 3.10)'

TRAINER = Requirement("oat-llm", SUPPORTED_OAT, by=f"gem-oat {__version__}", install=INSTALL)

check_oat = TRAINER.check
"""Returns the version of the installed oat, or raises what `Requirement.check` raises."""

__all__ = [
    "SUPPORTED_OAT",
    "TRAINER",
    "Actor",
    "Args",
    "Learner",
    "__version__",
    "check_oat",
    "main",
]

_PLACES = {"Actor": "rollout", "Args": "settings", "Learner": "learner", "main": "__main__"}
__getattr__ = lazy(__name__, _PLACES)
