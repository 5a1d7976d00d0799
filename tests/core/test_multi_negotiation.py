"""Negotiation: who gets what, what is told, and that the oracle's last offer is the best one."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from gem.envs.games.base import boxed
from gem.envs.multi.negotiation import KINDS, TOTAL, Negotiation, _splits, _values_beside


def begun(seed: int, offers: int = 6, on_illegal: str = "lose") -> Negotiation:
    game = Negotiation(offers, on_illegal=on_illegal)
    game.reset(seed=seed)
    return game


def keep(items: tuple[int, ...]) -> str:
    return boxed(" ".join(map(str, items)))


def test_all_items_are_worth_ten_to_each_and_none_is_worthless_to_both() -> None:
    seen = set()
    for seed in range(300):
        game = begun(seed)
        seen.add(game.counts)
        for values in game.values.values():
            assert sum(n * v for n, v in zip(game.counts, values, strict=True)) == TOTAL
        assert all(map(sum, zip(*game.values.values(), strict=True)))
    # Three of each cannot be worth ten.
    assert seen == set(product((1, 2, 3), repeat=len(KINDS))) - {(3, 3, 3)}


@pytest.mark.parametrize("seed", range(20))
def test_a_deal_pays_each_what_its_items_are_worth_to_it(seed: int) -> None:
    game = begun(seed)
    kept = Random(seed).choice(_splits(game.counts))
    step = game.step({"first": keep(kept)})
    assert step.rewards == {"first": 0.0, "second": 0.0}
    step = game.step({"second": boxed("accept")})
    assert step.terminated
    got = {"first": kept, "second": [n - k for n, k in zip(game.counts, kept, strict=True)]}
    for agent, items in got.items():
        points = sum(n * v for n, v in zip(items, game.values[agent], strict=True))
        assert step.rewards[agent] == points / 10
        assert step.infos[agent]["success"] is (points >= 5)
        assert f"You get {points} of 10 points" in step.infos[agent]["result"]


def test_who_leaves_ends_it_without_a_deal() -> None:
    game = begun(0)
    game.step({"first": keep(game.counts)})
    step = game.step({"second": boxed("leave")})
    assert step.terminated
    assert step.rewards == {"first": 0.0, "second": 0.0}
    assert not any(info["success"] for info in step.infos.values())


def test_after_the_last_offer_one_accepts_or_leaves() -> None:
    game = begun(1, offers=2, on_illegal="retry:1")
    game.step({"first": keep(game.counts)})
    step = game.step({"second": keep(game.counts)})
    assert "Legal moves: accept, leave\n" in str(step.observations["first"])
    step = game.step({"first": keep((0, 0, 0))})
    assert step.infos["first"]["invalid_action"] is True
    assert not step.terminated
    assert game.step({"first": boxed("accept")}).rewards == {"first": 0.0, "second": 1.0}


def test_there_is_nothing_to_accept_before_the_first_offer() -> None:
    step = begun(0).step({"first": boxed("accept")})
    assert step.terminated
    assert step.rewards == {"first": -1.0, "second": 0.0}


@pytest.mark.parametrize("agent", ["first", "second"])
def test_an_agent_is_shown_the_same_whatever_the_others_values_are(agent: str) -> None:
    [other] = {"first", "second"} - {agent}
    for seed in range(10):
        shown = set()
        values = _values_beside((game := begun(seed)).counts, game.values[agent])
        for each in values:
            game = begun(seed)
            observations = game._ask(())
            game.values[other] = each
            observations = game._ask(game._next())
            told = []
            for move in (keep(game.counts), keep((0, 0, 0)), boxed("accept")):
                [asked] = game.asked
                observations = game.step({asked: move}).observations
                told += [str(observations.get(agent)), game.render(agent)]
            shown.add(tuple(told))
        assert len(shown) == 1
        assert len(values) > 1


def earned(seed: int, values: tuple[int, ...], move: str) -> float:
    """Return what a single offer earns from a conceder with these values."""
    game = begun(seed, offers=1)
    game.values["second"] = values
    game.step({"first": move})
    reply = Negotiation.opponents["conceder"](game, "second", "", Random(0))
    return game.step({"second": reply}).rewards["first"]


@pytest.mark.parametrize("seed", range(6))
def test_the_oracles_last_offer_earns_most_on_average(seed: int) -> None:
    game = begun(seed, offers=1)
    types = _values_beside(game.counts, game.values["first"])
    average = {
        keep(kept): sum(earned(seed, each, keep(kept)) for each in types)
        for kept in _splits(game.counts)
    }
    assert average[game.oracle_action("first")] == pytest.approx(max(average.values()))
    assert max(average.values()) > 0


def test_a_conceders_offers_tell_its_values() -> None:
    fewer = 0
    for seed in range(30):
        game = begun(seed)
        before = game._types("second")
        game.step({"first": Negotiation.opponents["conceder"](game, "first", "", Random(0))})
        after = game._types("second")
        assert game.values["first"] in after
        fewer += len(after) < len(before)
    assert fewer > 20


def against_a_conceder(seed: int, oracle: bool) -> float:
    """Return what seat `seed % 2` earns from a conceder, as the oracle or as a conceder."""
    game = begun(seed)
    seat = game.agents[seed % 2]
    while game.asked:
        [agent] = game.asked
        if oracle and agent == seat:
            game.step({agent: game.oracle_action(agent)})
        else:
            game.step({agent: Negotiation.opponents["conceder"](game, agent, "", Random(0))})
    return game.points[seat]


def test_the_oracle_earns_more_from_a_conceder_than_a_conceder_does() -> None:
    oracle, conceder = (
        sum(against_a_conceder(seed, oracle) for seed in range(60)) / 60 for oracle in (True, False)
    )
    assert oracle > conceder + 0.05
    assert conceder > 0.5
