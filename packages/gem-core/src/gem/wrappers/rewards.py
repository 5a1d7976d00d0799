"""Wrapper that scales and shifts rewards."""

from __future__ import annotations

from gem.core import Env, Step, Wrapper
from gem.parameters import number, positive


class ScaleReward(Wrapper):
    """Multiplies every reward by a positive factor, then adds an offset."""

    def __init__(self, env: Env, factor: float = 1.0, offset: float = 0.0) -> None:
        """Wrap an environment.

        Args:
            env: The environment.
            factor: What rewards are multiplied by.
            offset: What is added to the reward of every turn.

        Raises:
            ConfigurationError: `factor` is not a positive number, or `offset` not a number.
        """
        super().__init__(env)
        self.factor = positive("factor", factor)
        self.offset = number("offset", offset)

    def step(self, action: str) -> Step:
        """Step the inner environment, then scale and shift its reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward * self.factor + self.offset, terminated, truncated, info
