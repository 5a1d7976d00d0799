"""Environments from ids: parameters checked, tools and wrappers put around."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gem.core import Env, EnvSpec, WrapperLike
from gem.errors import ConfigurationError, UnknownParameterError
from gem.registry import spec

if TYPE_CHECKING:
    from gem.tools import ToolLike


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
        # An environment without wrappers does not import them.
        from gem.wrappers import Checked, ToolEnv, wrap

        env = wrap(env, found.wrappers)
        env = wrap(ToolEnv(env, tools) if tools else env, wrappers)
        if checked:
            # The check is no part of the environment's spec.
            checked_spec = env.spec
            env = Checked(env)
            env.spec = checked_spec
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
