"""GEM on Tinker servers: environments, multi-turn rollouts and turn-level advantages.

Two ways to train: `python -m gem_tinker.train`, a direct loop on the SDK, and the tinker
cookbook with `gem_tinker.cookbook`. See docs/tinker.md.
"""

from __future__ import annotations

from gem_train.doctor import Requirement

__version__ = "0.1.0"

SUPPORTED_TINKER = ">=0.38,<0.40"
"""Versions of the tinker SDK that this package works with."""

SUPPORTED_COOKBOOK = ">=0.6.1,<0.7"
"""Versions of the tinker cookbook that `gem_tinker.cookbook` works with."""

_BY = f"gem-tinker {__version__}"

TRAINER = Requirement(
    "tinker", SUPPORTED_TINKER, by=_BY, install=f'pip install "tinker{SUPPORTED_TINKER}"'
)

COOKBOOK = Requirement(
    "tinker-cookbook", SUPPORTED_COOKBOOK, by=_BY, install='pip install "gem-tinker[cookbook]"'
)

check_tinker = TRAINER.check
"""Returns the version of the installed SDK, or raises what `Requirement.check` raises."""

check_cookbook = COOKBOOK.check
"""Returns the version of the installed cookbook, or raises what `Requirement.check` raises."""
