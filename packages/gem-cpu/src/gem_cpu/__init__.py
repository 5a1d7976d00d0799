"""What exists only because there is no GPU: shims, environment builder, small models.

Nothing here changes anything unless the environment variable `GEM_CPU=1` is set.
"""

from __future__ import annotations

import logging
import os

__version__ = "0.1.0"

_ACTIVE = "GEM_CPU"
_ANNOUNCED = "GEM_CPU_ANNOUNCED"


def active() -> bool:
    """Whether the shims are to be used."""
    return os.environ.get(_ACTIVE) == "1"


def announce(shim: str, untested: str) -> None:
    """Log, once in a process and its children, that a shim is in use and what it leaves untested.

    Args:
        shim: What is replaced.
        untested: What a run with it does not exercise.
    """
    known = os.environ.get(_ANNOUNCED, "").split(",")
    if shim in known:
        return
    os.environ[_ANNOUNCED] = ",".join(filter(None, [*known, shim]))
    logging.getLogger(__name__).warning("%s=1: %s. Not tested: %s", _ACTIVE, shim, untested)
