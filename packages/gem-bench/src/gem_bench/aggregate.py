"""Aggregates over several environments, with intervals from few runs each.

Scores are `[environment][run]`. The measures and their stratified bootstrap are those of Agarwal et
al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv 2108.13264,
sections 4.1 to 4.3): each replicate draws as many runs of every environment, with replacement, as
there are, and the interval holds the middle 95 % of the replicates. It is about other runs on these
environments, not about other environments. A bootstrap of three runs shows less than the whole
variation between runs; `tests/bench/test_aggregate.py` measures how much less.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gem.seeding import stream
from gem_bench.stats import LEVEL, Estimate

Scores: TypeAlias = Sequence[Sequence[float]]
"""One number of each run, `[environment][run]`, at least one run in each."""
REPLICATES = 2000


def mean(scores: Scores) -> Estimate:
    """Mean over environments of the mean over runs; every environment has the same weight."""
    return _bootstrap(lambda s: statistics.fmean(statistics.fmean(runs) for runs in s), scores)


def interquartile_mean(scores: Scores) -> Estimate:
    """Mean of the middle half of all runs of all environments (section 4.3, IQM).

    A quarter of the runs is left out at each end; a run that a quarter cuts counts in part.
    """
    return _bootstrap(lambda s: _middle([run for runs in s for run in runs]), scores)


def probability_of_improvement(ours: Scores, theirs: Scores) -> Estimate:
    """Probability that a run of one algorithm scores higher than one of another, over environments.

    The mean over environments of Mann and Whitney's U over all pairs of runs, ties counted half,
    divided by the number of pairs (section 4.3). 0.5 is no difference.

    Args:
        ours: Scores of an algorithm.
        theirs: Of another one, in the same environments; numbers of runs may differ.

    Raises:
        ValueError: They do not have the same number of environments.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} environments cannot be compared with {len(theirs)}")
    n = len(ours)
    return _bootstrap(
        lambda s: statistics.fmean(map(_share_better, s[:n], s[n:])), [*ours, *theirs], n
    )


def _share_better(ours: Sequence[float], theirs: Sequence[float]) -> float:
    won = sum((a > b) + (a == b) / 2 for a in ours for b in theirs)
    return won / (len(ours) * len(theirs))


def _middle(values: list[float]) -> float:
    ordered, cut = sorted(values), len(values) / 4
    weights = [max(0.0, min(i + 1, len(ordered) - cut) - max(i, cut)) for i in range(len(ordered))]
    return sum(w * v for w, v in zip(weights, ordered, strict=True)) / sum(weights)


def _bootstrap(
    statistic: Callable[[Scores], float], scores: Scores, environments: int | None = None
) -> Estimate:
    """Return a statistic with the stratified bootstrap's percentile interval.

    There is none where an environment has one run: nothing shows how its runs differ.
    """
    n = len(scores) if environments is None else environments
    found = statistic(scores)
    if min(map(len, scores)) < 2:
        return Estimate(found, None, None, "none", n)
    rng = stream(0)
    replicates = sorted(statistic(_drawn(scores, rng)) for _ in range(REPLICATES))
    outside = round(REPLICATES * (1 - LEVEL) / 2)
    return Estimate(found, replicates[outside], replicates[-1 - outside], "bootstrap", n)


def _drawn(scores: Scores, rng: random.Random) -> Scores:
    return [rng.choices(runs, k=len(runs)) for runs in scores]
