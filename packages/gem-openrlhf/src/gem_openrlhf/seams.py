"""The check that what is replaced in OpenRLHF is still what it was."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from gem.errors import UnsupportedVersionError
from gem_openrlhf import SUPPORTED_OPENRLHF, __version__, check_openrlhf

_RAYS_OWN = "_ray_trace_ctx"
"""Ray adds it to all methods of a class that becomes an actor, and to those of its bases."""


def check_signature(owner: Any, name: str, expected: Sequence[str]) -> None:
    """Make sure that a function of OpenRLHF exists and has the parameters it had.

    Args:
        owner: Its module or class.
        name: Its name there.
        expected: Its parameters.

    Raises:
        UnsupportedVersionError: It does not; both versions are named.
    """
    function = getattr(owner, name, None)
    found = None
    if function is not None:
        found = [name for name in inspect.signature(function).parameters if name != _RAYS_OWN]
    if found != list(expected):
        raise UnsupportedVersionError(
            f"gem-openrlhf {__version__} replaces {owner.__name__}.{name}({', '.join(expected)}), "
            f"but openrlhf {check_openrlhf()} has {found}; supported is openrlhf "
            f"{SUPPORTED_OPENRLHF}"
        )
