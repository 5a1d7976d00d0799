"""Reads RunSpecs and hardware from TOML files and the command line; documents their keys."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, DataError
from gem.json_lines import parse
from gem.tables import parse_toml
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec

SHIPPED = Path(__file__).with_name("hardware")
"""Folder of the shipped hardware files."""


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> RunSpec:
    """Read and check a RunSpec.

    Args:
        path: A TOML file.
        overrides: `key=value` with a dotted key (`algorithm.gamma=0.9`, `eval.0.episodes=16`) and
            a value in TOML's notation, arrays, tables and quoted texts also in JSON's; any other
            value is a string.

    Raises:
        ConfigurationError: The file cannot be read, is not TOML or is not a RunSpec, or an
            override is malformed; the message names the file and the key.
    """
    path = Path(path)
    data = read_toml(path, "RunSpec")
    try:
        for override in overrides:
            _apply(data, override)
        return RunSpec.from_mapping(data)
    except ConfigurationError as error:
        changed = f" (with {', '.join(overrides)})" if overrides else ""
        raise ConfigurationError(f"{path}{changed}: {error}") from error


def load_hardware(name: str | Path, trainer: str, native: Sequence[str] = ()) -> Hardware:
    """Read and check hardware.

    Args:
        name: A TOML file, or the name of a shipped one: `1xh100`, `8xh100`, `2x8xh100`, `cpu`.
        trainer: Whose native settings are given.
        native: `key=value`, which the trainer gets as they are; a value in TOML's notation, else
            a text.

    Raises:
        ConfigurationError: The file cannot be read or is not hardware, or a native setting is
            malformed; the message names the file and the key.
    """
    path = Path(name)
    if str(name) in (shipped := sorted(file.stem for file in SHIPPED.glob("*.toml"))):
        path = SHIPPED / f"{name}.toml"
    data = read_toml(path, f"hardware (shipped: {', '.join(shipped)})")
    try:
        hardware = Hardware.from_mapping(data)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    settings = {}
    for text in native:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"native setting {text!r} must be key=value")
        settings[key.strip()] = _toml_value(value)
    return hardware.with_native(trainer, settings)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return a TOML file's content.

    Raises:
        ConfigurationError: It cannot be read; the message says `what` it should be.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"no {what} at {path}") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    return parse_toml(content, str(path))


@dataclasses.dataclass(frozen=True)
class Key:
    """Documentation of one setting."""

    name: str
    type: str
    default: str
    """TOML notation of the default; `required` without a default."""
    allowed: str
    """Range or choices; empty without limits."""
    help: str


def reference_keys() -> list[Key]:
    """Return all keys of a RunSpec, in order, from the definition of its dataclasses."""
    return list(_keys(RunSpec, ""))


def hardware_keys() -> list[Key]:
    """Return all keys of a hardware file, likewise."""
    return list(_keys(Hardware, ""))


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"override {override!r} must be key=value")
    *parents, last = key.strip().split(".")
    place: Any = data
    for parent in parents:
        if isinstance(place, list):
            place = place[_index(place, parent, override)]
        elif isinstance(place, dict):
            place = place.setdefault(parent, {})
        else:
            raise ConfigurationError(f"override {override!r}: {parent!r} is not in a table")
    if isinstance(place, list):
        place[_index(place, last, override)] = _toml_value(text)
    elif isinstance(place, dict):
        place[last] = _toml_value(text)
    else:
        raise ConfigurationError(f"override {override!r}: {last!r} is not in a table")


def _index(array: list[Any], text: str, override: str) -> int:
    if not text.isdecimal() or int(text) >= len(array):
        raise ConfigurationError(
            f"override {override!r}: {text!r} is not an entry of an array of {len(array)}"
        )
    return int(text)


def _toml_value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}", "the value")["value"]
    except ConfigurationError:
        if not text.strip().startswith(("[", "{", '"')):
            return text.strip()
    # Sweeps write all values as JSON, whose texts TOML cannot always read. One with a mistake in it
    # is never taken as it is.
    try:
        return parse(text, "the value")
    except DataError as error:
        raise ConfigurationError(
            f"{text!r} is an array, a table or a quoted text in neither TOML nor JSON"
        ) from error


def _keys(part: type[Any], path: str) -> Iterator[Key]:
    hints = typing.get_type_hints(part)
    for field in dataclasses.fields(part):
        hint = hints[field.name]
        item = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None
        named = typing.get_args(hint)[-1] if typing.get_origin(hint) is Mapping else None
        if dataclasses.is_dataclass(hint):
            yield from _keys(typing.cast(type[Any], hint), f"{path}{field.name}.")
        elif dataclasses.is_dataclass(item):
            yield from _keys(typing.cast(type[Any], item), f"{path}{field.name}[].")
        elif dataclasses.is_dataclass(named):
            yield from _keys(typing.cast(type[Any], named), f"{path}{field.name}.<name>.")
        else:
            yield Key(
                path + field.name,
                _type_name(hint),
                _default(field),
                _allowed(field.metadata),
                field.metadata["help"],
            )


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is types.UnionType:
        return _type_name(typing.get_args(hint)[0])
    if typing.get_origin(hint) is tuple:
        return f"array of {_type_name(typing.get_args(hint)[0])}s"
    if typing.get_origin(hint) is not None:
        return "table"
    return {str: "string", int: "integer", float: "number", bool: "boolean"}[hint]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "{}"
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default is None:
        return "none"
    if isinstance(field.default, tuple):
        return str(list(field.default))
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return f'"{field.default}"' if isinstance(field.default, str) else f"{field.default:_}"


def _allowed(limits: Mapping[str, Any]) -> str:
    if limits["choices"]:
        return ", ".join(limits["choices"])
    signs = (("least", "≥"), ("above", ">"), ("most", "≤"), ("below", "<"))
    parts = [f"{sign} {limits[k]:g}" for k, sign in signs if limits[k] is not None]
    if limits["special"] is not None:
        parts.append(f"{limits['special']:g}")
    return ", ".join(parts)
