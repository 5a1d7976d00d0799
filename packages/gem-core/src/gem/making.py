"""`make`: makes an environment from an id or spec, checks parameters, adds tools and wrappers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gem.core import Env, EnvSpec, WrapperLike
from gem.errors import ConfigurationError, GemError
from gem.parameters import require_known
from gem.registry import spec

if TYPE_CHECKING:
    from gem.tools import ToolLike


def make(
    id: str | EnvSpec,
    *,
    tools: ToolLike | Sequence[ToolLike] = (),
    wrappers: WrapperLike | Sequence[WrapperLike] = (),
    checked: bool | None = None,
    **overrides: Any,
) -> Env:
    """Make the environment `id`.

    Args:
        id: A registered id (`gem.list_envs()` returns all). Or an environment's `spec`, which is
            made again with its parameters, tools and wrappers.
        tools: Tools that the policy may call, such as `["python"]`; see `gem.tools.make_tools`.
            Calls earn no reward; for paid calls use the tool wrappers of `gem.wrappers`.
        wrappers: Put around the environment and its tools, the last one outermost; see
            `gem.wrappers.wrap`.
        checked: Check every reset and step against the contract; see `gem.wrappers.Checked`. By
            default the environment variable `GEM_CHECKED` decides: 1 checks.
        **overrides: Parameters of the environment, such as `seed`; they override the id's.

    Raises:
        UnknownEnvError: No such id.
        UnknownParameterError: The environment has no such parameter.
        ConfigurationError: A parameter is missing or has a value that is not allowed, or the id's
            entry point cannot be imported or makes no environment.
    """
    found = id if isinstance(id, EnvSpec) else spec(id)
    kwargs = {**found.kwargs, **overrides}
    try:
        entry_point = found.load()
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, GemError):
            raise
        raise ConfigurationError(
            f"environment {found.id!r}: its entry point {found.entry_point!r} cannot be imported: "
            f"{error}"
        ) from error
    require_known(found.id, entry_point, kwargs)
    env: Env = entry_point(**kwargs)
    lacking = [
        name for name in ("reset", "step", "close") if not callable(getattr(env, name, None))
    ]
    if lacking:
        raise ConfigurationError(
            f"environment {found.id!r}: what its entry point {found.entry_point!r} returns has no "
            f"{', '.join(lacking)}; it must be a gem.Env"
        )
    made = EnvSpec(found.id, found.entry_point, kwargs)
    env.unwrapped.spec = made
    # If the entry point returned a wrapper: calling it again makes it, so the spec leaves it out.
    env.spec = made
    if checked is None:
        checked = os.environ.get("GEM_CHECKED") == "1"
    if found.wrappers or tools or wrappers or checked:
        # Imported only if needed.
        from gem.wrappers import Checked, ToolEnv, wrap

        env = wrap(env, found.wrappers)
        env = wrap(ToolEnv(env, tools) if tools else env, wrappers)
        if checked:
            # The spec does not include the check.
            checked_spec = env.spec
            env = Checked(env)
            env.spec = checked_spec
    return env
