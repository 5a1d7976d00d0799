"""Wrapper that leaves images out of observations."""

from __future__ import annotations

from typing import Any

from gem.core import Env, Info, Observation, Step, Wrapper


class WithoutImages(Wrapper):
    """Shows the texts of observations only: the control of a task whose answer is in a picture."""

    def __init__(self, env: Env) -> None:
        """Wrap an environment."""
        super().__init__(env)

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Reset the inner environment."""
        observation, info = self.env.reset(seed=seed, **options)
        return _texts(observation), info

    def step(self, action: str) -> Step:
        """Step the inner environment."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return _texts(observation), reward, terminated, truncated, info


def _texts(observation: Observation) -> Observation:
    if isinstance(observation, str):
        return observation
    return [part for part in observation if part["type"] == "text"]
