"""Wrappers by name, as `gem.make(id, wrappers=[...])` takes them.

`tool_env` is `ToolEnv` with free choice of parameters; the other tool wrappers are presets of it.
`python_tool` and `search_tool` have the rewards of the original GEM, which pay more for calls than
for success: they warn; use `..._no_int_reward` instead.
How much of the past the policy is shown is decided by a context (`gem.rollout.context`), not by a
wrapper.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gem.core import Env, WrapperLike
from gem.errors import ConfigurationError
from gem.parameters import listed, require_known
from gem.specs import imported
from gem.wrappers.checked import Checked
from gem.wrappers.rewards import ScaleReward
from gem.wrappers.tool_env import ToolEnv
from gem.wrappers.tracking import EpisodeTracking, RecordEpisodeStatistics

__all__ = [
    "WRAPPERS",
    "Checked",
    "EpisodeTracking",
    "RecordEpisodeStatistics",
    "ScaleReward",
    "ToolEnv",
    "WrapperLike",
    "wrap",
]

_MAX_TOOL_USES = 5


def _tool(name: str, *, paid: Mapping[str, Any], **fixed: Any) -> Callable[..., Env]:
    """Return a preset of `ToolEnv` with one tool; the preset takes the tool's parameters."""

    def preset(env: Env, **parameters: Any) -> Env:
        tools = [{"name": name, **fixed, **parameters}]
        wrapped = ToolEnv(env, tools, max_tool_uses=_MAX_TOOL_USES, **paid)
        if paid:
            _warn_of_pay(name, sum(paid.values()))
        return wrapped

    return preset


# Cached, as Python's own "once" registry is reset whenever filters change (torch changes them), and
# a rollout makes hundreds of environments.
@functools.cache
def _warn_of_pay(name: str, reward: float) -> None:
    """Warn, once per process, that a preset pays for calls."""
    warnings.warn(
        f"the wrapper '{name}_tool' has the original GEM's rewards: {_MAX_TOOL_USES} calls earn "
        f"{_MAX_TOOL_USES * reward:g} without any success, which as a rule earns 1; "
        f"'{name}_tool_no_int_reward' pays for success alone",
        UserWarning,
        stacklevel=1,
    )


_PYTHON = {"tool_reward": 0.05, "tool_success_reward": 0.25}
_SEARCH = {"tool_reward": 0.3}

WRAPPERS: dict[str, Callable[..., Env]] = {
    "tool_env": ToolEnv,
    "python_tool": _tool("python", paid=_PYTHON, timeout_s=5.0),
    "python_tool_no_int_reward": _tool("python", paid={}, timeout_s=5.0),
    "python_tool_no_int_reward_last_line_error": _tool(
        "python", paid={}, timeout_s=5.0, keep_error_last_line=True
    ),
    "search_tool": _tool("search", paid=_SEARCH, topk=3, timeout_s=5.0),
    "search_tool_no_int_reward": _tool("search", paid={}, topk=3, timeout_s=5.0),
    "episode_tracking": EpisodeTracking,
    "record_episode_statistics": RecordEpisodeStatistics,
    "scale_reward": ScaleReward,
    "checked": Checked,
}
"""Wrappers by name. The presets of one tool take that tool's parameters."""

_CONTEXTS = {
    "concat": "concat",
    "concat_with_action": "concat_with_action",
    "concat_chat": "chat",
    "concat_chat_on_reset": "chat",
}


def wrap(env: Env, wrappers: WrapperLike | Sequence[WrapperLike]) -> Env:
    """Wrap an environment, the last wrapper outermost.

    Args:
        env: The environment.
        wrappers: One or several; a string may hold several names separated by commas.

    Raises:
        ConfigurationError: A wrapper's name is unknown, or a parameter value is not allowed.
        UnknownParameterError: A wrapper does not have one of the parameters.
    """
    for wrapper in listed("wrappers", wrappers, callable):
        env = _function(wrapper)(env)
    return env


def _function(wrapper: WrapperLike) -> Callable[[Env], Env]:
    if isinstance(wrapper, str):
        wrapper = {"name": wrapper}
    if not isinstance(wrapper, Mapping):
        if not callable(wrapper):
            raise ConfigurationError(
                f"a wrapper is a name, a mapping with 'name', or a function, got {wrapper!r:.80}"
            )
        return wrapper
    parameters = dict(wrapper)
    name = parameters.pop("name", None)
    if isinstance(name, str) and ":" in name:
        function = _imported(name)
    elif name in WRAPPERS:
        function = WRAPPERS[name]
    else:
        context = _CONTEXTS.get(str(name))
        hint = (
            f"the context {context!r} takes its place (see gem.rollout.context)"
            if context
            else f"known: {', '.join(map(repr, WRAPPERS))}"
        )
        raise ConfigurationError(f"unknown wrapper {name!r}; {hint}")
    require_known(f"wrapper {name!r}", function, parameters, "env")
    return functools.partial(function, **parameters)


def _imported(name: str) -> Callable[..., Env]:
    try:
        function = imported(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"wrapper {name!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ConfigurationError(f"wrapper {name!r} must be callable, got {function!r:.80}")
    made: Callable[..., Env] = function
    return made
