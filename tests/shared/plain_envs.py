"""Environments of Gymnasium and PettingZoo, written as their own documentation does."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("ant", "bee", "cat", "dog")


class Spell(gymnasium.Env):  # type: ignore[type-arg]
    """Write the word backwards; one letter too few may be corrected once."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, turns: int = 2) -> None:
        self.observation_space = spaces.Text(200, charset=LETTERS + LETTERS.upper() + " .:!?")
        self.action_space = spaces.Text(10, min_length=1, charset=LETTERS)
        self.render_mode, self.turns = render_mode, turns

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word = (options or {}).get("word") or WORDS[self.np_random.integers(len(WORDS))]
        self.played = 0
        return f"Write backwards: {self.word}", {"letters": len(self.word)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.played += 1
        won = action == self.word[::-1]
        out = self.played >= self.turns
        return "Yes." if won else "No.", float(won), won, out, {}

    def render(self) -> str | None:
        return f"word {self.word}" if self.render_mode == "ansi" else None


class Careless(Spell):
    """Draws from the module `random`, and says nothing at first."""

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        _, info = super().reset(**given)
        self.word = random.choice(WORDS)
        return f"Write backwards: {self.word}", info


class Numbers(gymnasium.Env):  # type: ignore[type-arg]
    """Has no texts."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)


gymnasium.register("test/Spell-v0", entry_point=Spell)
gymnasium.register("test/Careless-v0", entry_point=Careless)
gymnasium.register("test/Numbers-v0", entry_point=Numbers)


class Chain(AECEnv):  # type: ignore[type-arg]
    """Each says a word that begins with the last letter of the word before, or loses."""

    metadata = {"name": "chain_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, words: int = 4) -> None:
        super().__init__()
        self.words = words
        self.possible_agents = ["first", "second"]
        self.render_mode = None

    def observation_space(self, agent: str) -> spaces.Text:
        return spaces.Text(100, charset=LETTERS + " :LTSaw.")

    def action_space(self, agent: str) -> spaces.Text:
        return spaces.Text(8, min_length=1, charset=LETTERS)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = [*self.possible_agents]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.word = random.Random(seed).choice(WORDS)
        self.said = 0
        self.agent_selection = "first"

    def observe(self, agent: str) -> str:
        return f"The last word: {self.word}"

    def step(self, action: str | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        other = "second" if agent == "first" else "first"
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        assert action is not None
        self.said += 1
        if action[0] != self.word[-1]:
            self.rewards = {agent: -1.0, other: 1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        elif self.said == self.words:
            self.truncations = dict.fromkeys(self.agents, True)
        self.word = action
        self.agent_selection = other
        self._accumulate_rewards()


class Same(ParallelEnv):  # type: ignore[type-arg]
    """Both say a word at the same time; the same word wins."""

    metadata = {"name": "same_v0"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.render_mode = None

    def observation_space(self, agent: str) -> spaces.Text:
        return spaces.Text(40, charset=LETTERS + "S .")

    def action_space(self, agent: str) -> spaces.Text:
        return spaces.Text(8, min_length=1, charset=LETTERS)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        self.agents = [*self.possible_agents]
        return dict.fromkeys(self.agents, "Say a word."), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, str]) -> Any:
        won = float(len(set(actions.values())) == 1)
        agents, self.agents = self.agents, []
        ended, cut = dict.fromkeys(agents, True), dict.fromkeys(agents, False)
        seen = dict.fromkeys(agents, "Say no more.")
        return seen, dict.fromkeys(agents, won), ended, cut, {agent: {} for agent in agents}


def env(words: int = 4) -> Chain:
    """As the modules of PettingZoo have it."""
    return Chain(words)
