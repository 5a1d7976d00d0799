"""Kuhn and Leduc poker."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from random import Random
from typing import ClassVar

from gem.envs.games.base import boxed
from gem.envs.multi.base import Match
from gem.envs.multi.poker_rules import KUHN, LEDUC, MOVES, Rules
from gem.envs.multi.poker_solver import equilibrium, exploitability, infosets, response_to
from gem.multi import Decision


class Poker(Match):
    """A hand of poker for two; what a hand wins is scaled by the most that it can win.

    Attributes:
        cards: The private card of each agent.
        board: The board card, from the beginning; shown after the first round.
        history: Letters of the moves so far, see `MOVES`.
    """

    agents = ("first", "second")
    rules: ClassVar[Rules]

    def __init__(self, *, on_illegal: str = "lose", seed: int | None = None) -> None:
        """Make the game.

        Args:
            on_illegal: See `Match`.
            seed: Seed of the first `reset` that is not given one.
        """
        super().__init__(on_illegal=on_illegal, seed=seed)

    def _start(self) -> None:
        one, two, *rest = self.rng.sample(self.rules.deck, len(self.rules.deck))
        self.cards = {"first": one, "second": two}
        self.board = rest[0] if len(self.rules.bets) > 1 else ""
        self.history = ""

    def infoset(self, agent: str) -> str:
        """Return what the agent knows: card, board card if it is shown, and history of letters."""
        return f"{self.cards[agent]}{self.board if '/' in self.history else ''}:{self.history}"

    def decisions(self) -> list[Decision]:
        """Return the information sets, with seeds of hands in which they can come about."""
        players = {
            key: self.rules.node(key.partition(":")[2]).player for key in infosets(self.rules)
        }
        # Player, own card and board card, "" where it is not shown.
        hands = {(player, *self._cards(key)) for key, player in players.items()}
        seeds: dict[tuple[int, str, str], int] = {}
        game = self.spawn()
        for seed in count():
            if hands <= seeds.keys():
                break
            game.reset(seed=seed)
            for player, card in enumerate(game.cards.values()):
                for board in ("", game.board):
                    seeds.setdefault((player, card, board), seed)
        return [
            Decision(
                key,
                self.agents[player],
                seeds[(player, *self._cards(key))],
                tuple(boxed(MOVES[letter]) for letter in key.partition(":")[2] if letter != "/"),
                {letter: boxed(MOVES[letter]) for letter in infosets(self.rules)[key]},
            )
            for key, player in players.items()
        ]

    def exploitability(self, strategy: Mapping[str, Mapping[str, float]]) -> float:
        """Return the exploitability in chips per hand; see `poker_solver.exploitability`."""
        return exploitability(self.rules, strategy)

    @staticmethod
    def _cards(key: str) -> tuple[str, str]:
        """Return the own card and the board card of an information set."""
        return key[0], key.partition(":")[0][1:]

    def resample(self, agent: str, rng: Random) -> bool:
        """Give the other player another card; the board card stays."""
        [other] = (each for each in self.agents if each != agent)
        left = list(self.rules.deck)
        for card in (self.cards[agent], self.board):
            if card:
                left.remove(card)
        self.cards[other] = rng.choice(left)
        return True

    def _rules(self, agent: str) -> str:
        rules, deck = self.rules, " ".join(self.rules.deck)
        bets = " and ".join(map(str, rules.bets))
        text = (
            f"The deck is {deck}, from low to high. Each player puts in 1 chip and gets a private "
            f"card; first begins. A bet or raise is {bets} chip(s)"
        )
        if len(rules.bets) == 1:
            return f"{text}, at most {rules.most_bets} in the hand. The higher card wins the pot."
        return (
            f"{text} in the two rounds, at most {rules.most_bets} in each. Between them a board "
            "card is shown. A pair with the board card wins the pot, else the higher card."
        )

    def _all_moves(self) -> tuple[str, ...]:
        return ("check", "bet", "fold", "call") + ("raise",) * (self.rules.most_bets > 1)

    def _next(self) -> tuple[str, ...]:
        node = self.rules.node(self.history)
        return (self.agents[node.player],) if node.legal else ()

    def _legal(self, agent: str) -> tuple[str, ...]:
        letters = self.rules.node(self.history).legal if agent in self._next() else ""
        return tuple(MOVES[letter] for letter in letters)

    def _view(self, agent: str) -> str:
        board = f" Board card: {self.board}." if "/" in self.history else ""
        staked = self.rules.node(self.history).staked
        chips = ", ".join(f"{each} {n}" for each, n in zip(self.agents, staked, strict=True))
        return f"Your card: {self.cards[agent]}.{board} Chips in the pot: {chips}."

    def _play(self, moves: dict[str, str]) -> dict[str, float]:
        [(agent, move)] = moves.items()
        self.history += next(letter for letter, name in MOVES.items() if name == move)
        self._tell(f"{agent}: {move}.", but=agent)
        node = self.rules.node(self.history)
        if node.legal:
            return {}
        if node.folded < 0 and node.rounds < len(self.rules.bets):
            self.history += "/"
            self._tell(f"The board card is {self.board}.")
            return {}
        if node.folded < 0:
            cards = ", ".join(f"{each} {card}" for each, card in self.cards.items())
            self._tell(f"Showdown: {cards}.")
        won = self.rules.won(node, tuple(self.cards.values()), self.board)
        share = won / self.rules.most_chips
        return dict(zip(self.agents, (share, -share), strict=True))

    def _ending(self, agent: str) -> str:
        return f"You win {self.points[agent] * self.rules.most_chips:+.0f} chip(s)."

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Draw from the equilibrium."""
        _ = self.episode_key
        if agent not in self._next():
            return self.sample_random_action(agent)
        chances = equilibrium(self.rules)[self.infoset(agent)]
        [letter] = (rng or self.action_rng).choices(list(chances), list(chances.values()))
        return boxed(MOVES[letter])

    def best_response(self, agent: str, opponent: str) -> str:
        """Return the best response to `random` or `oracle`, by our own calculation."""
        _ = self.episode_key
        if agent not in self._next():
            return self.sample_random_action(agent)
        answers = response_to(self.rules, self.agents.index(agent), opponent)
        return boxed(MOVES[answers[self.infoset(agent)]])


class KuhnPoker(Poker):
    """Kuhn poker: three cards, one bet (Kuhn, "A simplified two-person poker", 1950).

    Rewards: the chips won over 2, at the end of the hand. The oracle is an equilibrium; a seat's
    oracle is the best response to `random` or `oracle`. Chance decides a single hand: what a policy
    is worth is its mean return, or its exploitability (`gem.envs.multi.poker_solver`).
    """

    rules = KUHN


class LeducPoker(Poker):
    """Leduc poker: six cards, two rounds of betting, a board card (Southey et al., UAI 2005).

    Rewards: the chips won over 13, at the end of the hand. The oracle is an equilibrium; a seat's
    oracle is the best response to `random` or `oracle`. Chance decides a single hand: what a policy
    is worth is its mean return, or its exploitability (`gem.envs.multi.poker_solver`).
    """

    rules = LEDUC
