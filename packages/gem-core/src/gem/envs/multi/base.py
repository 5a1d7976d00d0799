"""What the games of several agents share: boxed moves, news of the others' moves, illegal moves."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from random import Random
from typing import Any

from gem.core import Info, Observation
from gem.envs.games.base import boxed
from gem.errors import ConfigurationError
from gem.grading.braces import boxed_moves
from gem.grading.wrapping import readings
from gem.multi import MultiAgentEnv, MultiStep, require_asked

ILLEGAL_REWARD = -1.0
"""Of the agent whose illegal move ends the match; the others get 0, so that it does not pay to wait
for their mistakes."""

_RETRY = re.compile(r"retry:([1-9][0-9]?)")
_SPACES = re.compile(r"[\s,]+")
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_FLAGS = {"success": False, "format_error": False, "invalid_action": False}


class Match(MultiAgentEnv):
    r"""A game in which the last readable `\boxed{...}` of a text is the move.

    Subclasses implement the underscore methods without a body. Moves are texts in lower case whose
    words one space separates. Every info has the keys `success`, `format_error` and
    `invalid_action`, all bool; the last ones also have `result`.

    Attributes:
        asked: The agents that are to move; empty before the beginning and after the end.
        points: Rewards of each agent so far.
    """

    zero_sum = True

    def __init__(self, *, on_illegal: str = "lose", seed: int | None = None) -> None:
        """Store what is common to all games.

        Args:
            on_illegal: What a move that is illegal or cannot be read leads to: `lose` ends the
                match (-1 for who made it, 0 for the others), `retry:<n>` lets the agent try again,
                n times per turn, before it loses, `random` plays a random legal move instead.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: `on_illegal` is none of these.
        """
        super().__init__(seed=seed)
        retry = _RETRY.fullmatch(on_illegal) if isinstance(on_illegal, str) else None
        if retry is None and on_illegal not in ("lose", "random"):
            raise ConfigurationError(
                f"on_illegal must be 'lose', 'random' or 'retry:<1 to 99>', got {on_illegal!r}"
            )
        self.on_illegal = on_illegal
        self._retries = int(retry[1]) if retry else 0
        self.asked: tuple[str, ...] = ()

    def reset(self, seed: int | None = None) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Begin a match; see `MultiAgentEnv.reset`."""
        self._forget()
        self.begin_episode(seed)
        self.points = dict.fromkeys(self.agents, 0.0)
        self._tries = dict.fromkeys(self.agents, 0)
        self._moves: dict[str, str] = {}
        self._news: dict[str, list[str]] = {agent: [] for agent in self.agents}
        self._start()
        for agent in self.agents:
            self._news[agent].append(self._introduction(agent))
        return self._ask(self._next()), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, str]) -> MultiStep:
        """Let those who were asked act; see `MultiAgentEnv.step`."""
        require_asked(self, self.asked, actions)
        infos: dict[str, Info] = {agent: dict(_FLAGS) for agent in self.agents}
        rewards = dict.fromkeys(self.agents, 0.0)
        again = [agent for agent in self.asked if not self._take(agent, actions[agent], infos)]
        lost = [agent for agent in again if self._tries[agent] > self._retries]
        if lost:
            for agent in lost:
                rewards[agent] = ILLEGAL_REWARD
            self._tell(f"The match is over: {' and '.join(lost)} made no legal move.")
            observations = self._ask(())
        elif again:
            observations = self._ask(tuple(again))
        else:
            moves, self._moves = self._moves, {}
            self._tries = dict.fromkeys(self.agents, 0)
            rewards |= self._play(moves)
            observations = self._ask(self._next())
        for agent in self.agents:
            self.points[agent] += rewards[agent]
            if not observations:
                infos[agent]["success"] = not lost and self._succeeded(agent)
                infos[agent]["result"] = self._result(agent)
        return MultiStep(observations, rewards, not observations, False, infos)

    def render(self, agent: str) -> str:
        """Return what the agent sees of the match."""
        _ = self.episode_key
        return f"{type(self).__name__}, {agent}\n{self._view(agent)}"

    def sample_random_action(self, agent: str, rng: Random | None = None) -> str:
        """Return a random legal move; after the end, any readable one."""
        _ = self.episode_key
        legal = self._options.get(agent) or self._all_moves()
        return boxed((rng or self.action_rng).choice(legal))

    def resample(self, agent: str, rng: Random) -> bool:
        """Nothing is hidden, unless the game says otherwise."""
        return False

    def _take(self, agent: str, action: str, infos: dict[str, Info]) -> bool:
        """Read an agent's move and keep it; return False if there is none."""
        move, fault = self._read(agent, action)
        if fault:
            infos[agent][fault] = True
            why = "cannot be read" if fault == "format_error" else "is not legal"
            if self.on_illegal == "random":
                move = self.rng.choice(self._options[agent])
                self._news[agent].append(f"Your move {why}; {move} was played for you.")
            else:
                self._tries[agent] += 1
                left = self._retries + 1 - self._tries[agent]
                more = f" You may try {left} more time(s)." if left > 0 else ""
                self._news[agent].append(f"Your move {why}.{more}")
                return False
        self._moves[agent] = move
        return True

    def _read(self, agent: str, action: str) -> tuple[str, str]:
        """Return an action's move, and the flag of its fault if it has one."""
        legal = self._options[agent]
        for content in boxed_moves(action):
            moves = [as_move(each) for each in readings(content) if len(each) < 100]
            for move in moves:
                if move in legal:
                    return move, ""
            for move in moves:
                if move in self._all_moves():
                    return move, "invalid_action"
        return "", "format_error"

    def _ask(self, agents: tuple[str, ...]) -> dict[str, Observation]:
        """Return the observations of those who are to move; they are told all news."""
        self.asked = agents
        self._options = {agent: self._legal(agent) for agent in agents}
        observations: dict[str, Observation] = {}
        for agent, legal in self._options.items():
            observations[agent] = self._observed(agent, legal)
            self._news[agent] = []
        return observations

    def _observed(self, agent: str, legal: tuple[str, ...]) -> Observation:
        """Return what an agent that is to move is shown: news, the game, and its legal moves."""
        told = [*self._news[agent], self._view(agent), f"Legal moves: {', '.join(legal)}"]
        return "\n".join([*told, self._asking(agent)])

    def _asking(self, agent: str) -> str:
        """Return the last line of what an agent that is to move is shown."""
        return f"{agent}, enter your move."

    def _result(self, agent: str) -> Observation:
        """Return the last observation of an agent."""
        return "\n".join([*self._news[agent], self._ending(agent)])

    def _introduction(self, agent: str) -> str:
        others = " and ".join(other for other in self.agents if other != agent)
        illegal = {"lose": "loses the match", "random": "is replaced by a random legal one"}
        rule = illegal.get(self.on_illegal, f"can be repeated {self._retries} time(s) a turn")
        return (
            f"You are playing {self._name()} as {agent} against {others}.\n{self._rules(agent)}\n"
            "After thinking, format your move inside \\boxed{...}, for example, "
            f"{boxed(self._all_moves()[0])}. A move that is illegal or cannot be read {rule}."
        )

    def _tell(self, text: str, but: str = "") -> None:
        """Tell all agents, but one."""
        for agent in self.agents:
            if agent != but:
                self._news[agent].append(text)

    def _forget(self) -> None:
        self.asked = ()

    def _succeeded(self, agent: str) -> bool:
        """Whether the agent has won, at the end of a match that no illegal move ended."""
        return self.points[agent] > 0

    def _ending(self, agent: str) -> str:
        """Return the last text for an agent."""
        return f"The match is over. You get {self.points[agent]:g} in total."

    def _name(self) -> str:
        return _WORDS.sub(" ", type(self).__name__)

    @abstractmethod
    def _start(self) -> None:
        """Begin: draw what is random, from `self.rng`."""

    @abstractmethod
    def _rules(self, agent: str) -> str:
        """Return the rules, as told to an agent."""

    @abstractmethod
    def _all_moves(self) -> tuple[str, ...]:
        """Return all moves that can be read; the first one is the example."""

    @abstractmethod
    def _legal(self, agent: str) -> tuple[str, ...]:
        """Return the agent's legal moves; none if it is not to move."""

    @abstractmethod
    def _next(self) -> tuple[str, ...]:
        """Return who is to move; nobody if the match is over."""

    @abstractmethod
    def _view(self, agent: str) -> str:
        """Return what the agent sees now."""

    @abstractmethod
    def _play(self, moves: dict[str, str]) -> dict[str, float]:
        """Make the moves, tell the others, and return rewards; agents left out get 0."""


def as_move(content: str) -> str:
    """Return a text as moves are written: in lower case, its words separated by one space."""
    return _SPACES.sub(" ", content.lower()).strip()


def picked(best: list[Any], rng: Random | None) -> Any:
    """Return one of equally good moves: a random one, or without a stream the first one."""
    return best[0] if rng is None or len(best) == 1 else rng.choice(best)
