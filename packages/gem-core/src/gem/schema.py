"""`check`: whether a value that was read from JSON has the type that its place in a file demands.

A type is a Python annotation: `int`, `float`, `str`, `bool`, `None`, `Any`, `Literal`, unions,
`list`, `tuple`, `dict` with text keys, dataclasses and `TypedDict`s. A JSON object of a dataclass
has its fields and no others; one of a `TypedDict` may have further ones.

Numbers are stricter than in Python: a `float` is finite and may be written as an integer, a `bool`
is not a number, and an integer has at most 128 bits.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

_LARGEST = 2**128
_SHOWN = 60
_NUMBER = float | None
NumberOrNan = typing.NewType("NumberOrNan", float)
"""A `float` that need not be finite."""


class WrongTypeError(ValueError):
    """A value has another type than its place demands; the message names place and value."""


def check(value: Any, wanted: Any, place: str = "") -> None:
    """Raise an error if a value is not of a type.

    Args:
        value: As `json.loads` returns it.
        wanted: The annotation.
        place: Dotted key of the value, for the message.

    Raises:
        WrongTypeError: It is not.
    """
    if wanted is Any:
        return
    origin = typing.get_origin(wanted)
    if origin in (typing.Union, types.UnionType):
        _one_of(value, typing.get_args(wanted), place)
    elif origin is typing.Literal:
        if not isinstance(value, str) or value not in typing.get_args(wanted):
            raise _wrong(value, " or ".join(map(repr, typing.get_args(wanted))), place)
    elif origin in (list, Sequence) or Ellipsis in typing.get_args(wanted):
        _list(value, typing.get_args(wanted)[0], place)
    elif origin is tuple:
        parts = typing.get_args(wanted)
        if not isinstance(value, list) or len(value) != len(parts):
            raise _wrong(value, f"a list of {len(parts)}", place)
        for index, (each, part) in enumerate(zip(value, parts, strict=True)):
            check(each, part, f"{place}[{index}]")
    elif origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _wrong(value, "an object", place)
        for key, each in value.items():
            check(each, typing.get_args(wanted)[1], _joined(place, key))
    elif is_dataclass(wanted) or typing.is_typeddict(wanted):
        _object(value, wanted, place)
    else:
        _scalar(value, wanted, place)


def _one_of(value: Any, wanted: tuple[Any, ...], place: str) -> None:
    if value is None and type(None) in wanted:
        return
    others = [each for each in wanted if each is not type(None)]
    if len(others) == 1:
        check(value, others[0], place)
        return
    for each in others:
        try:
            check(value, each, place)
        except WrongTypeError:
            continue
        return
    raise _wrong(value, "another type", place)


def _list(value: Any, wanted: Any, place: str) -> None:
    if not isinstance(value, list):
        raise _wrong(value, "a list", place)
    # Lists of tokens are long: where all entries are plain numbers, Python need not look at each.
    found = set(map(type, value))
    if wanted is int and found == {int}:
        if min(value) > -_LARGEST and max(value) < _LARGEST:
            return
    elif wanted in (float, _NUMBER) and found == {float}:
        if all(map(math.isfinite, value)):
            return
    elif wanted is str and found <= {str}:
        return
    for index, each in enumerate(value):
        check(each, wanted, f"{place}[{index}]")


@cache
def _members(wanted: Any) -> tuple[dict[str, Any], frozenset[str], bool]:
    """Return the members' types, the names that are required, and whether others are allowed."""
    hints = typing.get_type_hints(wanted)
    if is_dataclass(wanted):
        needed = [
            f.name for f in fields(wanted) if f.default is MISSING and f.default_factory is MISSING
        ]
        return hints, frozenset(needed), False
    return hints, wanted.__required_keys__, True


def _object(value: Any, wanted: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(value, "an object", place)
    hints, needed, is_open = _members(wanted)
    for name in needed:
        if name not in value:
            raise WrongTypeError(f"{_joined(place, name)} is missing")
    for name, each in value.items():
        if name in hints:
            check(each, hints[name], _joined(place, name))
        elif not is_open:
            raise WrongTypeError(f"{_joined(place, name)} is not known")


def _scalar(value: Any, wanted: Any, place: str) -> None:
    if wanted is NumberOrNan:
        if type(value) is float:
            return
        wanted = float
    if wanted is float:
        if type(value) is float and math.isfinite(value):
            return
        if type(value) is int and abs(value) < _LARGEST:
            return
        raise _wrong(value, "a finite number", place)
    if wanted is int and type(value) is int and abs(value) >= _LARGEST:
        raise _wrong(value, "an integer of at most 128 bits", place)
    if type(value) is not wanted:
        raise _wrong(value, _NAMES.get(wanted, str(wanted)), place)


_NAMES = {int: "an integer", str: "a text", bool: "true or false", type(None): "null"}


def _wrong(value: Any, wanted: str, place: str) -> WrongTypeError:
    # The digits of an integer may be more than Python converts to text.
    large = type(value) is int and abs(value) >= _LARGEST
    shown = "a larger integer" if large else f"{value!r:.{_SHOWN}}"
    return WrongTypeError(f"{place or 'the line'} must be {wanted}, got {shown}")


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
