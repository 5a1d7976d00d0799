"""Wrappers by name, as `gem.make(id, wrappers=[...])` takes them.

`tool_env` is what `gem.make(id, tools=[...])` puts around an environment, with rewards for calls.
How much of the past the policy is shown is decided by a context (`gem.rollout.context`), not by a
wrapper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from gem.core import Env, WrapperLike
from gem.errors import ConfigurationError
from gem.parameters import listed, require_known
from gem.specs import imported
from gem.wrappers.checked import Checked
from gem.wrappers.images import WithoutImages
from gem.wrappers.questions import Questions
from gem.wrappers.rewards import OutcomeReward, ScaleReward
from gem.wrappers.tool_env import ToolEnv
from gem.wrappers.tracking import EpisodeTracking, RecordEpisodeStatistics
from gem.wrappers.turns import Attempts, Series

__all__ = [
    "WRAPPERS",
    "Attempts",
    "Checked",
    "EpisodeTracking",
    "OutcomeReward",
    "Questions",
    "RecordEpisodeStatistics",
    "ScaleReward",
    "Series",
    "ToolEnv",
    "WithoutImages",
    "WrapperLike",
    "wrap",
]

WRAPPERS: dict[str, Callable[..., Env]] = {
    "tool_env": ToolEnv,
    "episode_tracking": EpisodeTracking,
    "record_episode_statistics": RecordEpisodeStatistics,
    "scale_reward": ScaleReward,
    "outcome_reward": OutcomeReward,
    "questions": Questions,
    "attempts": Attempts,
    "series": Series,
    "checked": Checked,
    "without_images": WithoutImages,
}
"""Wrappers by name."""

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
