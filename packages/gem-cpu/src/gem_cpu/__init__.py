"""Support for machines without a GPU: shims for trainers, environment builder, small models.

The shims do nothing unless the environment variable `GEM_CPU=1` is set.
"""

from __future__ import annotations

import logging
import os
from typing import Any

__version__ = "0.1.0"

_ACTIVE = "GEM_CPU"
_ANNOUNCED = "GEM_CPU_ANNOUNCED"


def active() -> bool:
    """Whether `GEM_CPU=1` asks for the shims."""
    return os.environ.get(_ACTIVE) == "1"


def check_replaced(
    distribution: str,
    supported: str,
    path: str,
    parameters: str,
    *,
    owner: Any,
    found: str | None = None,
) -> None:
    """Make sure that a function that a shim replaces is what it was.

    Args:
        distribution: What the function is part of.
        supported: Versions that the shim works with, such as `>=0.9.1,<0.10`.
        path: Name of the function in `owner`.
        parameters: Names of all its parameters, separated by commas.
        owner: Module or class.
        found: What is installed, if the version of the distribution does not tell.

    Raises:
        UnsupportedVersionError: It is missing or has other parameters.
    """
    from gem_train.doctor import Requirement
    from gem_train.seams import Seam, check_seams

    by, install = f"gem-cpu {__version__}", f'pip install "{distribution}{supported}"'
    requirement = Requirement(distribution, supported, by, install)
    check_seams(requirement, [Seam(path, parameters)], owner=owner, found=found)


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
