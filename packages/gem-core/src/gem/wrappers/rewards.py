"""Wrappers that change rewards."""

from __future__ import annotations

from gem.contract import succeeded
from gem.core import Env, Step, Wrapper
from gem.parameters import number, positive


class ScaleReward(Wrapper):
    """Multiplies every reward by a positive factor, then adds an offset.

    Where the environment leaves it to the reward whether an episode succeeded, its own reward
    decides: the last step's info then has `success`.
    """

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
        said = info.get("success") is not None or info.get("correct") is not None
        if (terminated or truncated) and not said:
            info = {**info, "success": succeeded(reward, terminated, info)}
        return observation, reward * self.factor + self.offset, terminated, truncated, info


class OutcomeReward(Wrapper):
    """Pays 1 at the end of an episode that succeeded, and 0 in every other turn.

    For an environment whose rewards for progress train something else than success: in Minesweeper
    a player that opens nearly all cells and then a mine earns nearly as much as one that wins. What
    counts as success is what metrics show, `gem.contract.succeeded`.
    """

    def step(self, action: str) -> Step:
        """Step the inner environment, then replace its reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        over = terminated or truncated
        paid = float(over and succeeded(reward, terminated, info))
        return observation, paid, terminated, truncated, info
