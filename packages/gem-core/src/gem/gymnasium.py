"""Environments of GEM under `gymnasium.make` (extra `gymnasium`).

    import gymnasium
    env = gymnasium.make("gem.gymnasium:gem/Env-v0", env_id="game:GuessTheNumber-v0-easy")

Gymnasium imports this module because its name stands before the colon.
"""

from __future__ import annotations

import string
from typing import Any

from gem.errors import ConfigurationError
from gem.making import make
from gem.plugins import extra

_NEEDED = "gymnasium.make needs Gymnasium: pip install 'gem-core[gymnasium]'"
_MOST = 1 << 20
gymnasium: Any = extra("gymnasium", _NEEDED)


class AnyText(gymnasium.spaces.Text):  # type: ignore[misc]
    """Any text; samples are of the characters that a keyboard has."""

    def __init__(self) -> None:
        super().__init__(64, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Whether it is a text."""
        return isinstance(x, str) and len(x) <= _MOST

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)


class Gymnasium(gymnasium.Env):  # type: ignore[misc]
    """A text environment of GEM; observations and actions are any text.

    Attributes:
        gem: The environment of GEM.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, env_id: str, *, render_mode: str | None = None, **params: Any) -> None:
        """Make the environment.

        Args:
            env_id: Id of `gem.list_envs`.
            render_mode: `ansi` or None.
            **params: Of `gem.make`.

        Raises:
            GemError: See `gem.make`.
        """
        self.gem = make(env_id, **params)
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; `options` are those of the environment's `reset`."""
        super().reset(seed=seed)
        observation, info = self.gem.reset(seed=seed, **(options or {}))
        return _text(observation), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn."""
        observation, reward, terminated, truncated, info = self.gem.step(action)
        return _text(observation), reward, terminated, truncated, info

    def render(self) -> str | None:
        """Return the state as text."""
        return self.gem.render() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the environment."""
        self.gem.close()


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise ConfigurationError("an observation has images; gem.make shows them, Gymnasium cannot")
    return observation


gymnasium.register("gem/Env-v0", entry_point=Gymnasium)
