"""How a wrapper is described in the spec of an environment, and names that are imported."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any


def imported(path: str) -> Any:
    """Return what `"package.module:name"` names; imports the module."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def recipe(kind: type, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Any:
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
