"""The game trees of small poker games: what `poker` plays and `poker_solver` solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

MOVES = {"k": "check", "b": "bet", "f": "fold", "c": "call", "r": "raise"}
"""Moves by their letters in a history; `/` begins the second round."""


class Node(NamedTuple):
    """A point of the betting."""

    legal: str
    """Letters of the legal moves; "" at the end and where the board card is dealt."""
    player: int
    """Who is to move, 0 or 1."""
    staked: tuple[int, int]
    """Chips that each player has put in."""
    folded: int
    """Who folded, -1 if nobody did."""
    rounds: int
    """Finished rounds of betting."""


@dataclass(frozen=True)
class Rules:
    """A poker game of two players with one private card each, an ante of 1 and fixed bets."""

    deck: tuple[str, ...]
    """Cards by rank, from the lowest to the highest."""
    bets: tuple[int, ...]
    """Size of a bet in each round; before the second round a board card is dealt."""
    most_bets: int
    """Most bets and raises in a round."""

    @property
    def most_chips(self) -> int:
        """The most that a player can lose."""
        return 1 + self.most_bets * sum(self.bets)

    def node(self, history: str) -> Node:
        """Return the point that a history of letters leads to."""
        return _node(self, history)

    def won(self, node: Node, cards: Sequence[str], board: str) -> int:
        """Return the chips that player 0 wins at the end, negative if it loses."""
        if node.folded >= 0:
            return node.staked[1] if node.folded else -node.staked[0]
        one, two = ((card == board, self.deck.index(card)) for card in cards)
        return (one > two) * node.staked[1] - (one < two) * node.staked[0]


@lru_cache(maxsize=1 << 12)
def _node(rules: Rules, history: str) -> Node:
    staked, rounds, folded = [1, 1], 0, -1
    for moves in history.split("/"):
        player, bets, over = 0, 0, False
        for letter in moves:
            if letter in "br":
                staked[player] = staked[1 - player] + rules.bets[rounds]
                bets += 1
            elif letter == "c":
                staked[player] = staked[1 - player]
            elif letter == "f":
                folded = player
            over = letter in "cf" or moves == "kk"
            player = 1 - player
        rounds += over
    more = bets < rules.most_bets
    legal = ("fc" + "r" * more if bets else "k" + "b" * more) if not over else ""
    return Node(legal, player, (staked[0], staked[1]), folded, rounds)


KUHN = Rules(("J", "Q", "K"), (1,), 1)
LEDUC = Rules(("J", "J", "Q", "Q", "K", "K"), (2, 4), 2)
