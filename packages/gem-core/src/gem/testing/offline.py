"""Parameters with which built-in ids need neither a download nor a sandbox."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, NamedTuple

from gem import registry
from gem.envs.dataset_ids import DATASETS


class Replacement(NamedTuple):
    """A parameter that is not as the id has it."""

    name: str
    used: Any
    registered: str
    """What the id is registered with, in words."""

    def __str__(self) -> str:
        return f"{self.name}={self.used!r} instead of {self.registered}"


def replacements(id: str, given: Collection[str] = ()) -> list[Replacement]:
    """Return what is replaced so that an id needs neither a download nor a sandbox.

    Only built-in ids declare a bundled sample; every other id is used as registered, and so is a
    built-in one that was registered anew. Programs are then the sample's own and those of the
    checker, so that they may run without isolation.

    Args:
        id: A registered id.
        given: Names of parameters that the caller chose, which stay.
    """
    spec = registry.spec(id)
    entry_point, parameters = DATASETS.get(id, ("", {}))
    if (spec.entry_point, dict(spec.kwargs)) != (f"gem.envs.{entry_point}", parameters):
        return []
    known = inspect.signature(spec.load()).parameters
    return [
        Replacement(name, used, repr(parameters[name]) if name in parameters else "the default")
        for name, used in {"source": "sample", "executor": "subprocess"}.items()
        if name in known and name not in given
    ]


def offline_parameters(id: str, given: Collection[str] = ()) -> dict[str, Any]:
    """Return `replacements` as parameters for `make`."""
    return {one.name: one.used for one in replacements(id, given)}
