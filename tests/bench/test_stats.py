"""Intervals: how often they cover the truth, in simulations of what they are used for."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest

from gem_bench.stats import (
    Estimate,
    difference_of_runs,
    difference_of_tasks,
    of_metric,
    over_runs,
    over_tasks,
    rate_over_runs,
    t_quantile,
)

TIMES = 1500
LEAST = 0.93
"""Five standard errors of `TIMES` simulations below 95 % are 0.92."""


def coverage(truth: float, draw: Callable[[random.Random], Estimate], name: str) -> float:
    """Return, and print, the share of simulations in which the interval covers the truth."""
    rng = random.Random(name)
    hits = 0
    for _ in range(TIMES):
        estimate = draw(rng)
        assert estimate.low is not None and estimate.high is not None
        hits += estimate.low <= truth <= estimate.high
    share = hits / TIMES
    print(f"{name}: the 95 % interval covers {share:.1%}")
    return share


def played(rng: random.Random, chances: list[float], size: int) -> list[list[float]]:
    return [[float(rng.random() < p) for _ in range(size)] for p in chances]


# Beta distributions of a task's chance: at (0.2, 0.2) most are always or never solved.
@pytest.mark.parametrize(
    ("tasks", "size", "alpha", "beta"),
    [
        (16, 8, 0.2, 0.2),
        (320, 8, 0.2, 0.2),
        (40, 1, 1.0, 1.0),
        (64, 4, 0.5, 4.5),
        (100, 8, 50.0, 50.0),
        (30, 8, 0.3, 5.7),
    ],
)
def test_the_interval_over_tasks_covers_the_success_rate(
    tasks: int, size: int, alpha: float, beta: float
) -> None:
    def draw(rng: random.Random) -> Estimate:
        return over_tasks(played(rng, [rng.betavariate(alpha, beta) for _ in range(tasks)], size))

    name = f"{tasks} tasks x {size} episodes, Beta({alpha:g}, {beta:g})"
    assert coverage(alpha / (alpha + beta), draw, name) >= LEAST


def test_groups_of_unequal_size_are_covered_too() -> None:
    def draw(rng: random.Random) -> Estimate:
        sizes = [rng.choice((1, 2, 8)) for _ in range(80)]
        return over_tasks([played(rng, [rng.betavariate(0.3, 0.3)], n)[0] for n in sizes])

    assert coverage(0.5, draw, "80 tasks of 1, 2 or 8 episodes") >= LEAST


def test_an_interval_that_takes_episodes_for_independent_would_be_noticed() -> None:
    """The same simulation with every episode as a task of its own covers far less."""

    def draw(rng: random.Random) -> Estimate:
        outcomes = played(rng, [rng.betavariate(0.2, 0.2) for _ in range(100)], 8)
        return over_tasks([[outcome] for task in outcomes for outcome in task])

    assert coverage(0.5, draw, "episodes taken for independent") < 0.75


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_the_interval_over_runs_covers_the_mean(runs: int) -> None:
    def draw(rng: random.Random) -> Estimate:
        return over_runs([rng.gauss(0.6, 0.05) for _ in range(runs)])

    assert coverage(0.6, draw, f"{runs} runs") >= LEAST


@pytest.mark.parametrize(("runs", "mean"), [(3, 0.5), (3, 0.95), (8, 0.97), (8, 0.04)])
def test_the_interval_of_rates_over_runs_covers_the_mean_and_stays_within_0_and_1(
    runs: int, mean: float
) -> None:
    """Runs that differ by more than most of those in docs/baselines.md."""
    name = f"{runs} rates around {mean:g}"
    found: list[Estimate] = []

    def draw(rng: random.Random) -> Estimate:
        found.append(
            rate_over_runs([rng.betavariate(mean * 150, (1 - mean) * 150) for _ in range(runs)])
        )
        return found[-1]

    assert coverage(mean, draw, name) >= LEAST
    assert all(0 <= each.low <= each.mean <= each.high <= 1 for each in found)  # type: ignore[operator]


def test_rates_that_are_all_0_or_1_have_an_interval_without_width() -> None:
    for rate in (0.0, 1.0):
        estimate = rate_over_runs([rate, rate])
        assert (estimate.low, estimate.mean, estimate.high) == (rate, rate, rate)


def test_a_number_of_an_environment_is_not_a_rate_whatever_its_name() -> None:
    values = [-0.6, 0.9, 0.1]
    assert of_metric("info/growth_rate")(values) == over_runs(values)
    assert of_metric("env/a/success_rate") is rate_over_runs


@pytest.mark.parametrize("same", [True, False], ids=["same seeds", "other seeds"])
def test_the_interval_of_a_difference_over_runs_covers_it(same: bool) -> None:
    def draw(rng: random.Random) -> Estimate:
        seeds = [rng.gauss(0.0, 0.1) for _ in range(8)]
        a = {i: seeds[i] + rng.gauss(0.65, 0.03) for i in range(4)}
        b = {i: seeds[i] + rng.gauss(0.6, 0.05) for i in (range(4) if same else range(4, 8))}
        return difference_of_runs(a, b)

    assert coverage(0.05, draw, f"difference of 4 runs, same seeds: {same}") >= LEAST


@pytest.mark.parametrize("same", [True, False], ids=["same tasks", "other tasks"])
def test_the_interval_of_a_difference_over_tasks_covers_it(same: bool) -> None:
    def draw(rng: random.Random) -> Estimate:
        ours = [rng.betavariate(0.5, 0.5) for _ in range(60)]
        theirs = ours if same else [rng.betavariate(0.5, 0.5) for _ in range(60)]
        a = played(rng, [0.9 * p for p in ours], 4)
        b = played(rng, theirs, 4)
        shift = 0 if same else 60
        return difference_of_tasks(dict(enumerate(a)), dict(enumerate(b, shift)))

    assert coverage(-0.05, draw, f"difference on 60 tasks, the same: {same}") >= LEAST


def test_a_difference_on_the_same_tasks_is_told_more_exactly_than_on_others() -> None:
    rng = random.Random(0)
    chances = [rng.betavariate(0.2, 0.2) for _ in range(200)]
    a, b = (dict(enumerate(played(rng, chances, 8))) for _ in range(2))
    paired = difference_of_tasks(a, b)
    unpaired = difference_of_tasks(a, {f"other {key}": value for key, value in b.items()})
    assert paired.method == "paired tasks" and unpaired.method == "unpaired tasks"
    widths = [
        e.high - e.low for e in (paired, unpaired) if e.high is not None and e.low is not None
    ]
    assert widths[0] < 0.6 * widths[1]
    assert paired.mean == pytest.approx(unpaired.mean)


def test_only_tasks_that_both_have_played_are_paired() -> None:
    a = {"x": [1.0], "y": [1.0, 0.0], "only here": [0.0]}
    b = {"x": [0.0], "y": [0.5], "only there": [1.0]}
    estimate = difference_of_tasks(a, b)
    assert (estimate.mean, estimate.n, estimate.method) == (0.5, 2, "paired tasks")


def test_single_episodes_of_many_tasks_give_wilson_s_interval() -> None:
    # R: prop.test(300, 1000, correct = FALSE); t with 999 degrees is 1.9623 instead of 1.9600.
    estimate = over_tasks([[1.0]] * 300 + [[0.0]] * 700)
    assert (estimate.low, estimate.high) == (
        pytest.approx(0.2724, abs=1e-3),
        pytest.approx(0.3291, abs=1e-3),
    )


def test_tasks_that_always_end_alike_count_once() -> None:
    once = over_tasks([[1.0]] * 30 + [[0.0]] * 70)
    often = over_tasks([[1.0] * 8] * 30 + [[0.0] * 8] * 70)
    assert (often.low, often.high) == (
        pytest.approx(once.low, abs=2e-3),
        pytest.approx(once.high, abs=2e-3),
    )


def test_success_everywhere_still_leaves_doubt() -> None:
    sure = over_tasks([[1.0] * 8] * 10)
    assert sure.mean == sure.high == 1.0
    assert sure.low is not None and 0.5 < sure.low < 0.8


def test_one_run_or_task_has_a_mean_and_no_interval() -> None:
    for estimate in (
        over_runs([0.5]),
        over_tasks([[1.0, 0.0]]),
        difference_of_runs({0: 0.75}, {0: 0.25}),
        difference_of_runs({0: 0.75}, {1: 0.25}),
        difference_of_tasks({0: [1.0]}, {1: [0.5]}),
    ):
        assert estimate.mean == 0.5
        assert (estimate.low, estimate.high, estimate.method) == (None, None, "none")


def test_no_episode_has_no_rate() -> None:
    with pytest.raises(ValueError, match="at least one episode"):
        over_tasks([[], []])


def test_runs_that_ended_equal_leave_no_width_to_their_interval() -> None:
    estimate = over_runs([0.5, 0.5, 0.5])
    assert (estimate.low, estimate.high) == (0.5, 0.5)
    assert statistics.stdev([0.5, 0.5, 0.5]) == 0


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.30265), (5, 2.57058), (30, 2.04227)]
)
def test_quantiles_are_those_of_printed_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=1e-4)
