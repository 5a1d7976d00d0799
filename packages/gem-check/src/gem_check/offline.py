"""Replacement parameters with which built-in ids need neither a download nor a sandbox."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, NamedTuple

from gem import registry


class Replacement(NamedTuple):
    """A parameter whose value differs from the id's."""

    name: str
    used: Any
    registered: str
    """The id's value as text."""

    def __str__(self) -> str:
        return f"{self.name}={self.used!r} instead of {self.registered}"


def replacements(id: str, given: Collection[str] = ()) -> list[Replacement]:
    """Return the parameters to replace so that an id needs neither a download nor a sandbox.

    Only ids with a bundled sample (`sample=`) are changed; others, and ids that the caller has
    registered, are used as registered. With the sample, all programs are the sample's or the
    checker's, so they may run without isolation.

    Args:
        id: A registered id.
        given: Names of parameters that the caller chose; they are not replaced.
    """
    spec = registry.spec(id)
    parameters = spec.kwargs
    if "sample" not in parameters or registry.is_by_hand(id):
        return []
    known = inspect.signature(spec.load()).parameters
    return [
        Replacement(name, used, repr(parameters[name]) if name in parameters else "the default")
        for name, used in {"source": "sample", "runner": "subprocess"}.items()
        if name in known and name not in given
    ]


def offline_parameters(id: str, given: Collection[str] = ()) -> dict[str, Any]:
    """Return `replacements` as parameters for `make`."""
    return {one.name: one.used for one in replacements(id, given)}
