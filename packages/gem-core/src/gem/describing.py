"""Descriptions of environments, read from docstrings and signatures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gem.core import Env

_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


@dataclass(frozen=True)
class Parameter:
    """A parameter of an environment."""

    name: str
    default: str
    """Default as in the signature; "" if there is none."""
    meaning: str
    type: str = ""
    """Annotation as in the signature; "" if there is none."""


def description(entry_point: Callable[..., Env]) -> str:
    """Return the docstring without its lists of attributes and arguments."""
    text = inspect.getdoc(entry_point) or ""
    return re.split(r"\n\n?(?:Attributes|Args|Raises):\n", text)[0].strip()


def summary(entry_point: Callable[..., Env]) -> str:
    """Return the first sentence of a class's or function's docstring."""
    paragraph = " ".join(description(entry_point).partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])(?<!\.\.\.)\s", paragraph)[0]


def parameters(entry_point: Callable[..., Env]) -> list[Parameter]:
    """Return the parameters of a class, with their meaning from its docstring.

    If that says nothing or refers to a base class ("See `Game`."), the base class's is taken.
    """
    documented: list[Any] = []
    for each in (entry_point, getattr(entry_point, "__wrapped__", None)):
        documented += each.__mro__ if inspect.isclass(each) else [] if each is None else [each]
    meanings: dict[str, str] = {}
    for one in documented:
        function = one.__dict__.get("__init__") if inspect.isclass(one) else one
        for name, meaning in _meanings(inspect.getdoc(function) or "").items():
            if meanings.get(name, "See ").startswith("See "):
                meanings[name] = meaning
    return [
        Parameter(name, _default(parameter.default), meanings.get(name, ""), _type(parameter))
        for name, parameter in inspect.signature(entry_point).parameters.items()
    ]


def _type(parameter: inspect.Parameter) -> str:
    kind = parameter.annotation
    if kind is inspect.Parameter.empty:
        return ""
    return kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    # Other objects by name or class: their repr may differ between runs.
    plain = value is None or isinstance(value, str | int | float | tuple | list | dict)
    return repr(value if plain else getattr(value, "name", type(value).__name__))


def _meanings(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's `Args`."""
    _, _, rest = docstring.partition("Args:\n")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        entry = _ENTRY.match(line[4:])
        if entry and line[4:5] != " ":
            names = entry[1].split(", ")
            meanings |= dict.fromkeys(names, entry[2])
        elif line.strip():
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    return meanings
