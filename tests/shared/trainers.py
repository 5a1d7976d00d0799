"""The real trainers that are compared with the reference."""

from __future__ import annotations

import os

import pytest

# ROLL is on no index: it is a checkout, which CI does not have.
_CHECKOUT = pytest.mark.skipif(
    "GEM_ROLL_HOME" not in os.environ, reason="GEM_ROLL_HOME names no checkout of ROLL"
)
TRAINERS = (
    "verl",
    "openrlhf",
    "oat",
    "rl2",
    "skyrl",
    "trl",
    "trl with vLLM",
    pytest.param("roll", marks=_CHECKOUT),
)
