"""The version of gem-skyrl, and the versions of SkyRL that it works with."""

from __future__ import annotations

from gem_train.doctor import Requirement

__version__ = "0.1.0"

SUPPORTED_SKYRL = ">=0.4.0,<0.5"
"""Versions of SkyRL that this package works with."""

TRAINER = Requirement(
    "skyrl",
    SUPPORTED_SKYRL,
    by=f"gem-skyrl {__version__}",
    install='pip install "gem-skyrl[skyrl]" (Python 3.12 or later)',
)

check_skyrl = TRAINER.check
"""Returns the version of the installed SkyRL, or raises what `Requirement.check` raises."""
