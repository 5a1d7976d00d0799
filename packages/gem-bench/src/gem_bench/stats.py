"""Confidence intervals for all tables, plots and evaluations.

The width depends on which samples are independent. Runs with different seeds are; so are the tasks
of one run, but not the episodes of one task, which succeed or fail together. So intervals are over
runs if there are several, else over tasks; an interval over the tasks of one run does not include
the variation between runs. Differences between runs with the same seeds or tasks are paired. The
best of several numbers has no interval: the maximum is biased upwards, and an interval for a single
number does not cover it.

`tests/bench/test_stats.py` simulates how often each interval covers the truth.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias, TypeVar

LEVEL = 0.95
Method: TypeAlias = Literal[
    "runs",
    "tasks",
    "paired runs",
    "paired tasks",
    "unpaired runs",
    "unpaired tasks",
    "bootstrap",
    "none",
]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Estimate:
    """A mean, or a difference of two, with its 95 % confidence interval."""

    mean: float
    low: float | None
    high: float | None
    method: Method
    """Which samples were taken as independent; `none`: too few for an interval."""
    n: int
    """Runs, tasks, pairs, or environments (`bootstrap`)."""


def over_runs(values: Sequence[float]) -> Estimate:
    """Student's t interval of the mean of independent runs.

    Args:
        values: One value per run, at least one; a single value has no interval.
    """
    return _t_interval(values, "runs")


def rate_over_runs(values: Sequence[float]) -> Estimate:
    """Interval of the mean of independent runs' rates, which stays within 0 and 1.

    Student's t interval after the arcsine of the square root, which makes the spread of rates
    nearly the same everywhere (Anscombe 1948, Biometrika 35, 246-254), by the delta method.

    Args:
        values: A rate per run, within [0, 1], at least one; a single value has no interval.
    """
    plain = over_runs(values)
    if plain.low is None or not 0 < plain.mean < 1:
        return plain
    angle = math.asin(math.sqrt(plain.mean))
    half = (plain.mean - plain.low) / (2 * math.sqrt(plain.mean * (1 - plain.mean)))
    low, high = max(0.0, angle - half), min(math.pi / 2, angle + half)
    return replace(plain, low=math.sin(low) ** 2, high=math.sin(high) ** 2)


def of_metric(metric: str) -> Callable[[Sequence[float]], Estimate]:
    """Return `rate_over_runs` for metrics that are rates, `over_runs` for others."""
    return rate_over_runs if is_rate(metric) else over_runs


def is_rate(metric: str) -> bool:
    """Whether a metric of the record is within 0 and 1.

    Numbers of an environment's info (`info/<name>`) may be anything, whatever their name.
    """
    return metric.endswith("_rate") and not metric.startswith("info/")


def over_tasks(outcomes: Sequence[Sequence[float]]) -> Estimate:
    """Interval of a success rate whose episodes are clustered by task.

    Wilson's score interval with the effective sample size (from the variance between tasks) and
    Student's t with one degree of freedom less than tasks: Korn and Graubard 1998, Survey
    Methodology 24, 193-201; compared with others by Dean and Pagano 2015, Journal of Survey
    Statistics and Methodology 3, 484-503.

    Args:
        outcomes: Success of each episode, within [0, 1], `[task][episode]`; a task without
            episodes does not count. With one task there is no interval.

    Raises:
        ValueError: There is no episode.
    """
    tasks = [task for task in outcomes if len(task)]
    sizes = [len(task) for task in tasks]
    episodes = sum(sizes)
    if not episodes:
        raise ValueError("a success rate needs at least one episode")
    rate = math.fsum(math.fsum(task) for task in tasks) / episodes
    if len(tasks) < 2:
        return Estimate(rate, None, None, "none", len(tasks))
    n = _effective_episodes(tasks, rate)
    t = t_quantile(len(tasks) - 1)
    scale = 1 + t * t / n
    centre = (rate + t * t / (2 * n)) / scale
    half = t / scale * math.sqrt(rate * (1 - rate) / n + (t / (2 * n)) ** 2)
    return Estimate(rate, max(0.0, centre - half), min(1.0, centre + half), "tasks", len(tasks))


def mean_over_tasks(outcomes: Sequence[Sequence[float]]) -> Estimate:
    """Student's t interval of a mean of any values, such as returns, clustered by task.

    Every task has the same weight, whatever its number of episodes.

    Args:
        outcomes: A value of each episode, `[task][episode]`; a task without episodes does not
            count. With one task there is no interval.

    Raises:
        ValueError: There is no episode.
    """
    means = [statistics.fmean(task) for task in outcomes if len(task)]
    if not means:
        raise ValueError("a mean needs at least one episode")
    return _t_interval(means, "tasks")


def mean_of_estimates(parts: Sequence[Estimate]) -> Estimate:
    """Interval of the mean of several independent estimates, each with the same weight.

    From the intervals of the parts, which need not be symmetric: Zou and Donner 2008, Statistics in
    Medicine 27, 1693-1702 (MOVER). If one has no interval, the mean has none.

    Args:
        parts: At least one; a single one is returned as it is.
    """
    if len(parts) == 1:
        return parts[0]
    mean, n = statistics.fmean(part.mean for part in parts), sum(part.n for part in parts)
    below = above = 0.0
    for part in parts:
        if part.low is None or part.high is None:
            return Estimate(mean, None, None, "none", n)
        below += (part.mean - part.low) ** 2
        above += (part.high - part.mean) ** 2
    low, high = (math.sqrt(each) / len(parts) for each in (below, above))
    return Estimate(mean, mean - low, mean + high, parts[0].method, n)


def difference_of_runs(a: Mapping[Key, float], b: Mapping[Key, float]) -> Estimate:
    """Interval of the mean of `a` minus that of `b`, each over runs.

    Paired if both have the same seeds; otherwise Welch's t interval (Welch 1947, Biometrika 34,
    28-35).

    Args:
        a: A value for each seed, at least one.
        b: Likewise.
    """
    if a.keys() == b.keys():
        return _t_interval([a[key] - b[key] for key in a], "paired runs")
    return _welch(list(a.values()), list(b.values()), "unpaired runs")


def difference_of_tasks(
    a: Mapping[Key, Sequence[float]], b: Mapping[Key, Sequence[float]]
) -> Estimate:
    """Interval of the mean success of one run minus that of another.

    Paired over the tasks that both played (`difference_of_success`); if there are none, unpaired,
    Welch's t over tasks.

    Args:
        a: Success of the episodes of each task, within [0, 1], at least one episode per task.
        b: Likewise.
    """
    if not a.keys().isdisjoint(b):
        return difference_of_success(a, b)
    ours, theirs = ([statistics.fmean(v) for v in x.values()] for x in (a, b))
    return _welch(ours, theirs, "unpaired tasks")


def difference_of_success(
    a: Mapping[Key, Sequence[float]], b: Mapping[Key, Sequence[float]]
) -> Estimate:
    """Interval of the mean success of one run minus that of another, paired over common tasks.

    The difference is the mean gain minus the mean loss of a task, each with a score interval
    (`over_tasks`) and joined with their correlation (Zou and Donner 2008, as in
    `mean_of_estimates`). So runs that agree on every task have an interval, too: few tasks say
    little, which Student's t would not show.

    Args:
        a: Success of the episodes of each task, within [0, 1], at least one episode per task.
        b: Likewise.

    Raises:
        ValueError: No task is in both.
    """
    changes = [statistics.fmean(a[key]) - statistics.fmean(b[key]) for key in a if key in b]
    up = [max(change, 0.0) for change in changes]
    down = [max(-change, 0.0) for change in changes]
    gain, loss = (over_tasks([[each] for each in side]) for side in (up, down))
    mean, n = gain.mean - loss.mean, len(changes)
    if gain.low is None or gain.high is None or loss.low is None or loss.high is None:
        return Estimate(mean, None, None, "none", n)
    together = 0.0
    if len(set(up)) > 1 and len(set(down)) > 1:
        together = statistics.correlation(up, down)

    def width(ours: float, theirs: float) -> float:
        return math.sqrt(ours**2 + theirs**2 - 2 * together * ours * theirs)

    low = mean - width(gain.mean - gain.low, loss.high - loss.mean)
    high = mean + width(gain.high - gain.mean, loss.mean - loss.low)
    return Estimate(mean, max(-1.0, low), min(1.0, high), "paired tasks", n)


def _t_interval(values: Sequence[float], method: Method) -> Estimate:
    n = len(values)
    mean = statistics.fmean(values)
    if n < 2:
        return Estimate(mean, None, None, "none", n)
    half = t_quantile(n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, method, n)


def _welch(a: Sequence[float], b: Sequence[float], method: Method) -> Estimate:
    mean, n = statistics.fmean(a) - statistics.fmean(b), min(len(a), len(b))
    if n < 2:
        return Estimate(mean, None, None, "none", n)
    u, v = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    spread = u + v
    # Rounded down below, so that the interval errs on the wide side.
    degrees = spread**2 / (u**2 / (len(a) - 1) + v**2 / (len(b) - 1)) if spread else 1.0
    half = t_quantile(max(1, math.floor(degrees))) * math.sqrt(spread)
    return Estimate(mean, mean - half, mean + half, method, n)


def _effective_episodes(tasks: Sequence[Sequence[float]], rate: float) -> float:
    """Effective sample size: the number of independent episodes with the same information.

    Between the number of tasks (all episodes of a task end alike) and the number of episodes.
    """
    sizes = [len(task) for task in tasks]
    episodes, k = sum(sizes), len(tasks)
    fewest = episodes**2 / sum(n * n for n in sizes)
    deviations = (math.fsum(task) - rate * n for task, n in zip(tasks, sizes, strict=True))
    variance = k / (k - 1) * math.fsum(d * d for d in deviations) / episodes**2
    # If all episodes ended alike, the variance between tasks is unknown: assume the worst.
    if not 0 < rate < 1:
        return fewest
    return min(max(rate * (1 - rate) / variance, fewest), episodes) if variance else episodes


@lru_cache(maxsize=1024)
def t_quantile(degrees: int) -> float:
    """Half width of the central `LEVEL` interval of Student's t distribution.

    Args:
        degrees: Degrees of freedom, an integer of at least 1.
    """
    probability = (1 + LEVEL) / 2
    low, high = 0.0, 1.0
    while _t_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if _t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return high


def _t_cdf(t: float, degrees: int) -> float:
    """For t >= 0; Abramowitz and Stegun 26.7.3 (odd degrees) and 26.7.4 (even degrees)."""
    theta = math.atan(t / math.sqrt(degrees))
    cos2 = math.cos(theta) ** 2
    odd = degrees % 2
    term = math.cos(theta) if odd else 1.0
    total = 0.0 if degrees == 1 else term
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= cos2 * (k - 1) / k
        total += term
    inside = 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total
    return 0.5 + inside / 2
