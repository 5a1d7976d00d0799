"""Environment ids: register, make and list them; third parties join through `gem.envs`."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from gem.core import Env
from gem.errors import ConfigurationError, UnknownEnvError, UnknownParameterError
from gem.specs import EnvSpec

if TYPE_CHECKING:
    from gem.tools import ToolLike
    from gem.wrappers import WrapperLike

ENTRY_POINT_GROUP = "gem.envs"


_registry: dict[str, EnvSpec] = {}
_registered_by_hand: set[str] = set()
_built_in_loaded = False
_packages_loaded = False
_loading_thread: int | None = None
_load_lock = threading.RLock()


def register(id: str, entry_point: str | Callable[..., Env], **kwargs: Any) -> None:
    """Register an environment id; one that is taken is replaced, with a warning.

    A registration by hand also replaces that of an installed package, whichever comes first.

    Args:
        id: By convention `family:Name-v<version>[-variant]`.
        entry_point: `"module:Class"` (imported lazily) or a callable returning an `Env`.
        **kwargs: Default parameters of this id.

    Raises:
        ConfigurationError: The entry point is malformed.
    """
    if isinstance(entry_point, str):
        module, _, attribute = entry_point.partition(":")
        if not module or not attribute:
            raise ConfigurationError(
                f"entry_point of {id!r} must be 'module:Class' or a callable, got {entry_point!r}"
            )
    elif not callable(entry_point):
        raise ConfigurationError(
            f"entry_point of {id!r} must be 'module:Class' or a callable, got {entry_point!r}"
        )
    # Not the packages: the one that is registering may be half imported. Nor under the lock: the
    # thread that loads packages may be waiting for the module that is registering here.
    _load_built_in()
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


def spec(id: str) -> EnvSpec:
    """Return the spec of an id.

    Raises:
        UnknownEnvError: The id is not registered; the message suggests the nearest ones.
    """
    _load()
    try:
        return _registry[id]
    except KeyError:
        raise UnknownEnvError(_unknown_message(id)) from None


def make(
    id: str | EnvSpec = "",
    *,
    env_id: str = "",
    tools: ToolLike | Sequence[ToolLike] = (),
    wrappers: WrapperLike | Sequence[WrapperLike] = (),
    checked: bool | None = None,
    **overrides: Any,
) -> Env:
    """Make the environment `id`.

    Args:
        id: A registered id; `gem.list_envs()` has them all. Or the `spec` of an environment,
            which is then made again with its parameters, tools and wrappers.
        env_id: The same under the name that the original GEM has for it.
        tools: Tools that the policy may call, such as `["python"]`; see `gem.tools.make_tools`.
            They are unpaid; `wrappers` has others.
        wrappers: Put around the environment and its tools, the last one outermost; see
            `gem.wrappers.wrap`.
        checked: Check every reset and step against the contract; see `gem.wrappers.Checked`. By
            default the environment variable `GEM_CHECKED` decides: 1 checks.
        **overrides: Parameters that replace or complete those of the id, `seed` among them.

    Raises:
        UnknownEnvError: No such id.
        UnknownParameterError: The environment has no such parameter.
        ConfigurationError: A parameter value is not allowed.
    """
    if bool(id) == bool(env_id):
        raise ConfigurationError(
            f"make needs one environment id, got id={id!r} and env_id={env_id!r}"
        )
    found = id if isinstance(id, EnvSpec) else spec(id or env_id)
    kwargs = {**found.kwargs, **overrides}
    entry_point = found.load()
    check_parameters(found.id, entry_point, kwargs)
    env: Env = entry_point(**kwargs)
    made = EnvSpec(found.id, found.entry_point, kwargs)
    env.unwrapped.spec = made
    # An entry point may return a wrapper, which the spec then makes again without being told.
    env.spec = made
    if checked is None:
        checked = os.environ.get("GEM_CHECKED") == "1"
    if found.wrappers or tools or wrappers or checked:
        # Whoever needs none of them does not import them.
        from gem.wrappers import Checked, ToolEnv, wrap

        env = wrap(env, found.wrappers)
        env = wrap(ToolEnv(env, tools) if tools else env, wrappers)
        if checked:
            # How it is looked at is no part of what it is.
            told = env.spec
            env = Checked(env)
            env.spec = told
    return env


def check_parameters(id: str, entry_point: Callable[..., Env], kwargs: Mapping[str, Any]) -> None:
    """Reject keywords that `entry_point` does not take, naming those it does.

    Raises:
        UnknownParameterError: At least one keyword is unknown.
    """
    # Examining a constructor takes longer than most take to run.
    look = _parameters if isinstance(entry_point, Hashable) else _parameters.__wrapped__
    parameters = look(entry_point)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = [name for name in kwargs if name not in parameters]
    if unknown:
        raise UnknownParameterError(
            f"{id} has no parameter {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(sorted(parameters))}"
        )


@functools.lru_cache(maxsize=1024)
def _parameters(entry_point: Callable[..., Env]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(entry_point).parameters


def _unknown_message(id: str) -> str:
    ids = list(_registry)
    by_folded = {name.casefold(): name for name in ids}
    near = difflib.get_close_matches(id.casefold(), by_folded, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(by_folded[n] for n in near)}?" if near else ""
    return f"unknown environment id {id!r}; {hint or 'gem.list_envs() names all ids'}"


def _load() -> None:
    """Register the built-in ids and those of installed packages, once per process.

    Environments are made in many threads at once: the others wait until all ids are there.
    """
    global _packages_loaded
    if _packages_loaded:
        return
    _load_built_in()
    with _load_lock:
        if _packages_loaded or _is_loading():
            return
        with _only_once():
            _register_packages()
        _packages_loaded = True


def _load_built_in() -> None:
    global _built_in_loaded
    if _built_in_loaded:
        return
    with _load_lock:
        if _built_in_loaded or _is_loading():
            return
        from gem.envs import register_all

        with _only_once():
            register_all()
        _built_in_loaded = True


@contextlib.contextmanager
def _only_once() -> Iterator[None]:
    """Mark this thread as the one that loads: it comes to `register` and `_load` again."""
    global _loading_thread
    _loading_thread = threading.get_ident()
    try:
        yield
    finally:
        _loading_thread = None


def _is_loading() -> bool:
    return _loading_thread == threading.get_ident()


def _register_packages() -> None:
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry.load()()
        except Exception as error:
            # One broken package must not take everybody's environments away.
            warnings.warn(
                f"the environments of entry point {entry.name} = {entry.value} are missing: "
                f"{type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
