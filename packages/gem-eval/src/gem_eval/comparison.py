"""Compares two evaluations task by task, and judges one: `gem eval compare`, `gem eval gate`."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from gem.errors import ConfigurationError
from gem_bench.stats import Estimate, difference_of_success, mean_of_estimates, t_quantile
from gem_eval.numbers import Outcome, overall, read_numbers, read_outcomes

_POWER_QUANTILE = 0.8416
"""80 % quantile of the normal distribution."""


class Verdict(IntEnum):
    """What a gate says; the value is the exit status."""

    PASSED = 0
    WORSE = 1
    UNDECIDED = 3


@dataclass(frozen=True)
class Difference:
    """How one evaluation differs from another in one environment."""

    name: str
    success: Estimate
    """Of the second minus the first, over the tasks that both played."""
    p: float
    """Exact two-sided sign test over tasks that differ (with one sample, McNemar's), corrected
    for the number of environments (Holm)."""
    gained: list[int]
    """Seeds of the tasks that the second solves more often."""
    lost: list[int]
    """Seeds of the tasks that it solves less often."""
    detectable: float | None
    """Smallest difference that so many tasks show four times out of five; None if no task
    differs."""
    unpaired: int
    """Tasks with a valid episode in one of the two only, which do not count."""


@dataclass(frozen=True)
class Comparison:
    """How one evaluation differs from another."""

    parts: list[Difference]
    overall: Estimate
    """The mean over environments, each with the same weight."""
    missing: list[str]
    """Environments that only one of the two has."""


def compare(first: Path, second: Path) -> Comparison:
    """Compare two records: the second minus the first.

    Raises:
        ConfigurationError: They have no task in common.
        RecordError: A record cannot be read.
    """
    ours, theirs = (_by_task(read_outcomes(folder)) for folder in (second, first))
    parts = []
    for name in ours:
        a, b = ours[name], theirs.get(name, {})
        if not a.keys() & b.keys():
            continue
        changes = {s: statistics.fmean(a[s]) - statistics.fmean(b[s]) for s in a if s in b}
        gained = sorted(seed for seed, change in changes.items() if change > 0)
        lost = sorted(seed for seed, change in changes.items() if change < 0)
        parts.append(
            Difference(
                name,
                difference_of_success(a, b),
                sign_test(len(gained), len(lost)),
                gained,
                lost,
                _detectable(list(changes.values())),
                len(a.keys() ^ b.keys()),
            )
        )
    if not parts:
        raise ConfigurationError(f"{first} and {second} have no task in common")
    compared = {part.name for part in parts}
    return Comparison(
        _corrected(parts),
        mean_of_estimates([part.success for part in parts]),
        [name for name in dict.fromkeys([*theirs, *ours]) if name not in compared],
    )


def judge(
    folder: Path,
    *,
    least: float | None = None,
    against: Path | None = None,
    max_drop: float = 0.0,
    max_failed: float = 0.1,
) -> tuple[Verdict, str]:
    """Decide whether an evaluation is good enough; return the verdict and its reason.

    It passed if its whole interval is on the right side, is worse if its whole interval is on the
    wrong side; otherwise the tasks are too few to tell. An evaluation that was cut off gets no
    verdict: short episodes end first, and may be those that are won.

    Args:
        folder: The evaluation.
        least: Overall success that it must have.
        against: An evaluation of the same tasks that it must not fall behind.
        max_drop: By how much it may fall behind.
        max_failed: Largest share of void episodes, in each environment of each of the two, with
            which there is a verdict.

    Raises:
        ConfigurationError: Neither or both of `least` and `against` are given, or two evaluations
            have not the same environments.
        RecordError: A record cannot be read.
    """
    if (least is None) == (against is None):
        raise ConfigurationError("a gate needs either --min or --against")
    for each in (folder, *([against] if against is not None else [])):
        parts = read_numbers(each)
        for part in parts:
            if part.missing:
                what = f"{part.name} in {each}: {part.cut_off}; --resume plays the rest"
                return Verdict.UNDECIDED, what
            if part.too_many_failed(max_failed):
                void = sum(part.failed.values())
                what = (
                    f"{void} of {part.episodes + void} episodes of {part.name} in {each} are void"
                )
                return Verdict.UNDECIDED, what
        if not parts:
            return Verdict.UNDECIDED, f"{each} has no episode"
    if against is None:
        assert least is not None
        total = overall(read_numbers(folder))
        assert total is not None
        assert total.success is not None
        return _verdict(total.success, least, "success")
    comparison = compare(against, folder)
    if comparison.missing:
        raise ConfigurationError(f"only one of the two has {', '.join(comparison.missing)}")
    verdict, reason = _verdict(comparison.overall, 0.0 - max_drop, "change of success")
    if unpaired := sum(part.unpaired for part in comparison.parts):
        reason += f"; {unpaired} tasks are in one of the two only"
    return verdict, reason


def sign_test(gained: int, lost: int) -> float:
    """Return the two-sided p-value of an exact sign test; 1 if nothing differs."""
    n, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / (1 << n))


def _verdict(found: Estimate, bound: float, what: str) -> tuple[Verdict, str]:
    if found.low is None or found.high is None:
        return Verdict.UNDECIDED, f"{what} {found.mean:.3f} of a single task has no interval"
    reason = f"{what} {found.mean:.3f} [{found.low:.3f}, {found.high:.3f}], wanted {bound:g}"
    if found.low >= bound:
        return Verdict.PASSED, reason
    if found.high < bound:
        return Verdict.WORSE, reason
    return Verdict.UNDECIDED, f"{reason}: {found.n} tasks are too few to tell"


def _by_task(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, dict[int, list[float]]]:
    found: dict[str, dict[int, list[float]]] = {}
    for name, part in outcomes.items():
        tasks = found.setdefault(name, defaultdict(list))
        for each in part:
            if each.failure is None:
                tasks[each.seed].append(each.success)
    return found


def _detectable(changes: Sequence[float]) -> float | None:
    if len(changes) < 2 or not any(changes):
        return None
    error = statistics.stdev(changes) / math.sqrt(len(changes))
    return (t_quantile(len(changes) - 1) + _POWER_QUANTILE) * error or None


def _corrected(parts: Sequence[Difference]) -> list[Difference]:
    """Correct the p-values: Holm 1979, Scandinavian Journal of Statistics 6, 65-70."""
    p, least = {}, 0.0
    for rank, part in enumerate(sorted(parts, key=lambda part: part.p)):
        least = max(least, min(1.0, part.p * (len(parts) - rank)))
        p[part.name] = least
    return [Difference(**{**vars(part), "p": p[part.name]}) for part in parts]
