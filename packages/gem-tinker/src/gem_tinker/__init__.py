"""GEM on Tinker servers: environments, multi-turn rollouts and turn-level advantages.

Two ways to train: `python -m gem_tinker.train`, a direct loop on the SDK, and the tinker
cookbook with `gem_tinker.cookbook`. See docs/tinker.md.
"""

from __future__ import annotations

from gem.training.doctor import require

__version__ = "0.1.0"

SUPPORTED_TINKER = ">=0.38,<0.40"
"""Versions of the tinker SDK that this package works with."""

SUPPORTED_COOKBOOK = ">=0.6.1,<0.7"
"""Versions of the tinker cookbook that `gem_tinker.cookbook` works with."""

__all__ = [
    "SUPPORTED_COOKBOOK",
    "SUPPORTED_TINKER",
    "__version__",
    "check_cookbook",
    "check_tinker",
]

_BY = f"gem-tinker {__version__}"


def check_tinker() -> str:
    """Return the version of the installed tinker SDK.

    Raises:
        MissingExtraError: tinker is not installed.
        UnsupportedVersionError: Its version is outside `SUPPORTED_TINKER`.
    """
    install = f'pip install "tinker{SUPPORTED_TINKER}"'
    return require("tinker", SUPPORTED_TINKER, by=_BY, install=install)


def check_cookbook() -> str:
    """Return the version of the installed tinker cookbook.

    Raises:
        MissingExtraError: It is not installed.
        UnsupportedVersionError: Its version is outside `SUPPORTED_COOKBOOK`.
    """
    install = 'pip install "gem-tinker[cookbook]"'
    return require("tinker-cookbook", SUPPORTED_COOKBOOK, by=_BY, install=install)
