"""The registry of environment ids: `register`, `spec`, `list_envs`.

Installed packages register theirs through the entry-point group `gem.envs`. `making` makes
environments from the specs.
"""

from __future__ import annotations

import difflib
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

from gem.core import Env, EnvSpec
from gem.errors import ConfigurationError, MissingExtraError, UnknownEnvError
from gem.parts import missing
from gem.plugins import entry_point
from gem.tables import query_values

ENTRY_POINT_GROUP = "gem.envs"


CLIENTS = "gem.clients"
"""Entry-point group of environments whose id is a name, a colon and the address of what plays the
environment: a server, a command, a module."""

_registry: dict[str, EnvSpec] = {}
_registered_by_hand: set[str] = set()
_loaded: set[Callable[[], None]] = set()
_loading_thread: int | None = None
_load_lock = threading.RLock()


def register(id: str, entry_point: str | Callable[..., Env], **kwargs: Any) -> None:
    """Register an environment id; an existing registration is replaced, with a warning.

    A direct call also overrides an installed package's registration of the id, in either order.

    Args:
        id: By convention `family:Name-v<version>[-variant]`.
        entry_point: `"module:Class"` (imported lazily) or a callable returning an `Env`.
        **kwargs: Default parameters of this id.

    Raises:
        ConfigurationError: The entry point is malformed.
    """
    named = isinstance(entry_point, str) and all(entry_point.partition(":"))
    if not named and not callable(entry_point):
        raise ConfigurationError(
            f"entry_point of {id!r} must be 'module:Class' or a callable, got {entry_point!r}"
        )
    # Load only the built-in ids: the calling package may be half imported. Take no lock here: the
    # thread that loads packages may be waiting for the import of the calling module.
    _once(_register_built_in)
    if not _is_loading():
        _registered_by_hand.add(id)
    elif id in _registered_by_hand:
        return
    if id in _registry:
        warnings.warn(
            f"environment id {id!r} is registered again; {entry_point!r} replaces "
            f"{_registry[id].entry_point!r}",
            UserWarning,
            stacklevel=2,
        )
    _registry[id] = EnvSpec(id, entry_point, dict(kwargs))


def list_envs(prefix: str = "") -> list[str]:
    """Return all registered ids that start with `prefix`, sorted."""
    _load()
    return sorted(name for name in list(_registry) if name.startswith(prefix))


def spec(id: str | Mapping[str, Any]) -> EnvSpec:
    """Return the spec of an id, or the one that `EnvSpec.to_dict` wrote.

    The environment of `remote:http://host:port/<id>`, on a server of `python -m gem serve`, and
    that of `openenv:http://host:port`, of any OpenEnv server, need no registration. Neither do
    `agent:<command>?<parameter>=<value>` and `verifiers:<name>?<parameter>=<value>`.

    Raises:
        ConfigurationError: A mapping is not what `EnvSpec.to_dict` writes.
        UnknownEnvError: The id is not registered; the message suggests the nearest ones.
    """
    if not isinstance(id, str):
        try:
            name, kwargs, wrappers = id["id"], dict(id["kwargs"]), tuple(id["wrappers"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"not the spec of an environment: {id!r:.200}") from error
        return replace(spec(name), kwargs=kwargs, wrappers=wrappers)
    _load()
    if id in _registry:
        return _registry[id]
    prefix, _, address = id.partition(":")
    if entry := entry_point(CLIENTS, prefix, "client"):
        # A web address has a query of its own.
        name, _, query = (address, "", "") if "://" in address else address.partition("?")
        parameters = query_values(query, f"environment id {id!r}")
        if "address" in parameters:
            raise ConfigurationError(f"environment id {id!r}: the address stands before the '?'")
        return EnvSpec(f"{prefix}:{name}", entry.value, {"address": name, **parameters})
    if said := missing("client", prefix) or missing("environment", id, list(_registry)):
        raise MissingExtraError(said)
    raise UnknownEnvError(_unknown_message(id))


def is_by_hand(id: str) -> bool:
    """Return whether a direct call of `register` has registered an id, and no package."""
    return id in _registered_by_hand


def _unknown_message(id: str) -> str:
    by_folded = {name.casefold(): name for name in list(_registry)}
    asked = id.casefold()
    close = difflib.get_close_matches(asked, by_folded, n=12, cutoff=0.6)
    # A family's name and a version, which many ids share, bring no two ids near each other.
    near = [each for each in close if _alike(_own_name(asked), _own_name(each))]
    if near:
        meant = ", ".join(by_folded[each] for each in near[:3])
        return f"unknown environment id {id!r}; did you mean {meant}?"
    family = f"{asked.partition(':')[0]}:"
    listed = f"gem.list_envs({family!r})" if any(n.startswith(family) for n in by_folded) else ""
    return f"unknown environment id {id!r}; {listed or 'gem.list_envs()'} names all ids"


def _alike(asked: str, name: str) -> bool:
    begun = len(asked) > 2 and name.startswith(asked)
    return begun or difflib.SequenceMatcher(None, asked, name).ratio() > 0.6


def _own_name(id: str) -> str:
    return re.sub(r"-v[0-9]+", "", id.partition(":")[2] or id)


def _load() -> None:
    """Register the built-in ids and those of installed packages, once per process.

    Thread-safe: other threads wait until all ids are registered.
    """
    _once(_register_built_in)
    _once(_register_packages)


def _once(load: Callable[[], None]) -> None:
    global _loading_thread
    if load in _loaded:
        return
    with _load_lock:
        # Loading calls `register` and `_load` again.
        if load in _loaded or _is_loading():
            return
        _loading_thread = threading.get_ident()
        try:
            load()
        finally:
            _loading_thread = None
        _loaded.add(load)


def _is_loading() -> bool:
    return _loading_thread == threading.get_ident()


def _register_built_in() -> None:
    from gem.envs import register_all

    register_all(register)


def _register_packages() -> None:
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry.load()()
        except BaseException as error:
            # Imported only if needed.
            from gem.foreign import contained, described

            # One broken package must not make all other environments unavailable.
            warnings.warn(
                f"the environments of entry point {entry.name} = {entry.value} are missing: "
                f"{described(contained(error))}",
                RuntimeWarning,
                stacklevel=2,
            )
