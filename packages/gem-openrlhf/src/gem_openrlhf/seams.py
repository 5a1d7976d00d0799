"""The check that what is replaced in OpenRLHF is still what it was."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from gem.errors import UnsupportedVersionError
from gem_openrlhf import SUPPORTED_OPENRLHF, __version__, check_openrlhf


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
    found = None if function is None else list(inspect.signature(function).parameters)
    if found != list(expected):
        raise UnsupportedVersionError(
            f"gem-openrlhf {__version__} replaces {owner.__name__}.{name}({', '.join(expected)}), "
            f"but openrlhf {check_openrlhf()} has {found}; supported is openrlhf "
            f"{SUPPORTED_OPENRLHF}"
        )
