"""The version of gem-skyrl, and the versions of the trainer that it works with."""

from __future__ import annotations

from gem_train.doctor import Requirement

__version__ = "0.1.0"

SUPPORTED_SKYRL = ">=1.2,<2"
"""Versions of fake-trainer that this package works with."""

TRAINER = Requirement(
    "fake-trainer",
    SUPPORTED_SKYRL,
    by=f"gem-skyrl {__version__}",
    install='pip install "fake-trainer>=1.2,<2"',
)
