"""`Recipe`: what makes an environment, as text, so that another process or machine can make it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gem.core import Env, WrapperLike
from gem.errors import ConfigurationError, UnknownEnvError
from gem.making import make
from gem.registry import register, spec


@dataclass(frozen=True)
class Recipe:
    """An environment's id, parameters and wrappers."""

    id: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters given to `gem.make`."""
    wrappers: WrapperLike | Sequence[WrapperLike] = ()
    """Put around the environment; see `gem.wrappers.wrap`."""

    def make(self) -> Env:
        """Make the environment.

        Raises:
            Exception: What `gem.make` and `gem.wrappers.wrap` raise.
        """
        env = make(self.id, **self.params)
        if not self.wrappers:
            return env
        # Imported only if needed.
        from gem.wrappers import wrap

        return wrap(env, self.wrappers)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, with the entry point of an id that other processes may not know.

        Raises:
            UnknownEnvError: See `gem.spec`.
            ConfigurationError: A part of it is an object that only this process has.
        """
        found = spec(self.id)
        entry_point = found.entry_point
        if not isinstance(entry_point, str):
            module, name = entry_point.__module__, getattr(entry_point, "__qualname__", "")
            entry_point = f"{module}:{name}"
            if module == "__main__" or "<" in name or "." in name:
                raise ConfigurationError(
                    f"{self.id!r} is made by {entry_point}, which another process cannot import; "
                    "register it by the name of a class or function of a module"
                )
        parts = {
            "id": self.id,
            "params": self.params,
            "wrappers": self.wrappers,
            "registered": [entry_point, found.kwargs],
        }
        for name, part in parts.items():
            try:
                parts[name] = json.loads(json.dumps(_listed(part)))
            except (TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"{name} of {self.id!r} cannot be sent to another process: {error}; "
                    'name wrappers by "module:Class", and parameters by plain values'
                ) from None
        return parts

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recipe:
        """Rebuild from `to_dict`; register the id if this process does not know it."""
        entry_point, kwargs = data["registered"]
        try:
            known = spec(data["id"]).entry_point
        except UnknownEnvError:
            known = None
        if known != entry_point and not callable(known):
            register(data["id"], entry_point, **kwargs)
        return cls(data["id"], data["params"], data["wrappers"])


def _listed(part: Any) -> Any:
    return dict(part) if isinstance(part, Mapping) else part
