"""What an environment was made of: enough to make it again, here or from JSON elsewhere."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gem.errors import ConfigurationError

if TYPE_CHECKING:
    from gem.core import Env, Wrapper
    from gem.wrappers import WrapperLike


@dataclass(frozen=True)
class EnvSpec:
    """What an id stands for, or what an environment was made of."""

    id: str
    """Registered name, such as `game:GuessTheNumber-v0-easy`."""
    entry_point: str | Callable[..., Env]
    """`"package.module:Class"`, imported at the first `make`, or a callable that returns an Env."""
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Parameters given to the entry point."""
    wrappers: tuple[WrapperLike, ...] = field(default=(), hash=False)
    """What is put around it, tools among them, the last one outermost; see `gem.wrappers.wrap`."""

    def load(self) -> Callable[..., Env]:
        """Return the callable behind the entry point; imports its module."""
        if not isinstance(self.entry_point, str):
            return self.entry_point
        loaded: Callable[..., Env] = imported(self.entry_point)
        return loaded

    def make(self, **overrides: Any) -> Env:
        """Make the environment with its wrappers; see `gem.make`."""
        from gem.registry import make

        return make(self, **overrides)

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads back, also as JSON; the id stands for the entry point.

        Raises:
            ConfigurationError: A parameter is no plain value, such as a tool that was given as an
                object or a wrapper that was given as a function; the message names it.
        """
        from gem.tables import plain_values

        return {
            "id": self.id,
            "kwargs": plain_values(self.kwargs, "kwargs"),
            "wrappers": plain_values(self.wrappers, "wrappers"),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvSpec:
        """Rebuild from `to_dict`.

        Raises:
            ConfigurationError: It is something else.
            UnknownEnvError: The id is not registered here.
        """
        from gem.registry import spec

        try:
            id, kwargs, wrappers = data["id"], dict(data["kwargs"]), tuple(data["wrappers"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"not the spec of an environment: {data!r:.200}") from error
        return cls(id, spec(id).entry_point, kwargs, wrappers)


def imported(path: str) -> Any:
    """Return what `"package.module:name"` names; imports the module."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def recipe(
    kind: type[Wrapper], arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
) -> WrapperLike:
    """Return what makes `wrap` construct a wrapper as it was constructed.

    Args:
        kind: Its class.
        arguments: Positional and keyword arguments besides the environment.

    Returns:
        A mapping with the wrapper's name, or `module:Class`, and its parameters; where the class
        cannot be imported or an argument has no name, a function.
    """
    positional, keyword = arguments
    signature = inspect.signature(kind)
    named: dict[str, Any] = {}
    for name, value in signature.bind(None, *positional, **keyword).arguments.items():
        shape = signature.parameters[name].kind
        if shape in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            return lambda env: kind(env, *positional, **keyword)
        named |= value if shape is inspect.Parameter.VAR_KEYWORD else {name: value}
    named.pop(next(iter(signature.parameters)), None)
    if "name" in named:  # It would be taken for the wrapper's.
        return partial(kind, **named)
    path = f"{kind.__module__}:{kind.__qualname__}"
    # A built-in wrapper has a name, and its package is imported.
    known: Mapping[str, Any] = getattr(sys.modules.get("gem.wrappers"), "WRAPPERS", {})
    name = next((name for name, made in known.items() if made is kind), "")
    if not name:
        module = sys.modules.get(kind.__module__)
        importable = kind.__module__ != "__main__" and getattr(module, kind.__qualname__, 0) is kind
        if not importable:
            return partial(kind, **named)
    return {"name": name or path, **named}
