"""Aggregates over environments: known values, and how often their intervals cover the truth."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from gem_bench import aggregate
from gem_bench.aggregate import interquartile_mean, mean, probability_of_improvement


def test_improvement_is_the_share_of_pairs_won_with_ties_as_half_a_win() -> None:
    ours, theirs = [[1.0, 2.0, 3.0], [0.5]], [[2.0, 2.5], [0.5, 0.5, 0.5]]
    # First environment: of 6 pairs one tie (2, 2), won (3, 2) and (3, 2.5). Second: all ties.
    expected = ((2 + 0.5) / 6 + 0.5) / 2
    assert probability_of_improvement(ours, theirs).mean == pytest.approx(expected)
    assert probability_of_improvement(theirs, ours).mean == pytest.approx(1 - expected)


def test_one_algorithm_that_always_wins_improves_with_certainty() -> None:
    found = probability_of_improvement([[0.9, 0.8]] * 3, [[0.1, 0.2, 0.3]] * 3)
    assert (found.mean, found.low, found.high) == (1.0, 1.0, 1.0)
    assert (found.method, found.n) == ("bootstrap", 3)


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert interquartile_mean([[0.0, 1.0], [2.0, 100.0]]).mean == 1.5
    # Of six runs one and a half at each end: the second and fifth count half.
    six = [[-50.0, 1.0, 2.0], [4.0, 5.0, 600.0]]
    assert interquartile_mean(six).mean == pytest.approx((0.5 + 2 + 4 + 2.5) / 3)


def test_environments_have_the_same_weight_whatever_their_number_of_runs() -> None:
    assert mean([[0.0, 0.0, 0.0], [1.0]]).mean == 0.5


def test_where_an_environment_has_a_single_run_there_is_no_interval() -> None:
    """Nothing shows how its runs differ, and an interval without that is too narrow."""
    for found in (
        mean([[0.2], [0.7]]),
        mean([[0.2, 0.4, 0.3], [0.7]]),
        interquartile_mean([[0.2, 0.4, 0.3], [0.7]]),
        probability_of_improvement([[0.2]], [[0.1]]),
        probability_of_improvement([[0.2, 0.3]], [[0.1]]),
    ):
        assert (found.low, found.high, found.method) == (None, None, "none")


def test_different_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="2 environments cannot be compared with 1"):
        probability_of_improvement([[1.0], [1.0]], [[1.0]])


@pytest.mark.parametrize(("runs", "least"), [(3, 0.78), (10, 0.9)])
def test_the_interval_of_the_mean_covers_the_truth_about_as_often_as_it_says(
    runs: int, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bootstrap of n runs has (n - 1) / n of the variance: with few, less than 95 %."""
    monkeypatch.setattr(aggregate, "REPLICATES", 400)
    rng = random.Random(runs)
    centres = [0.1 * i for i in range(8)]

    def drawn() -> Sequence[Sequence[float]]:
        return [[rng.gauss(centre, 0.1) for _ in range(runs)] for centre in centres]

    times, hits = 300, 0
    for _ in range(times):
        found = mean(drawn())
        assert found.low is not None and found.high is not None
        hits += found.low <= 0.35 <= found.high
    print(f"{runs} runs: the 95 % interval covers {hits / times:.1%}")
    assert least < hits / times < 0.99


def test_replicates_keep_to_their_environment() -> None:
    """Drawn from all runs alike, the interval would be as wide as environments are apart."""
    scores = [[0.0, 0.01], [1.0, 0.99]]
    found = mean(scores)
    assert found.low is not None and found.high is not None
    extremes = [sum(pair) / 2 for pair in itertools.product(*scores)]
    assert min(extremes) - 1e-9 <= found.low <= found.high <= max(extremes) + 1e-9
