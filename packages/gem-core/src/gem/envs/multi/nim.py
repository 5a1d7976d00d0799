"""Nim: players take from piles in turn; the oracle knows Bouton's theory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import xor
from random import Random

from gem.envs.games.base import boxed
from gem.envs.multi.base import Match, picked
from gem.errors import ConfigurationError
from gem.parameters import flag, integer

_PILES, _MOST = 6, 9


class Nim(Match):
    """Piles of stones: a move takes any number from one pile; who takes the last stone wins.

    Rewards: 1 for the winner, -1 for the loser. The oracle is exact (Bouton, "Nim, a game with a
    complete mathematical theory", 1901): it wins whenever the position can be won.

    Attributes:
        piles: Stones of each pile now.
    """

    agents = ("first", "second")

    def __init__(
        self,
        piles: Sequence[int] | None = None,
        misere: bool = False,
        *,
        on_illegal: str = "lose",
        seed: int | None = None,
    ) -> None:
        """Set the parameters.

        Args:
            piles: Stones of each pile, 1 to 9; at least two piles, at most six. None draws three
                piles of 1 to 7 at every reset.
            misere: Whether who takes the last stone loses.
            on_illegal: See `Match`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(on_illegal=on_illegal, seed=seed)
        if piles is not None:
            if not isinstance(piles, list | tuple) or not 2 <= len(piles) <= _PILES:
                raise ConfigurationError(f"piles must be 2 to {_PILES} numbers, got {piles!r}")
            piles = [integer("piles", pile, 1, _MOST) for pile in piles]
        self._given = piles
        self.misere = flag("misere", misere)

    def _start(self) -> None:
        self.piles = list(self._given or (self.rng.randint(1, 7) for _ in range(3)))
        self._moved = 0

    def _rules(self, agent: str) -> str:
        last = "loses" if self.misere else "wins"
        return (
            "Players take turns; first begins. A move takes one stone or more from one pile. Who "
            f"takes the last stone of all {last}. A move is the number of a pile, counted from 1, "
            "and the number of stones to take."
        )

    def _all_moves(self) -> tuple[str, ...]:
        piles = range(1, len(self.piles) + 1)
        return tuple(f"{pile} {count}" for pile in piles for count in range(1, _MOST + 1))

    def _next(self) -> tuple[str, ...]:
        return (self.agents[self._moved % 2],) if any(self.piles) else ()

    def _legal(self, agent: str) -> tuple[str, ...]:
        if agent not in self._next():
            return ()
        return tuple(
            f"{place} {count}"
            for place, pile in enumerate(self.piles, 1)
            for count in range(1, pile + 1)
        )

    def _view(self, agent: str) -> str:
        return f"Piles: {' '.join(map(str, self.piles))}"

    def _play(self, moves: dict[str, str]) -> dict[str, float]:
        [(agent, move)] = moves.items()
        pile, count = map(int, move.split())
        self.piles[pile - 1] -= count
        self._moved += 1
        self._tell(f"{agent} takes {count} from pile {pile}.", but=agent)
        if any(self.piles):
            return {}
        sign = -1.0 if self.misere else 1.0
        return {each: sign if each == agent else -sign for each in self.agents}

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Return a winning move if there is one, else take one stone of a largest pile."""
        _ = self.episode_key
        legal = self._legal(agent)
        if not legal:
            return self.sample_random_action(agent)
        best = [move for move in legal if self._is_lost(*map(int, move.split()))]
        if not best:
            largest = self.piles.index(max(self.piles)) + 1
            best = [f"{largest} 1"]
        return boxed(picked(best, rng))

    def _is_lost(self, pile: int, count: int) -> bool:
        """Whether the position after a move is lost for who is to move then."""
        left = [stones - count * (place == pile) for place, stones in enumerate(self.piles, 1)]
        if self.misere and max(left) <= 1:
            return sum(left) % 2 == 1
        return reduce(xor, left) == 0
