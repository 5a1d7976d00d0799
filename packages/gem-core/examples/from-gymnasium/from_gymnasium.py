"""Plays environments of Gymnasium in words; docs/tutorials/from-gymnasium.md goes through it."""

from __future__ import annotations

import random
from typing import Any

import gem
from gem.errors import ResetNeededError


class FromGymnasium(gem.Env):
    """A Gymnasium environment with a finite number of actions, played in words."""

    def __init__(self, env, words, describe=str, max_turns=50, *, seed=None):
        super().__init__(seed=seed)
        self.env, self.words, self.describe, self.max_turns = env, words, describe, max_turns
        self.asked, self.turns = f"Reply with one of: {', '.join(words)}.", None

    def reset(self, seed=None, **options):
        super().reset(seed=seed)
        state, info = self.env.reset(seed=self.rng.randrange(2**31), options=options or None)
        self.turns = 0
        return f"{self.describe(state)}\n{self.asked}", info

    def step(self, action):
        if self.turns is None:
            raise ResetNeededError("the episode has not begun or is over; call reset()")
        self.turns += 1
        told, reward, ended, cut, info = "That is not one of the words.", 0.0, False, False, {}
        if (word := action.strip().lower()) in self.words:
            state, reward, ended, cut, info = self.env.step(self.words.index(word))
            told = self.describe(state)
        cut = not ended and (cut or self.turns >= self.max_turns)
        self.turns = None if ended or cut else self.turns
        info = {**info, "format_error": word not in self.words}
        return f"{told}\n{self.asked}", float(reward), bool(ended), bool(cut), info

    def render(self):
        return f"turn {self.turns}"

    def sample_random_action(self):
        return self.action_rng.choice(self.words)


class Corridor:
    """Shaped like `gymnasium.Env`: walk to the right end of a corridor of random length."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.length, self.place = random.Random(seed).randint(3, 6), 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place = max(0, self.place + (1 if action == 1 else -1))
        there = self.place == self.length
        return self.place, float(there), there, False, {"success": there}


def place(state: int) -> str:
    """Return a place in words."""
    return f"You are {state} steps from the left end."


def corridor(*, seed: int | None = None) -> FromGymnasium:
    """Walk to the right end of a corridor."""
    return FromGymnasium(Corridor(), ["left", "right"], place, 10, seed=seed)


gem.register("mine:Corridor-v0", "from_gymnasium:corridor")
