"""Repeated games of two who move at the same time: prisoner's dilemma, rock-paper-scissors."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from gem.core import Observation
from gem.envs.games.base import boxed
from gem.envs.multi.base import Match
from gem.multi import MultiAgentEnv, Opponent
from gem.parameters import integer

_MOST_ROUNDS = 1_000


class MatrixGame(Match):
    """Two players choose at the same time, `rounds` times; a table says what each pair pays.

    Attributes:
        history: The moves of each finished round, in the order of `agents`.
    """

    agents = ("row", "column")
    payoffs: ClassVar[Mapping[tuple[str, str], tuple[int, int]]]
    """What a pair of moves pays the first and the second player, before scaling."""
    best_payoff: ClassVar[int]
    """The largest payoff: rewards are payoffs over this and the number of rounds."""

    def __init__(
        self, rounds: int = 10, *, on_illegal: str = "lose", seed: int | None = None
    ) -> None:
        """Set the parameters.

        Args:
            rounds: Rounds of a match.
            on_illegal: See `Match`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(on_illegal=on_illegal, seed=seed)
        self.rounds = integer("rounds", rounds, 1, _MOST_ROUNDS)

    def of(self, agent: str) -> list[tuple[str, str]]:
        """Return the agent's own and the other's move of each finished round."""
        return self.history if agent == self.agents[0] else [(b, a) for a, b in self.history]

    def earned(self, agent: str) -> int:
        """Return the sum of the agent's payoffs."""
        place = self.agents.index(agent)
        return sum(self.payoffs[pair][place] for pair in self.history)

    def _start(self) -> None:
        self.history: list[tuple[str, str]] = []

    def _rules(self, agent: str) -> str:
        table = "\n".join(
            f"you {own}, the other {other}: you get {paid}, the other {others}"
            for (own, other), (paid, others) in self.payoffs.items()
        )
        return f"Both players choose at the same time, {self.rounds} times. Points:\n{table}"

    def _all_moves(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(own for own, _ in self.payoffs))

    def _next(self) -> tuple[str, ...]:
        return self.agents if len(self.history) < self.rounds else ()

    def _legal(self, agent: str) -> tuple[str, ...]:
        return self._all_moves() if self._next() else ()

    def _view(self, agent: str) -> str:
        played = len(self.history)
        return f"Points so far: {self.earned(agent)}. Round {played + 1} of {self.rounds}."

    def _play(self, moves: dict[str, str]) -> dict[str, float]:
        one, two = self.agents
        self.history.append((moves[one], moves[two]))
        paid = dict(zip(self.agents, self.payoffs[moves[one], moves[two]], strict=True))
        for agent, other in ((one, two), (two, one)):
            told = f"You chose {moves[agent]}, the other {moves[other]}: you get {paid[agent]}"
            self._news[agent].append(f"{told}, the other {paid[other]}.")
        return {agent: value / self.best_payoff / self.rounds for agent, value in paid.items()}

    def _ending(self, agent: str) -> str:
        return f"The match is over. Your points: {self.earned(agent)}."


def _scripted(game: MultiAgentEnv, agent: str) -> list[tuple[str, str]]:
    assert isinstance(game, MatrixGame)
    return game.of(agent)


def _tit_for_tat(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    history = _scripted(game, agent)
    return boxed(history[-1][1] if history else "cooperate")


def _grim(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    betrayed = any(other == "defect" for _, other in _scripted(game, agent))
    return boxed("defect" if betrayed else "cooperate")


def _always_cooperate(game: MultiAgentEnv, agent: str, seen: Observation, rng: Random) -> str:
    return boxed("cooperate")


def _always_defect(game: MultiAgentEnv, agent: str, seen: Observation, rng: Random) -> str:
    return boxed("defect")


class PrisonersDilemma(MatrixGame):
    """The iterated prisoner's dilemma with the payoffs 5, 3, 1 and 0 and a known number of rounds.

    Rewards: payoffs over 5 and the number of rounds, every round. An episode is won by more than
    cooperation throughout pays. The oracle's equilibrium is the only one of the finite game: always
    defect. `opponent` can also be `tit_for_tat` (the default), `grim`, `always_cooperate` and
    `always_defect`; against the first two the best response cooperates until the last round.
    """

    zero_sum = False
    payoffs: ClassVar[Mapping[tuple[str, str], tuple[int, int]]] = {
        ("cooperate", "cooperate"): (3, 3),
        ("cooperate", "defect"): (0, 5),
        ("defect", "cooperate"): (5, 0),
        ("defect", "defect"): (1, 1),
    }
    best_payoff = 5
    opponents: ClassVar[Mapping[str, Opponent]] = {
        "tit_for_tat": _tit_for_tat,
        "grim": _grim,
        "always_cooperate": _always_cooperate,
        "always_defect": _always_defect,
    }
    default_opponent = "tit_for_tat"

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Defect, the equilibrium of the finite game."""
        _ = self.episode_key
        return boxed("defect")

    def best_response(self, agent: str, opponent: str) -> str:
        """Return the best response to a named opponent; see the class."""
        _ = self.episode_key
        patient = opponent in ("tit_for_tat", "grim") and len(self.history) < self.rounds - 1
        trusted = not (opponent == "grim" and ("defect" in (own for own, _ in self.of(agent))))
        return boxed("cooperate" if patient and trusted else "defect")

    def _succeeded(self, agent: str) -> bool:
        return self.earned(agent) > 3 * self.rounds


_BEATS = {"rock": "scissors", "scissors": "paper", "paper": "rock"}
_BEATEN_BY = {loser: winner for winner, loser in _BEATS.items()}


def _cycle(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    history = _scripted(game, agent)
    return boxed(_BEATEN_BY[history[-1][0]] if history else rng.choice(list(_BEATS)))


def _copy(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    history = _scripted(game, agent)
    return boxed(history[-1][1] if history else rng.choice(list(_BEATS)))


def _repeat(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    history = _scripted(game, agent)
    return boxed(history[-1][0] if history else rng.choice(list(_BEATS)))


def _outcome(own: str, other: str) -> int:
    return (_BEATS[own] == other) - (_BEATS[other] == own)


class RockPaperScissors(MatrixGame):
    """Repeated rock-paper-scissors.

    Rewards: 1 for a won round, -1 for a lost one, over the number of rounds. The oracle's
    equilibrium is to draw uniformly. `opponent` can also be `cycle` (the default: a random first
    move, then each time the move that beats its last one), `copy` (the other's last move) and
    `repeat` (its own). No policy earns anything against `random` and `oracle`.
    """

    payoffs: ClassVar[Mapping[tuple[str, str], tuple[int, int]]] = {
        (one, two): (_outcome(one, two), _outcome(two, one)) for one in _BEATS for two in _BEATS
    }
    best_payoff = 1
    opponents: ClassVar[Mapping[str, Opponent]] = {
        "cycle": _cycle,
        "copy": _copy,
        "repeat": _repeat,
    }
    default_opponent = "cycle"

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Draw uniformly, the equilibrium."""
        return self.sample_random_action(agent, rng)

    def best_response(self, agent: str, opponent: str) -> str:
        """Return the move that beats the one to come; the first round is a guess."""
        _ = self.episode_key
        if not self.history:
            return boxed("rock")
        own, other = self.of(agent)[-1]
        to_come: dict[str, Any] = {"cycle": _BEATEN_BY[other], "copy": own, "repeat": other}
        return boxed(_BEATEN_BY[to_come.get(opponent, other)])
