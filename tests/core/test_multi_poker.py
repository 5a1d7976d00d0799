"""Kuhn and Leduc poker: rules, equilibria, best responses, exploitability."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any

import pytest

import gem
from gem.envs.games.base import boxed
from gem.envs.multi.poker import KuhnPoker, LeducPoker, Poker
from gem.envs.multi.poker_rules import KUHN, LEDUC, MOVES, Rules
from gem.envs.multi.poker_solver import (
    best_response,
    equilibrium,
    exploitability,
    infosets,
    tabular,
    uniform,
)
from gem.errors import ConfigurationError


def dealt(game: Poker, first: str, second: str, board: str = "") -> Poker:
    """Reset until these cards are dealt."""
    seed = 0
    game.reset(seed=seed)
    while (game.cards, game.board) != ({"first": first, "second": second}, board):
        seed += 1
        game.reset(seed=seed)
    return game


def hand(game: Poker, *played: str) -> Any:
    step = None
    for move in played:
        [agent] = game.asked
        step = game.step({agent: boxed(move)})
    return step


@pytest.mark.parametrize(
    ("cards", "played", "chips"),
    [
        ("KQ", "check check", 1),
        ("QK", "check check", -1),
        ("JK", "bet fold", 1),
        ("KJ", "check bet fold", -1),
        ("KJ", "bet call", 2),
        ("JQ", "check bet call", -2),
    ],
)
def test_hands_of_kuhn_poker_pay_as_the_rules_say(cards: str, played: str, chips: int) -> None:
    step = hand(dealt(KuhnPoker(), *cards), *played.split())
    assert step.terminated
    assert step.rewards == {"first": chips / 2, "second": -chips / 2}
    assert f"You win {chips:+d} chip(s)." in step.infos["first"]["result"]
    assert step.infos["first"]["success"] is (chips > 0)


@pytest.mark.parametrize(
    ("cards", "played", "chips"),
    [
        ("KQJ", "check check check check", 1),
        ("KQQ", "check check check check", -1),
        ("JJQ", "bet call check check", 0),
        ("KQJ", "bet raise call bet raise call", 13),
        ("KQQ", "bet raise call bet raise call", -13),
        ("KQQ", "bet raise fold", -3),
        ("QKQ", "bet call check bet raise fold", 7),
    ],
)
def test_hands_of_leduc_poker_pay_as_the_rules_say(cards: str, played: str, chips: int) -> None:
    step = hand(dealt(LeducPoker(), *cards), *played.split())
    assert step.terminated
    assert step.rewards["first"] * 13 == pytest.approx(chips)
    assert step.rewards["second"] == -step.rewards["first"]


def test_who_folds_shows_no_card() -> None:
    step = hand(dealt(KuhnPoker(), "J", "K"), "bet", "fold")
    assert "K" not in step.infos["first"]["result"]
    step = hand(dealt(KuhnPoker(), "J", "K"), "check", "check")
    assert "Showdown: first J, second K." in step.infos["first"]["result"]


def test_moves_that_the_betting_does_not_allow_are_illegal() -> None:
    for game, played in ((KuhnPoker(), ("call",)), (LeducPoker(), ("bet", "raise", "raise"))):
        game.reset(seed=0)
        step = hand(game, *played)
        assert any(info["invalid_action"] for info in step.infos.values())


def test_information_sets_are_as_many_as_are_known() -> None:
    assert len(infosets(KUHN)) == 12
    # 288 of each player by rank are 936 by suited card.
    assert len(infosets(LEDUC)) == 288


def test_exploitability_of_uniform_play_is_the_known_one() -> None:
    # OpenSpiel's `exploitability` of the uniform policy.
    assert exploitability(KUHN, uniform(KUHN)) == pytest.approx(11 / 24)
    assert exploitability(LEDUC, uniform(LEDUC)) == pytest.approx(2.373611111)


def test_the_equilibrium_of_kuhn_poker_is_one_and_has_the_value_of_the_game() -> None:
    table = equilibrium(KUHN)
    assert exploitability(KUHN, table) == pytest.approx(0.0, abs=1e-12)
    assert best_response(KUHN, 0, table)[0] == pytest.approx(-1 / 18)
    assert best_response(KUHN, 1, table)[0] == pytest.approx(1 / 18)


def test_the_table_of_leduc_poker_is_an_equilibrium() -> None:
    table = equilibrium(LEDUC)
    assert set(table) == set(infosets(LEDUC))
    assert all(abs(sum(row.values()) - 1) < 1e-5 for row in table.values())
    assert 0 <= exploitability(LEDUC, table) < 1e-5
    assert best_response(LEDUC, 0, table)[0] == pytest.approx(-0.0856064, abs=1e-5)


def expected(rules: Rules, strategies: Any) -> float:
    """Return player 0's chips, by walking every deal: a calculation of its own."""

    def walk(history: str, cards: Any, board: str) -> float:
        node = rules.node(history)
        if node.folded >= 0 or node.rounds == len(rules.bets):
            return rules.won(node, cards, board)
        if not node.legal:
            return walk(history + "/", cards, board)
        shown = board if "/" in history else ""
        row = strategies[node.player][f"{cards[node.player]}{shown}:{history}"]
        return sum(row[each] * walk(history + each, cards, board) for each in node.legal)

    deals = list(permutations(rules.deck, len(rules.bets) + 1))
    return sum(walk("", deal[:2], (*deal, "")[2]) for deal in deals) / len(deals)


@pytest.mark.parametrize("rules", [KUHN, LEDUC])
def test_a_best_response_wins_what_is_said_and_no_other_answer_more(rules: Rules) -> None:
    rng = Random(0)

    def drawn(_: str, legal: str) -> dict[str, float]:
        weights = [rng.random() for _ in legal]
        return {each: w / sum(weights) for each, w in zip(legal, weights, strict=True)}

    table = tabular(rules, drawn)
    for player in (0, 1):
        value, answers = best_response(rules, player, table)

        def against(choices: dict[str, str], player: int = player) -> float:
            mine = tabular(rules, lambda k, legal: {e: float(choices.get(k) == e) for e in legal})
            won = expected(rules, [mine, table] if player == 0 else [table, mine])
            return won if player == 0 else -won

        assert against(answers) == pytest.approx(value)
        for key in rng.sample(sorted(answers), 6):
            others = [each for each in infosets(rules)[key] if each != answers[key]]
            assert against({**answers, key: others[0]}) <= value + 1e-12


def test_a_strategy_with_a_gap_and_unknown_rules_are_refused() -> None:
    table = {key: row for key, row in uniform(KUHN).items() if key != "Q:b"}
    with pytest.raises(ConfigurationError, match="no information set 'Q:b'"):
        exploitability(KUHN, table)
    with pytest.raises(ConfigurationError, match="no equilibrium is known"):
        equilibrium(Rules(("J", "Q"), (1,), 1))


@pytest.mark.parametrize("kind", [KuhnPoker, LeducPoker])
def test_the_oracle_draws_as_the_equilibrium_says(kind: type[Poker]) -> None:
    game = kind()
    game.reset(seed=0)
    [agent] = game.asked
    rng = Random(1)
    n = 3_000
    drawn = [game.oracle_action(agent, rng) for _ in range(n)]
    for letter, chance in equilibrium(kind.rules)[game.infoset(agent)].items():
        share = drawn.count(boxed(MOVES[letter])) / n
        assert abs(share - chance) < 5 * (chance * (1 - chance) / n) ** 0.5 + 1e-9


@pytest.mark.parametrize("opponent", ["random", "oracle"])
@pytest.mark.parametrize(("env_id", "rules"), [("Kuhn", KUHN), ("Leduc", LEDUC)])
def test_the_oracle_of_a_seat_earns_the_value_of_the_best_response(
    env_id: str, rules: Rules, opponent: str
) -> None:
    table = uniform(rules) if opponent == "random" else equilibrium(rules)
    for player, seat in enumerate(("first", "second")):
        env = gem.make(f"multi:{env_id}Poker-v0", seat=seat, opponent=opponent)
        n = 2_000
        returns = []
        for seed in range(n):
            env.reset(seed=seed)
            over = False
            while not over:
                _, reward, over, _, _ = env.step(env.oracle_action())
            returns.append(reward * rules.most_chips)
        mean = sum(returns) / n
        error = (sum((each - mean) ** 2 for each in returns) / n / n) ** 0.5
        assert abs(mean - best_response(rules, player, table)[0]) < 4 * error


def test_other_cards_are_drawn_from_those_that_the_agent_does_not_know() -> None:
    game = dealt(LeducPoker(), "K", "Q", "K")
    seen = set()
    for seed in range(60):
        game.resample("first", Random(seed))
        seen.add(game.cards["second"])
        assert (game.cards["first"], game.board) == ("K", "K")
    assert seen == {"J", "Q"}
