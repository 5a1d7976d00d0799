"""Support for machines without a GPU: shims for trainers, environment builder, small models.

The shims do nothing unless the environment variable `GEM_CPU=1` is set.
"""

from __future__ import annotations

import logging
import os

__version__ = "0.1.0"

_ACTIVE = "GEM_CPU"
_ANNOUNCED = "GEM_CPU_ANNOUNCED"


def active() -> bool:
    """Whether `GEM_CPU=1` asks for the shims."""
    return os.environ.get(_ACTIVE) == "1"


def announce(shim: str, untested: str) -> None:
    """Log, once per process tree, that a shim is in use and what it leaves untested.

    Args:
        shim: The shim, as a clause for the log.
        untested: The features that a run with it does not exercise.
    """
    known = os.environ.get(_ANNOUNCED, "").split(",")
    if shim in known:
        return
    os.environ[_ANNOUNCED] = ",".join(filter(None, [*known, shim]))
    logging.getLogger(__name__).warning("%s=1: %s. Not tested: %s", _ACTIVE, shim, untested)
