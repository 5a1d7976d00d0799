"""Helpers of `EnvSpec`: import `module:name` paths, describe a wrapper so that it can be remade.

Imports nothing of gem.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any


def imported(path: str) -> Any:
    """Import and return the object at `"package.module:name"`."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def recipe(kind: type, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Any:
    """Return a description from which `gem.wrappers.wrap` constructs the same wrapper.

    Args:
        kind: The wrapper's class.
        arguments: Its positional and keyword arguments, without the environment.

    Returns:
        A mapping with the wrapper's name, or `module:Class`, and its parameters. If the class
        cannot be imported or an argument has no name: a function.
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
    if "name" in named:  # In a mapping this key is the wrapper's name.
        return partial(kind, **named)
    path = f"{kind.__module__}:{kind.__qualname__}"
    # For a built-in wrapper `gem.wrappers` is already imported and has its name.
    known: Mapping[str, Any] = getattr(sys.modules.get("gem.wrappers"), "WRAPPERS", {})
    name = next((name for name, made in known.items() if made is kind), "")
    if not name:
        module = sys.modules.get(kind.__module__)
        importable = kind.__module__ != "__main__" and getattr(module, kind.__qualname__, 0) is kind
        if not importable:
            return partial(kind, **named)
    return {"name": name or path, **named}
