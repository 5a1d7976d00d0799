"""Builds dataclasses of settings from parsed TOML or JSON and checks every key and value.

`setting` declares a field with its help text and limits. `build` makes the dataclass from a
mapping, `check` examines one that was made otherwise; errors name the key as `table.key`.
`assignments` reads the mapping from a command line.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from gem.errors import ConfigurationError, DataError
from gem.json_lines import parse

PartT = TypeVar("PartT")


def setting(
    help: str,
    default: Any = MISSING,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    special: float | None = None,
    choices: tuple[str, ...] | None = None,
    check: Callable[[Any], object] | None = None,
) -> Any:
    """Declare a field; numbers must always be finite.

    Args:
        help: What the setting means.
        default: Value if the key is missing; without a default the key is required.
        least: Lower limit, inclusive.
        above: Lower limit, exclusive.
        most: Upper limit, inclusive.
        below: Upper limit, exclusive.
        special: A value that is allowed outside the limits.
        choices: All allowed values.
        check: Called with the value; raises `ConfigurationError` if it is not allowed.
    """
    metadata = {
        "help": help,
        "least": least,
        "above": above,
        "most": most,
        "below": below,
        "special": special,
        "choices": choices,
        "check": check,
    }
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


# Finding the types is most of what building a spec costs, so a class is asked once.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def build(part: type[PartT], data: Any, path: str = "") -> PartT:
    """Make an instance of `part` from a mapping.

    Args:
        part: A dataclass; each field is declared with `setting` or is such a dataclass.
        data: Keys and values.
        path: Prefix of the keys in messages, such as `"policy."`.

    Raises:
        ConfigurationError: A key is unknown, missing, of the wrong type or not allowed.
    """
    if not isinstance(data, Mapping):
        name = path.rstrip(".") or "the spec"
        raise ConfigurationError(f"{name} must be a table, got {data!r}")
    hints = _hints(part)
    fields = {f.name: f for f in dataclasses.fields(part)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = (
                f"did you mean {path}{near[0]}?" if near else f"known: {', '.join(sorted(fields))}"
            )
            raise ConfigurationError(f"unknown key {path + str(key)!r}; {hint}")
    values = {}
    for name, spec in fields.items():
        if name in data:
            values[name] = _value(hints[name], data[name], path + name, spec.metadata)
        elif spec.default is MISSING and spec.default_factory is MISSING:
            raise ConfigurationError(f"missing key {path + name!r} ({spec.metadata['help']})")
    return part(**values)


def check(part: Any, path: str = "") -> None:
    """Raise `ConfigurationError` if a field of a dataclass has a value that `build` refuses.

    Args:
        part: An instance; each field is declared with `setting` and holds no other dataclass.
        path: Prefix of the keys in messages, such as `"policy."`.
    """
    hints = _hints(type(part))
    for spec in dataclasses.fields(part):
        _value(hints[spec.name], getattr(part, spec.name), path + spec.name, spec.metadata)


def assignments(part: type[Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments `key=value` of a command line into what `build` takes.

    A value is read as JSON or text (`json_or_text`); that of a text stays text (`name=42`), but
    for `null` where None is allowed.

    Args:
        part: A dataclass; unknown keys are left to `build`.
        arguments: Of the command line.

    Raises:
        ConfigurationError: An argument is something else, or a key is given twice.
    """
    hints = _hints(part)
    found: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise ConfigurationError(f"arguments are key=value, got {argument!r}")
        if key in found:
            raise ConfigurationError(f"{key} is given twice")
        hint = hints.get(key)
        plain = hint is str or (hint == (str | None) and text != "null")
        found[key] = text if plain else json_or_text(text)
    return found


def json_or_text(text: str) -> Any:
    """Return the value of a text that is JSON, and any other text as it is."""
    try:
        return parse(text, "the value")
    except DataError:
        return text


def query_values(query: str, what: str) -> dict[str, Any]:
    """Return the values of `key=value&...`; what is valid JSON (`4`, `true`) is parsed as JSON.

    Args:
        query: Percent-encoded where needed; may be empty.
        what: What it is of, for the message.

    Raises:
        ConfigurationError: It is malformed, or a key is repeated.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    values: dict[str, Any] = {}
    for key, text in pairs:
        if key in values:
            raise ConfigurationError(f"{what} names {key!r} twice")
        values[key] = json_or_text(text)
    return values


def parse_toml(text: str | bytes, place: str) -> dict[str, Any]:
    """Return the content of a TOML text.

    Args:
        text: Bytes are UTF-8.
        place: Where the text comes from, for the message.

    Raises:
        ConfigurationError: It is not TOML; the message begins with `place`.
    """
    import tomllib  # of Python 3.11

    try:
        # Editors of Windows begin a file with a byte order mark.
        return tomllib.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except RecursionError:
        raise ConfigurationError(f"{place}: arrays and tables nest too deeply for TOML") from None
    except ValueError as error:  # also a wrong encoding, and integers that are too long
        raise ConfigurationError(f"{place}: cannot be read as TOML: {error}") from error


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a nested mapping to dotted keys: `{"algorithm.gamma": 0.9, "eval.0.name": ...}`."""
    return dict(_leaves(settings, ""))


def filled(value: str) -> None:
    """Raise `ConfigurationError` if a text is empty or blank."""
    if not value.strip():
        raise ConfigurationError("must not be empty")


def plain_values(value: Any, path: str) -> Any:
    """Return a copy of JSON-compatible values, with tuples as lists.

    Settings are passed as JSON to a trainer's Python environment.

    Raises:
        ConfigurationError: JSON has no such value, or it is not finite; the message begins with
            its key, prefixed with `path`.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigurationError(f"{path} has the key {key!r}, which is no text")
        return {key: plain_values(item, f"{path}.{key}") for key, item in value.items()}
    # Not only lists: a trainer's configuration has sequences of its own.
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain_values(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if value is not None and not isinstance(value, str | bool | int | float):
        raise ConfigurationError(
            f"{path} must be a text, number, boolean, array or table, got {value!r}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{path} must be finite, got {value}")
    return value


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}")
    else:
        yield path, value


def _value(hint: Any, value: Any, path: str, limits: Mapping[str, Any]) -> Any:
    if typing.get_origin(hint) is types.UnionType:  # `T | None`
        if value is None:
            return None
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type[Any], hint), value, f"{path}.")
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigurationError(f"{path} must be an array, got {value!r}")
        item = typing.get_args(hint)[0]
        value = tuple(_value(item, entry, f"{path}[{i}]", {}) for i, entry in enumerate(value))
        if limits:
            _check_limits(value, path, limits)
        return value
    if typing.get_origin(hint) is not None:  # Mapping[str, Any], or of dataclasses
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{path} must be a table, got {value!r}")
        item = typing.get_args(hint)[1]
        if dataclasses.is_dataclass(item):
            made = typing.cast(type[Any], item)
            return {name: build(made, each, f"{path}.{name}.") for name, each in value.items()}
        return plain_values(value, path)
    if hint is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            raise ConfigurationError(f"{path} must be finite, got an integer above 1e308") from None
    if type(value) is not hint:
        raise ConfigurationError(f"{path} must be of type {hint.__name__}, got {value!r}")
    if limits:  # none: a field that is not declared with `setting`
        _check_limits(value, path, limits)
    return value


def _check_limits(value: Any, path: str, limits: Mapping[str, Any]) -> None:
    if limits["special"] is not None and value == limits["special"]:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{path} must be finite, got {value}")
    besides = "" if limits["special"] is None else f" or {limits['special']:g}"
    for name, words, holds in _LIMITS:
        limit = limits[name]
        if limit is not None and not holds(value, limit):
            raise ConfigurationError(f"{path} must be {words} {limit:g}{besides}, got {value}")
    choices = limits["choices"]
    if choices is not None and value not in choices:
        raise ConfigurationError(f"{path} must be one of {', '.join(choices)}, got {value!r}")
    if limits["check"] is not None:
        try:
            limits["check"](value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from None


_LIMITS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("least", "at least", lambda value, limit: value >= limit),
    ("above", "above", lambda value, limit: value > limit),
    ("most", "at most", lambda value, limit: value <= limit),
    ("below", "below", lambda value, limit: value < limit),
)
