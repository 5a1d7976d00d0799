"""The version of gem-rl2, and the version of RL2 that it works with."""

from __future__ import annotations

from gem_train.doctor import Requirement

__version__ = "0.1.0"

SUPPORTED_RL2 = "==0.0.2"
"""Versions of RL2 that this package works with. Checkouts of its main branch have the same number;
`gem_rl2.release` tells them apart."""

TRAINER = Requirement(
    "rl-square", SUPPORTED_RL2, f"gem-rl2 {__version__}", 'pip install "gem-rl2[rl2]"'
)
