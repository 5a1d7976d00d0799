"""Wrapper that changes the size of rewards."""

from __future__ import annotations

from gem.core import Env, Step, Wrapper
from gem.parameters import positive


class ScaleReward(Wrapper):
    """Multiplies every reward by a positive factor."""

    def __init__(self, env: Env, factor: float) -> None:
        """Wrap an environment.

        Args:
            env: The environment.
            factor: What rewards are multiplied by.

        Raises:
            ConfigurationError: `factor` is no positive number.
        """
        super().__init__(env)
        self.factor = positive("factor", factor)

    def step(self, action: str) -> Step:
        """Step the inner environment and scale its reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward * self.factor, terminated, truncated, info
