"""Negotiation: two agents divide items by alternating offers; each knows its own values only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from random import Random
from typing import ClassVar, TypeAlias

from gem.core import Observation
from gem.envs.games.base import boxed
from gem.envs.multi.base import Match
from gem.multi import MultiAgentEnv, Opponent
from gem.parameters import integer

KINDS = ("books", "hats", "balls")
TOTAL = 10
"""What all items together are worth to each agent."""

_MOST = 3
_ACCEPT, _LEAVE = "accept", "leave"
# The share of the total that the script wants of the first offer, and when no offer is left.
_FIRST, _LAST = 9, 4

Split: TypeAlias = "tuple[int, ...]"
"""A number for each of `KINDS`: items, or what one of them is worth."""


def _conceder(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    assert isinstance(game, Negotiation)
    standing = game._rest(game.offers[-1]) if game.offers else None
    return boxed(game._conceded(game.values[agent], len(game.offers), standing))


class Negotiation(Match):
    """Two agents divide books, hats and balls, which are worth something else to each of them.

    In turn, an agent offers a division, accepts the other's last offer or leaves. After the last
    offer the other can only accept or leave. Rewards: the agent's share of what all items are worth
    to it, 10 points, if there is a deal, else 0. The setting is that of Lewis et al. 2017 (arXiv
    1706.05125), section 2, with offers instead of a dialogue: the other is told nothing else.
    An episode is won by at least half of the 10 points. `opponent` can also be `conceder` (the
    default): it accepts what is worth a number of points to it that falls from 9 to 4 with the
    offers made, and offers what leaves the other the most items. The oracle infers the values of a
    conceder from its offers, claims everything until its own last offer, and then offers what earns
    most on average. No equilibrium is known to it.

    Attributes:
        counts: How many books, hats and balls there are.
        values: What one of each is worth, by agent.
        offers: What the agent who made each offer would keep.
    """

    agents = ("first", "second")
    zero_sum = False
    opponents: ClassVar[Mapping[str, Opponent]] = {"conceder": _conceder}
    default_opponent = "conceder"

    def __init__(
        self, offers: int = 6, *, on_illegal: str = "lose", seed: int | None = None
    ) -> None:
        """Set the parameters.

        Args:
            offers: Most offers of a match, of both agents together.
            on_illegal: See `Match`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(on_illegal=on_illegal, seed=seed)
        self.most_offers = integer("offers", offers, 1, 20)

    def worth(self, agent: str, items: Split) -> int:
        """Return what items are worth to an agent, in points."""
        return _worth(self.values[agent], items)

    def _start(self) -> None:
        self.counts = self.rng.choice(_all_counts())
        first = self.rng.choice(_all_values(self.counts))
        second = self.rng.choice(_values_beside(self.counts, first))
        self.values = dict(zip(self.agents, (first, second), strict=True))
        self.offers: list[Split] = []
        self._turn = 0
        self._over = False

    def _rules(self, agent: str) -> str:
        return (
            "You divide items. What an item is worth differs between you and the other, and nobody "
            f"is told the other's values; all items together are worth {TOTAL} points to each, and "
            "each kind is worth something to one of you at least. In turn, first begins, a player "
            f"offers a division, accepts the other's last offer or leaves. After {self.most_offers}"
            " offers one can only accept or leave. Without a deal nobody gets anything. A move is "
            f"{_ACCEPT}, {_LEAVE}, or an offer: how many {', '.join(KINDS)} you keep."
        )

    def _all_moves(self) -> tuple[str, ...]:
        return (*map(_text, product(range(_MOST + 1), repeat=len(KINDS))), _ACCEPT, _LEAVE)

    def _next(self) -> tuple[str, ...]:
        return () if self._over else (self.agents[self._turn % 2],)

    def _legal(self, agent: str) -> tuple[str, ...]:
        if agent not in self._next():
            return ()
        offers = map(_text, _splits(self.counts)) if len(self.offers) < self.most_offers else ()
        return (*offers, *((_ACCEPT,) if self.offers else ()), _LEAVE)

    def _view(self, agent: str) -> str:
        kinds = zip(KINDS, self.counts, self.values[agent], strict=True)
        lines = [f"{count} {kind}, worth {value} each to you" for kind, count, value in kinds]
        left = self.most_offers - len(self.offers)
        return "\n".join([*lines, f"Offers left: {left}."])

    def render(self, agent: str) -> str:
        """Return what the agent sees, and all offers so far."""
        made = (
            f"{self.agents[turn % 2]} keeps {_text(kept)}" for turn, kept in enumerate(self.offers)
        )
        return "\n".join([super().render(agent), *made])

    def _play(self, moves: dict[str, str]) -> dict[str, float]:
        [(agent, move)] = moves.items()
        self._turn += 1
        if move not in (_ACCEPT, _LEAVE):
            kept = tuple(map(int, move.split()))
            self.offers.append(kept)
            self._tell(
                f"{agent} offers to keep {_listed(kept)}; you would get "
                f"{_listed(self._rest(kept))}.",
                but=agent,
            )
            return {}
        self._over = True
        if move == _LEAVE:
            self._tell(f"{agent} leaves: no deal.")
            return {}
        self._tell(f"{agent} accepts.")
        [other] = set(self.agents) - {agent}
        kept = self.offers[-1]
        got = {other: kept, agent: self._rest(kept)}
        return {each: self.worth(each, items) / TOTAL for each, items in got.items()}

    def _succeeded(self, agent: str) -> bool:
        return self.points[agent] >= 0.5

    def _ending(self, agent: str) -> str:
        return f"The match is over. You get {self.points[agent] * TOTAL:g} of {TOTAL} points."

    def _rest(self, items: Split) -> Split:
        return tuple(all - some for all, some in zip(self.counts, items, strict=True))

    def resample(self, agent: str, rng: Random) -> bool:
        """Give the other agent values that are possible beside the agent's own."""
        [other] = set(self.agents) - {agent}
        self.values[other] = rng.choice(_values_beside(self.counts, self.values[agent]))
        return True

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Return the move that earns most on average against a conceder; see the class."""
        _ = self.episode_key
        if agent not in self._next():
            return self.sample_random_action(agent)
        made = len(self.offers)
        standing = self.worth(agent, self._rest(self.offers[-1])) if self.offers else 0
        if made >= self.most_offers:
            return boxed(_ACCEPT)
        # The agent's own last offer is made when so many are there.
        last = made + (self.most_offers - 1 - made) // 2 * 2
        types = self._types(agent)
        expected = {
            kept: sum(self._earned(agent, kept, last, type) for type in types) / len(types)
            for kept in _splits(self.counts)
        }
        best = max(expected, key=lambda kept: expected[kept])
        if self.offers and standing >= expected[best]:
            return boxed(_ACCEPT)
        return boxed(_text(best if made == last else self.counts))

    def _types(self, agent: str) -> list[Split]:
        """Return the values with which a conceder in the other seat would have played as it did."""
        possible = list(_values_beside(self.counts, self.values[agent]))
        own = self.agents.index(agent)
        for turn, kept in enumerate(self.offers):
            if turn % 2 == own:
                continue
            standing = self._rest(self.offers[turn - 1]) if turn else None
            move = _text(kept)
            agreeing = [each for each in possible if self._conceded(each, turn, standing) == move]
            # Not a conceder: what it does says nothing that is known here.
            possible = agreeing or possible
        return possible

    def _earned(self, agent: str, kept: Split, made: int, type: Split) -> int:
        """Return what an agent's own last offer earns if the other is a conceder with values."""
        reply = self._conceded(type, made + 1, self._rest(kept))
        if reply == _ACCEPT:
            return self.worth(agent, kept)
        if reply == _LEAVE:
            return 0
        return self.worth(agent, self._rest(tuple(map(int, reply.split()))))

    def _conceded(self, values: Split, made: int, standing: Split | None) -> str:
        """Return a conceder's move.

        Args:
            values: Its values.
            made: Offers made so far.
            standing: What it is offered; None before the first offer.
        """
        wanted = _FIRST - (_FIRST - _LAST) * made / self.most_offers
        if standing is not None and _worth(values, standing) >= wanted:
            return _ACCEPT
        if made >= self.most_offers:
            return _LEAVE
        good = [kept for kept in _splits(self.counts) if _worth(values, kept) >= wanted]
        return _text(min(good, key=lambda kept: (sum(kept), -_worth(values, kept), kept)))


def _worth(values: Split, items: Split) -> int:
    return sum(value * count for value, count in zip(values, items, strict=True))


@cache
def _splits(counts: Split) -> tuple[Split, ...]:
    """Return what one agent may keep, in all possible ways."""
    return tuple(product(*(range(count + 1) for count in counts)))


@cache
def _all_counts() -> tuple[Split, ...]:
    """Return the items that there may be: 3, 3, 3 cannot be worth `TOTAL`."""
    counts = product(range(1, _MOST + 1), repeat=len(KINDS))
    return tuple(each for each in counts if _all_values(each))


@cache
def _all_values(counts: Split) -> tuple[Split, ...]:
    """Return the values for which all items are worth `TOTAL`, and some values go beside."""
    return tuple(each for each in _summing(counts) if _values_beside(counts, each))


@cache
def _values_beside(counts: Split, own: Split) -> tuple[Split, ...]:
    """Return the values that the other may have: no kind is worth nothing to both."""
    return tuple(
        each
        for each in _summing(counts)
        if all(mine or theirs for mine, theirs in zip(own, each, strict=True))
    )


def _summing(counts: Split) -> Iterator[Split]:
    for values in product(range(TOTAL + 1), repeat=len(counts)):
        if _worth(values, counts) == TOTAL:
            yield values


def _text(items: Split) -> str:
    return " ".join(map(str, items))


def _listed(items: Split) -> str:
    return ", ".join(f"{count} {kind}" for count, kind in zip(items, KINDS, strict=True))
