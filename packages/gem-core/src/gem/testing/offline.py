"""Replacement parameters with which built-in ids need neither a download nor a sandbox."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, NamedTuple

from gem import registry
from gem.envs.dataset_ids import DATASETS


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

    Only built-in ids have a bundled sample: other ids, and built-in ones that were registered
    again, are used as registered. With the sample, all programs are the sample's or the checker's,
    so they may run without isolation.

    Args:
        id: A registered id.
        given: Names of parameters that the caller chose; they are not replaced.
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
