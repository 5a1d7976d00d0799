"""Exact numbers about small poker games: equilibria, best responses, exploitability, in chips."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

from gem.envs.multi.poker_rules import KUHN, LEDUC, Rules
from gem.errors import ConfigurationError

Strategy: TypeAlias = Mapping[str, Mapping[str, float]]
"""Probability of each legal letter in each information set (`Poker.infoset`)."""

_LEDUC = Path(__file__).parents[2] / "data" / "leduc.json"


def best_response(rules: Rules, player: int, strategy: Strategy) -> tuple[float, dict[str, str]]:
    """Return what the best response to a strategy wins, and its letter in each information set.

    Args:
        rules: The game.
        player: Who responds, 0 or 1.
        strategy: Of the other player; information sets of `player` are not read.

    Raises:
        ConfigurationError: An information set of the other player is missing.
    """
    counts = Counter(rules.deck)
    answers: dict[str, str] = {}

    def value(history: str, card: str, board: str, reach: dict[str, float]) -> float:
        """Return the response's chips, summed over the other's cards with weights `reach`."""
        node = rules.node(history)
        if node.folded >= 0 or node.rounds == len(rules.bets):
            total = 0.0
            for other, weight in reach.items():
                cards = (card, other) if player == 0 else (other, card)
                total += weight * rules.won(node, cards, board)
            return total if player == 0 else -total
        if not node.legal:
            total = 0.0
            for dealt, count in counts.items():
                weights = {
                    other: weight * (count - (dealt == card) - (dealt == other))
                    for other, weight in reach.items()
                }
                total += value(history + "/", card, dealt, weights)
            return total / (len(rules.deck) - 2)
        if node.player == player:
            values = {each: value(history + each, card, board, reach) for each in node.legal}
            best = max(values, key=lambda letter: values[letter])
            answers[f"{card}{board}:{history}"] = best
            return values[best]
        total = 0.0
        for letter in node.legal:
            weights = {
                other: weight * _chance(strategy, f"{other}{board}:{history}", letter)
                for other, weight in reach.items()
                if weight
            }
            total += value(history + letter, card, board, weights)
        return total

    won = 0.0
    for card, count in counts.items():
        reach = {other: float(n - (other == card)) for other, n in counts.items()}
        won += count * value("", card, "", {other: n for other, n in reach.items() if n})
    return won / (len(rules.deck) * (len(rules.deck) - 1)), answers


def _chance(strategy: Strategy, infoset: str, letter: str) -> float:
    try:
        return strategy[infoset].get(letter, 0.0)
    except KeyError:
        raise ConfigurationError(f"the strategy has no information set {infoset!r}") from None


def exploitability(rules: Rules, strategy: Strategy) -> float:
    """Return the mean of what best responses win against a strategy, over both seats, in chips.

    0 for an equilibrium and above it for any other strategy (NashConv / 2).

    Args:
        rules: The game.
        strategy: Of both players.
    """
    return sum(best_response(rules, player, strategy)[0] for player in (0, 1)) / 2


def infosets(rules: Rules) -> dict[str, str]:
    """Return all information sets, and the legal letters of each."""
    found: dict[str, str] = {}

    def walk(history: str) -> None:
        node = rules.node(history)
        if node.folded >= 0 or node.rounds == len(rules.bets):
            return
        if not node.legal:
            walk(history + "/")
            return
        for card in dict.fromkeys(rules.deck):
            for board in dict.fromkeys(rules.deck) if "/" in history else ("",):
                if not board or card != board or rules.deck.count(card) > 1:
                    found[f"{card}{board}:{history}"] = node.legal
        for letter in node.legal:
            walk(history + letter)

    walk("")
    return found


def tabular(rules: Rules, policy: Callable[[str, str], Mapping[str, float]]) -> Strategy:
    """Return the strategy of a policy: a function of an information set and its legal letters."""
    return {infoset: policy(infoset, legal) for infoset, legal in infosets(rules).items()}


@cache
def uniform(rules: Rules) -> Strategy:
    """Return the strategy that draws uniformly from the legal moves."""
    return tabular(rules, lambda _, legal: {letter: 1 / len(legal) for letter in legal})


@cache
def equilibrium(rules: Rules) -> Strategy:
    """Return an equilibrium: Kuhn's with the first player's parameter 1/3, or the table of Leduc.

    Raises:
        ConfigurationError: There is none for these rules.
    """
    if rules == KUHN:
        # Probability of the bold move, bet or call, in each information set.
        bold = {"J:": 1 / 3, "Q:": 0.0, "K:": 1.0, "J:k": 1 / 3, "Q:k": 0.0, "K:k": 1.0}
        bold |= {"J:b": 0.0, "Q:b": 1 / 3, "K:b": 1.0, "J:kb": 0.0, "Q:kb": 2 / 3, "K:kb": 1.0}
        return tabular(KUHN, lambda key, legal: {legal[0]: 1 - bold[key], legal[1]: bold[key]})
    if rules != LEDUC:
        raise ConfigurationError(f"no equilibrium is known for {rules}")
    table: dict[str, list[float]] = json.loads(_LEDUC.read_text(encoding="utf-8"))
    return tabular(LEDUC, lambda key, legal: dict(zip(legal, table[key], strict=True)))


@cache
def response_to(rules: Rules, player: int, opponent: str) -> dict[str, str]:
    """Return the best response's letters against `random`, else against the equilibrium."""
    strategy = uniform(rules) if opponent == "random" else equilibrium(rules)
    return best_response(rules, player, strategy)[1]
