"""Environments of `vector.py`: `Wait` for GEM, the original and Gymnasium alike, `Walk` for GEM."""

from __future__ import annotations

import time
from typing import Any

try:
    from gem.core import Env
except ImportError:
    from gymnasium import Env


class Wait(Env):
    """Answers after a while, as one that calls a tool or a judge; the episode never ends."""

    def __init__(self, wait_s: float = 0.0, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.wait_s = wait_s

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return "start", {}

    def step(self, action: str) -> Any:
        if self.wait_s:
            time.sleep(self.wait_s)
        return "observation", 0.0, False, False, {}


class Walk(Wait):
    """Shows numbers that depend on its seed and on all actions; ends after some turns."""

    def __init__(self, wait_s: float = 0.0, turns: int = 20, *, seed: int | None = None) -> None:
        super().__init__(wait_s, seed=seed)
        self.turns = turns

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = self.rng.randrange(10**6)
        self.turn = 0
        return f"start {self.at}", {}

    def step(self, action: str) -> Any:
        super().step(action)
        self.turn += 1
        self.at = (self.at * 31 + len(action) + self.rng.randrange(10**6)) % 10**6
        return f"at {self.at}", self.at / 10**6, self.turn >= self.turns, False, {}


def gymnasium_wait(wait_s: float) -> Env:
    """Return a `Wait` with the spaces that Gymnasium asks for."""
    from gymnasium import spaces

    env = Wait(wait_s)
    env.observation_space = env.action_space = spaces.Text(16)
    return env
