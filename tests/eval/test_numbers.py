"""Intervals, pass@k and pass^k against values computed by other means."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from pathlib import Path

import pytest

from gem.errors import ConfigurationError
from gem_bench.stats import mean_of_estimates, mean_over_tasks, over_tasks
from gem_eval.numbers import (
    Outcome,
    Summary,
    numbers,
    overall,
    pass_all,
    pass_at,
    split_by,
)
from gem_eval.tables import as_json, markdown, of_summary, text


def outcome(seed: int, sample: int, success: float, **other: object) -> Outcome:
    values = {
        "total": success, "turns": 2, "end": "terminated", "format_error": False, "empty": 0,
        "cut": 0, "refused": 0, "prompt_tokens": None, "reply_tokens": None, "failure": None,
        "labels": {}, "calls": None,
    }  # fmt: skip
    return Outcome(seed, sample, success, **{**values, **other})  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 4), (4, 1, 4)])
def test_pass_at_k_and_pass_all_k_are_what_all_choices_of_k_samples_give(
    n: int, c: int, k: int
) -> None:
    samples = [1] * c + [0] * (n - c)
    choices = list(itertools.combinations(samples, k))
    assert pass_at(k, n, c) == pytest.approx(statistics.fmean(max(each) for each in choices))
    assert pass_all(k, n, c) == pytest.approx(statistics.fmean(min(each) for each in choices))


def test_the_overall_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(0)
    rates, covered, times = (0.1, 0.5, 0.9), 0, 400
    for _ in range(times):
        parts = [over_tasks([[float(rng.random() < rate)] for _ in range(24)]) for rate in rates]
        found = mean_of_estimates(parts)
        assert found.low is not None and found.high is not None
        covered += found.low <= statistics.fmean(rates) <= found.high
    assert 0.925 <= covered / times <= 0.99


def test_one_environment_is_its_own_overall_result_and_size_does_not_count() -> None:
    small = numbers("a", [outcome(seed, 0, 1.0) for seed in range(4)])
    large = numbers("b", [outcome(seed, 0, 0.0) for seed in range(40)])
    assert overall([small]) is not None and overall([small]).success == small.success  # type: ignore[union-attr]
    both = overall([small, large])
    assert both is not None and both.success is not None
    assert both.success.mean == 0.5
    assert (both.tasks, both.episodes) == (44, 44)


def test_samples_of_a_task_do_not_make_an_interval_narrower() -> None:
    once = [outcome(seed, 0, seed % 2, total=seed % 2) for seed in range(10)]
    again = [outcome(seed, k, seed % 2, total=seed % 2) for seed in range(10) for k in range(8)]
    assert numbers("a", once).success == numbers("a", again).success
    assert numbers("a", once).total == numbers("a", again).total
    assert numbers("a", again).total == mean_over_tasks([[seed % 2] for seed in range(10)])


def test_void_episodes_are_left_out_and_bound_the_result() -> None:
    void = [outcome(9, 0, 0.0, failure="engine")]
    found = numbers("a", [outcome(seed, 0, 1.0) for seed in range(3)] + void)
    assert found.success is not None and found.success.mean == 1.0
    assert (found.episodes, found.failed, found.bounds) == (3, {"engine": 1}, (0.75, 1.0))


def test_tasks_with_too_few_samples_are_left_out_of_pass_at_k_and_counted() -> None:
    full = [outcome(0, k, float(k == 0)) for k in range(4)]
    found = numbers("a", [*full, outcome(1, 0, 1.0), outcome(1, 1, 1.0)])
    assert sorted(found.pass_at) == [2, 4]
    assert found.few_samples == {4: 1}
    assert found.pass_at[4].mean == 1.0
    assert found.pass_all[2].mean == 0.5


def test_an_environment_without_a_valid_episode_is_shown_without_a_result() -> None:
    parts = [numbers("a", [outcome(0, 0, 0.0, failure="engine")]), numbers("b", [])]
    summary = Summary(Path("x"), "m", parts, overall(parts))
    assert summary.overall is None
    table = of_summary(summary)
    assert "a: 1 episodes failed" in text(table)
    assert "| b | 0 | 0 | 0 | - | - |" in markdown(table)
    assert json.loads(as_json(table))["environments"][1]["success"] is None


def test_an_environment_is_split_by_the_values_of_a_label() -> None:
    levels = [(1, 1.0), (1, 0.0), (3, 1.0), (3, 1.0), (2, 0.0)]
    played = [outcome(i, 0, s, labels={"item.level": v}) for i, (v, s) in enumerate(levels)]
    played += [outcome(9, 0, 1.0, failure="engine", labels={"item.level": 1}), outcome(8, 0, 1.0)]
    found = split_by("item.level", {"math": played, "other": [outcome(0, 0, 1.0)]})
    rates = {name: (len(each), sum(o.success for o in each)) for name, each in found.items()}
    names = ["math, item.level 1", "math, item.level 2", "math, item.level 3"]
    assert rates == dict(zip(names, [(2, 1.0), (1, 0.0), (2, 2.0)], strict=True))
    with pytest.raises(ConfigurationError, match="no episode has 'level'; there are item.level"):
        split_by("level", {"math": played})


def test_many_numbers_are_split_into_quarters() -> None:
    sizes = random.Random(0).sample(range(100), 40)
    played = [outcome(i, 0, 0.0, labels={"size": size}) for i, size in enumerate(sizes)]
    found = split_by("size", {"rg": played})
    assert [len(each) for each in found.values()] == [10] * 4
    ends = [name.split(", size ")[1].split(" to ") for name in found]
    ordered = sorted(sizes)
    assert ends == [[str(ordered[10 * i]), str(ordered[10 * i + 9])] for i in range(4)]


def test_quarters_of_large_numbers_stay_apart() -> None:
    played = [outcome(i, 0, 1.0, labels={"size": 10**6 + i}) for i in range(12)]
    found = split_by("size", {"rg": played})
    assert [len(each) for each in found.values()] == [3, 3, 3, 3]
    assert next(iter(found)) == "rg, size 1000000 to 1000002"


def test_calls_of_tools_are_counted_and_success_is_told_with_and_without() -> None:
    calls = [((2, 1), 1.0), ((0, 0), 0.0), ((2, 2), 0.0), ((0, 0), 0.0)]
    part = numbers("math", [outcome(i, 0, s, calls=c) for i, (c, s) in enumerate(calls)])
    use = part.tools
    assert use is not None and use.with_calls is not None and use.without_calls is not None
    assert (use.calls, use.succeeded) == (1.0, 0.75)
    assert (use.with_calls.mean, use.without_calls.mean) == (0.5, 0.0)
    shown = text(of_summary(Summary(Path("run"), "m", [part], None)))
    assert "math: 1.0 tool calls an episode, 75% without an error; success with a call 0.5" in shown
    assert numbers("math", [outcome(0, 0, 1.0)]).tools is None
