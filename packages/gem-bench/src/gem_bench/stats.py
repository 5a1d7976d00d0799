"""Confidence intervals for few runs and for many episodes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    method: Literal["t", "wilson"]
    """`t`: over runs with different seeds. `wilson`: over the episodes of one run, so it does not
    know how much runs differ from each other."""
    n: float
    """Runs or episodes."""


def over_runs(values: Sequence[float]) -> Estimate:
    """Student's t interval of the mean of independent runs.

    Args:
        values: One value a run, at least two.
    """
    n = len(values)
    mean = statistics.fmean(values)
    half = t_quantile(n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, "t", n)


def over_episodes(successes: float, episodes: float) -> Estimate:
    """Wilson's score interval of a success rate (Wilson 1927, JASA 22, 209-212).

    Args:
        successes: Number of successful episodes.
        episodes: Number of episodes, at least one.
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    rate = successes / episodes
    scale = 1 + z * z / episodes
    centre = (rate + z * z / (2 * episodes)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / episodes + (z / (2 * episodes)) ** 2)
    return Estimate(rate, max(0.0, centre - half), min(1.0, centre + half), "wilson", episodes)


def t_quantile(degrees: int, probability: float = (1 + LEVEL) / 2) -> float:
    """Quantile of Student's t distribution with an integer number of degrees of freedom.

    Args:
        degrees: At least 1.
        probability: Above 0.5.
    """
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
