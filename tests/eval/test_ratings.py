"""Ratings of players: known strengths are found again, and what has no finite answer is said."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from gem.errors import ConfigurationError
from gem_eval.ratings import PRIOR, SCALE, Rating, Score, rate

TRUE = {"weak": -200.0, "even": 0.0, "fair": 50.0, "strong": 150.0}


def simulated(tasks: int, seed: int, draws: float = 0.0) -> list[Score]:
    """Return a round robin in which who wins has the chance that the true ratings give."""
    rng, scores = Random(seed), []
    for task in range(tasks):
        for one, other in itertools.permutations(TRUE, 2):
            chance = 1 / (1 + 10 ** ((TRUE[other] - TRUE[one]) / 400))
            # A draw takes the same from both, so that the expected points stay the same.
            half = draws * min(chance, 1 - chance)
            u = rng.random()
            points = 1.0 if u < chance - half else 0.5 if u < chance + half else 0.0
            scores.append(Score(task, one, other, points))
    return scores


def by_name(ratings: list[Rating]) -> dict[str, Rating]:
    return {each.player: each for each in ratings}


@pytest.mark.parametrize("draws", [0.0, 0.8])
def test_known_ratings_are_found_again(draws: float) -> None:
    found = rate(simulated(2_000, seed=1, draws=draws))
    assert [each.player for each in found] == ["strong", "fair", "even", "weak"]
    assert sum(each.elo for each in found) == pytest.approx(0, abs=1e-6)
    for name, each in by_name(found).items():
        assert each.elo == pytest.approx(TRUE[name], abs=15)
        assert each.matches == 2_000 * 6


def test_intervals_cover_the_truth() -> None:
    covered = [
        each.low is not None and each.high is not None and each.low <= TRUE[name] <= each.high
        for seed in range(50)
        for name, each in by_name(rate(simulated(40, seed))).items()
    ]
    # 95 % of 200, and 4 standard errors around it.
    assert 0.88 <= sum(covered) / len(covered) <= 1


def test_the_matches_of_one_task_do_not_narrow_the_interval() -> None:
    once = [Score(task, "a", "b", float(task % 3 > 0)) for task in range(30)]
    found, repeated = (by_name(rate(s, prior=1e-6))["a"] for s in (once, once * 10))
    assert repeated.elo == pytest.approx(found.elo, abs=0.01)
    assert (repeated.low, repeated.high) == pytest.approx((found.low, found.high), abs=0.01)


def test_two_players_have_the_closed_form_with_the_virtual_draw() -> None:
    scores = [Score(task, "a", "b", points) for task, points in enumerate([1, 1, 0.5, 0])]
    found = by_name(rate(scores))
    won, lost = 2.5 + PRIOR / 2, 1.5 + PRIOR / 2
    assert found["a"].elo - found["b"].elo == pytest.approx(SCALE * math.log(won / lost))


def test_who_won_everything_has_a_finite_rating_marked_as_a_bound() -> None:
    pairs = itertools.combinations("abc", 2)
    found = rate([Score(task, one, other, 1.0) for one, other in pairs for task in range(200)])
    assert [(each.player, each.bound) for each in found] == [
        ("a", "at least"),
        ("b", "prior"),
        ("c", "at most"),
    ]
    assert all(math.isfinite(each.elo) for each in found)


def test_groups_of_which_one_never_lost_to_the_other_are_marked() -> None:
    tasks = range(60)
    scores = [Score(task, *pair, points=float(task % 2)) for pair in ("ab", "cd") for task in tasks]
    apart = [Score(task, one, other, 1.0) for one in "ab" for other in "cd" for task in tasks]
    assert {each.player: each.bound for each in rate(scores + apart)} == dict.fromkeys(
        "abcd", "prior"
    )
    # One point back is enough: a ring of points connects all.
    found = rate([*scores, *apart, Score(60, "c", "a", 0.5)])
    assert {each.bound for each in found} == {""}


def test_a_pool_that_no_match_connects_is_refused() -> None:
    scores = [Score(0, "a", "b", 1.0), Score(0, "c", "d", 0.0)]
    with pytest.raises(ConfigurationError, match="none is between a, b and c, d"):
        rate(scores)
    with pytest.raises(ConfigurationError, match="at least one match"):
        rate([])


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="prior must be above 0"):
        rate([Score(0, "a", "b", 1.0)], prior=0)
    with pytest.raises(ConfigurationError, match="points in"):
        rate([Score(0, "a", "b", 2.0)])
    with pytest.raises(ConfigurationError, match="two players"):
        rate([Score(0, "a", "a", 1.0)])


def test_a_single_task_has_no_interval() -> None:
    assert {(each.low, each.high) for each in rate([Score(0, "a", "b", 0.5)])} == {(None, None)}
