"""The version of gem-template, and the versions of the trainer that it works with."""

from __future__ import annotations

from gem_train.doctor import Requirement

__version__ = "0.1.0"

SUPPORTED_TEMPLATE = ">=1.2,<2"
"""Versions of fake-trainer that this package works with."""

TRAINER = Requirement(
    "fake-trainer",
    SUPPORTED_TEMPLATE,
    by=f"gem-template {__version__}",
    install='pip install "fake-trainer>=1.2,<2"',
)
