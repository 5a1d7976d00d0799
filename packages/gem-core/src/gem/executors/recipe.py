"""`Recipe`: what makes an environment, as text, so that another process or machine can make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gem.core import Env, EnvSpec, WrapperLike
from gem.errors import ConfigurationError, UnknownEnvError
from gem.making import make
from gem.registry import register, spec
from gem.tables import plain_values


@dataclass(frozen=True)
class Recipe:
    """An environment's id, parameters and wrappers."""

    id: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters given to `gem.make`."""
    wrappers: WrapperLike | Sequence[WrapperLike] = ()
    """Put around the environment; see `gem.wrappers.wrap`."""
    registered: EnvSpec | None = None
    """What the id stands for; None for what it does in this process."""

    def make(self) -> Env:
        """Make the environment.

        Raises:
            Exception: What `gem.make` and `gem.wrappers.wrap` raise.
        """
        env = make(self.registered or self.id, **self.params)
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
        try:
            return {
                "id": self.id,
                "params": plain_values(self.params, "params"),
                "wrappers": plain_values(self.wrappers, "wrappers"),
                "registered": [entry_point, plain_values(found.kwargs, "registered parameters")],
            }
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{self.id!r} cannot be sent to another process: {error}; "
                'name wrappers by "module:Class", and parameters by plain values'
            ) from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recipe:
        """Rebuild from `to_dict`; register the id if this process does not know it.

        If it stands for something else here, the sender's registration counts for this recipe.
        """
        recipe = cls(data["id"], data["params"], data["wrappers"])
        entry_point, kwargs = data["registered"]
        try:
            if cls(recipe.id).to_dict()["registered"] == [entry_point, kwargs]:
                return recipe
        except UnknownEnvError:
            register(recipe.id, entry_point, **kwargs)
        except ConfigurationError:  # what it stands for here cannot be sent
            pass
        return replace(recipe, registered=EnvSpec(recipe.id, entry_point, kwargs))
