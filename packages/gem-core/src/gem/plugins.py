"""What installed packages provide: classes and objects under a name (entry points), extras."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from gem.errors import ConfigurationError, MissingExtraError

_T = TypeVar("_T")


def installed(group: str) -> list[str]:
    """Return the names in an entry-point group, sorted; nothing is imported."""
    return sorted({entry.name for entry in entry_points(group=group)})


def entry_point(group: str, name: str, what: str) -> EntryPoint | None:
    """Return the entry point of a name, None if no installed package has it; nothing is imported.

    Raises:
        ConfigurationError: Several packages provide it: the order of `sys.path` would choose. The
            message calls it a `what`.
    """
    # One package may be found twice.
    entries = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(entries) > 1:
        raise ConfigurationError(
            f"{what} {name!r} is provided several times, by {', '.join(entries)}; uninstall all "
            "but one"
        )
    return next(iter(entries.values()), None)


def load(group: str, name: str, base: type[_T], built_in: Iterable[str]) -> type[_T]:
    """Import the class that an installed package provides under a name.

    Args:
        group: The entry-point group.
        name: The name of the entry point; no other one is imported.
        base: The class that it must derive from.
        built_in: Names that the message lists besides those of installed packages.

    Raises:
        ConfigurationError: No installed package has the name, or several have; or what it names
            cannot be imported or is no subclass of `base`.
    """
    kind, value = _loaded(group, name, base, built_in)
    if isinstance(kind, type) and issubclass(kind, base):
        return kind
    raise ConfigurationError(
        f"{base.__name__.lower()} {name!r} = {value} is no subclass of "
        f"{base.__module__}.{base.__name__}"
    )


def load_object(group: str, name: str, kind: type[_T], built_in: Iterable[str]) -> _T:
    """Import the object that an installed package provides under a name.

    Args:
        group: The entry-point group.
        name: The name of the entry point; no other one is imported.
        kind: The class of the object.
        built_in: Names that the message lists besides those of installed packages.

    Raises:
        ConfigurationError: No installed package has the name, or several have; or what it names
            cannot be imported or is not a `kind`.
    """
    loaded, value = _loaded(group, name, kind, built_in)
    if isinstance(loaded, kind):
        return loaded
    raise ConfigurationError(
        f"{kind.__name__.lower()} {name!r} = {value} must be a {kind.__module__}.{kind.__name__}, "
        f"got {loaded!r:.200}"
    )


def _loaded(group: str, name: str, kind: type, built_in: Iterable[str]) -> tuple[Any, str]:
    """Return what an entry point names, and its text `module:attribute`."""
    what = kind.__name__.lower()
    entry = entry_point(group, name, what)
    if entry is None:
        known = ", ".join(map(repr, [*built_in, *installed(group)]))
        raise ConfigurationError(f"unknown {what} {name!r}; known: {known}")
    try:
        return entry.load(), entry.value
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{what} {name!r} = {entry.value}: {error}") from error


def extra(module: str, needed: str) -> Any:
    """Import a module of an optional dependency.

    Raises:
        MissingExtraError: It is not installed; the message is `needed`, which says how to install
            it, and why the import failed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{needed} ({error})") from error
