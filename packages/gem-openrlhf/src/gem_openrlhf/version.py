"""The version of gem-openrlhf, and the versions of OpenRLHF that it works with."""

from __future__ import annotations

from gem_train.doctor import Requirement

__version__ = "0.1.0"

SUPPORTED_OPENRLHF = ">=0.11.1,<0.12"
"""Versions of OpenRLHF that this package works with."""

TRAINER = Requirement(
    "openrlhf",
    SUPPORTED_OPENRLHF,
    by=f"gem-openrlhf {__version__}",
    install='pip install "gem-openrlhf[openrlhf]"',
)

check_openrlhf = TRAINER.check
"""Returns the version of the installed OpenRLHF, or raises what `Requirement.check` raises."""
