"""Environments of Gymnasium (extra `gymnasium`) whose observations and actions are texts."""

from __future__ import annotations

from typing import Any

from gem.contract import refusal
from gem.core import Env, Info, Observation, Step, reset_options
from gem.errors import ConfigurationError, UnknownParameterError
from gem.parameters import text
from gem.plugins import extra

NEEDED = "environments of Gymnasium need it: pip install 'gem-core[gymnasium]'"


class GymEnv(Env):
    """An environment of Gymnasium as it is, `gym:EnvId` or `gym:module:EnvId`.

    Spaces must be `gymnasium.spaces.Text`. An action that its space does not contain ends the
    episode with reward 0 and `info["invalid_action"]`; the environment does not see it. Further
    parameters go to `gymnasium.make`. There is no oracle.

    The environment must tell all that the policy needs in its observations, and draw from
    `np_random` only; `gem check` says where it does not.
    """

    def __init__(self, address: str, *, seed: int | None = None, **params: Any) -> None:
        """Make the environment.

        Args:
            address: Gymnasium's id, with a module before it that registers it.
            seed: Seed of the first `reset` that is not given one.
            **params: Of `gymnasium.make`.

        Raises:
            ConfigurationError: Gymnasium does not know the id, or a space is not of texts.
            UnknownParameterError: The environment does not take a parameter.
            MissingExtraError: Gymnasium is not installed.
        """
        super().__init__(seed=seed)
        gymnasium = extra("gymnasium", NEEDED)
        try:
            self.env = gymnasium.make(text("address", address), **params)
        except TypeError as error:
            raise UnknownParameterError(f"gym:{address} cannot be made: {error}") from error
        except (gymnasium.error.Error, ImportError, ValueError) as error:
            raise ConfigurationError(f"gym:{address} cannot be made: {error}") from error
        check_text(f"gym:{address}", "observation", self.env.observation_space)
        check_text(f"gym:{address}", "action", self.env.action_space)
        self._over = True
        self._seen = ""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode; the first one of a seed is Gymnasium's of that seed.

        Args:
            seed: See `Env.reset`.
            **options: Of the environment.
        """
        given = reset_options(options)
        self._forget()
        super().reset(seed=seed)
        base, episode = self.episode_key
        plain = episode == 0 and base >= 0
        self._seen, info = self.env.reset(
            seed=base if plain else self.rng.getrandbits(31), options=given or None
        )
        self._over = False
        return self._seen, dict(info)

    def step(self, action: str) -> Step:
        """Play one turn; spaces around the action do not count."""
        if self._over or not isinstance(action, str):
            raise refusal(type(self).__name__, self._over, action)
        space = self.env.action_space
        played = action if space.contains(action) else action.strip()
        if not space.contains(played):
            self._over = True
            said = f"Not an action: {describe(space)}."
            return said, 0.0, True, False, {"invalid_action": True, "success": False}
        self._seen, reward, terminated, truncated, info = self.env.step(played)
        self._over = bool(terminated or truncated)
        return self._seen, float(reward), terminated, truncated and not terminated, dict(info)

    def render(self) -> str:
        """Return the text that the environment renders, else the last observation."""
        _ = self.episode_key
        rendered = self.env.render() if self.env.render_mode == "ansi" else None
        return rendered if isinstance(rendered, str) else self._seen

    def sample_random_action(self) -> str:
        """Return a random action of its space."""
        self.env.action_space.seed(self.action_rng.getrandbits(31))
        return str(self.env.action_space.sample())

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _forget(self) -> None:
        self._over = True


def check_text(name: str, what: str, space: Any) -> None:
    """Raise `ConfigurationError` unless a space of an environment is one of texts."""
    spaces = extra("gymnasium.spaces", NEEDED)
    if not isinstance(space, spaces.Text):
        raise ConfigurationError(
            f"{name}: the {what} space must be gymnasium.spaces.Text, it is {space!r:.200}; wrap "
            "the environment so that it speaks"
        )


def describe(space: Any) -> str:
    """Return what a space of texts contains, in words."""
    characters = "".join(sorted(space.character_set))
    shown = characters if len(characters) <= 100 else f"{characters[:100]} and others"
    return f"it has {space.min_length} to {space.max_length} of the characters {shown!r}"
