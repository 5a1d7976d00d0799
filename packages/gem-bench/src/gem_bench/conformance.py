"""Checks that a trainer computes what the reference does, from the records of two greedy runs.

- L0: the trainer's per-token advantages are those of `gem.advantage`, to the last float32 bit.
- L1: token ids, masks and per-token rewards of the first batch are equal.
- L2: gradient norm and loss of the updates up to the first non-zero one are equal within
  `RELATIVE`.
- L3: the mean return of every iteration is equal.

The runs must use the same RunSpec with greedy sampling (`top_k = 1`), fp32 and different seeds for
all episodes of a batch, and must have recorded their own training rows (`GEM_RECORD_ROWS=1`).
`gem_bench.conformance_run` makes such runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem_train.experiment.runspec import AlgorithmPart, RunSpec
from gem_train.record import EpisodeRecord, RunRecord, TrainedRow
from gem_train.testing.conformance import SAMPLED, Finding, expected_rows, float32, row_findings

RELATIVE = 1e-3
"""Allowed relative difference of gradient norm and loss."""
LOSS_FLOOR = 1e-5
"""Allowed absolute difference of the loss: with normalised advantages it is near 0."""
RETURN_TOLERANCE = 1e-6
"""Allowed difference of mean returns: rounding, far below one episode's smallest reward."""

_MAY_DIFFER = ("name", "policy.model", "policy.lora_init", "eval")
"""Settings that need not be equal: names, places of the same weights, and what is not trained."""


@dataclass(frozen=True)
class Level:
    """What two runs have in common at one level."""

    name: str
    """`L0` to `L3`."""
    compared: str
    """What was compared, with its number."""
    findings: list[Finding]
    largest: float
    """Largest absolute difference between numbers; infinite where one is missing or NaN."""
    unknown: str = ""
    """Why nothing can be said; empty where something can."""

    @property
    def result(self) -> str:
        """`equal`, `differs` or `unknown`."""
        return "differs" if self.findings else "unknown" if self.unknown else "equal"


def compare_runs(reference: RunRecord, other: RunRecord, algorithm: AlgorithmPart) -> list[Finding]:
    """Return everything in `other` that differs from `reference`; empty means it conforms."""
    levels = compare_levels(reference, other, algorithm)
    return [finding for level in levels for finding in level.findings]


def compare_levels(reference: RunRecord, other: RunRecord, algorithm: AlgorithmPart) -> list[Level]:
    """Compare `other` with `reference` at levels L0 to L3.

    Raises:
        ConfigurationError: Episodes of a first batch are not recorded.
    """
    ours, theirs = _first_batch(reference), _first_batch(other)
    return [
        check_advantages(theirs, algorithm),
        check_rows(ours, theirs),
        check_update(_train(reference), _train(other)),
        check_curve(_train(reference), _train(other)),
    ]


def common_spec(reference: RunRecord, other: RunRecord) -> RunSpec:
    """Return the experiment that two runs are of.

    Raises:
        ConfigurationError: It is unknown or not the same, or its sampling is not greedy.
    """
    specs = []
    for run in (reference, other):
        if "spec" not in run.meta:
            raise ConfigurationError(
                f"{run.folder} does not say what was run: run.json has no `spec`; "
                "`gem-bench run` writes it"
            )
        specs.append(RunSpec.from_mapping(run.meta["spec"]))
    mine, theirs = (flatten(spec.settings()) for spec in specs)
    differing = [
        f"{key} ({mine.get(key)!r} and {theirs.get(key)!r})"
        for key in dict.fromkeys([*mine, *theirs])
        if mine.get(key) != theirs.get(key) and not key.startswith(_MAY_DIFFER)
    ]
    if differing:
        raise ConfigurationError(
            f"{reference.folder} and {other.folder} are not of one experiment; they differ in "
            f"{', '.join(differing)}"
        )
    check_greedy(specs[0])
    return specs[0]


def check_greedy(spec: RunSpec) -> None:
    """Make sure that nothing is random in an experiment.

    Raises:
        ConfigurationError: The policy samples.
    """
    if spec.sampling.top_k != 1:
        raise ConfigurationError(
            f"sampling.top_k must be 1 to compare runs token by token, got {spec.sampling.top_k}; "
            "`gem-bench audit` is for runs that sample"
        )


def check_advantages(episodes: Sequence[EpisodeRecord], algorithm: AlgorithmPart) -> Level:
    """L0 on a recorded batch: recompute the advantages and compare with the trainer's rows.

    `gae` is not checked: it depends on the critic's values, which are not in the record.
    """
    if algorithm.estimator.needs_critic:
        return Level("L0", "nothing", [], 0.0, "gae depends on values that are not recorded")
    wanted = expected_rows([e.trajectory for e in episodes], algorithm)
    found, count, largest = [], 0, 0.0
    for episode, mine in zip(episodes, wanted, strict=True):
        if not episode.trajectory.valid:
            continue
        where = f"seed {episode.trajectory.task.seed}"
        theirs = episode.rows
        if theirs is None or len(mine) != len(theirs):
            found.append(_rows_differ("L0", f"rows with advantages of {where}", mine, theirs))
            continue
        for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            b = replace(b, advantages=float32(b.advantages))
            found += row_findings("L0", f"{where}, row {index}", a, b, ["advantages"])
            largest = max(largest, _distance(a.advantages, b.advantages))
            count += 1
    return _level("L0", f"advantages of {count} rows", found, largest, count)


def check_rows(reference: Sequence[EpisodeRecord], other: Sequence[EpisodeRecord]) -> Level:
    """L1: the same episodes with the same training rows."""
    expected, got = _by_task(reference), _by_task(other)
    found, count, largest = [], 0, 0.0
    for key in sorted(expected.keys() | got.keys()):
        where = f"seed {key[0]}" + (f", copy {key[1]}" if key[1] else "")
        if key not in expected or key not in got:
            found.append(Finding("L1", f"episode of {where}", key in expected, key in got))
            continue
        mine, theirs = expected[key].rows, got[key].rows
        if mine is None or theirs is None or len(mine) != len(theirs):
            found.append(_rows_differ("L1", f"rows of {where}", mine, theirs))
            continue
        for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            found += row_findings("L1", f"{where}, row {index}", a, b, (*SAMPLED, "rewards"))
            largest = max(largest, _distance(float32(a.rewards), float32(b.rewards)))
            count += 1
    return _level("L1", f"ids, masks and rewards of {count} rows", found, largest, count)


def check_update(reference: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> Level:
    """L2: gradient norm and loss of the updates up to the first with a gradient."""
    found, count, largest = [], 0, 0.0
    for k, (mine, theirs) in enumerate(zip(reference, other, strict=False)):
        if mine.get("grad_norm") is None and theirs.get("grad_norm") is None:
            continue  # a critic's warm-up
        for name, floor in (("grad_norm", 0.0), ("loss", LOSS_FLOOR)):
            a, b = mine.get(name), theirs.get(name)
            distance = _distance([a], [b])
            if a is None or distance > max(RELATIVE * abs(a), floor):
                found.append(Finding("L2", f"{name} of iteration {k}", a, b))
            largest = max(largest, distance)
        count += 1
        if mine.get("grad_norm"):
            break
    else:
        found.append(Finding("L2", "an update with a gradient", "one", "none"))
    what = "the first update" if count == 1 else f"the first {count} updates"
    return Level("L2", f"gradient norm and loss of {what}", found, largest)


def check_curve(reference: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> Level:
    """L3: the mean return of every iteration."""
    a, b = ([m.get("return_mean") for m in metrics] for metrics in (reference, other))
    distances = [_distance([x], [y]) for x, y in zip(a, b, strict=False)]
    found = [
        Finding("L3", f"return_mean of iteration {k}", a[k], b[k])
        for k, distance in enumerate(distances)
        if distance > RETURN_TOLERANCE
    ]
    if len(a) != len(b):
        found.insert(0, Finding("L3", "number of iterations", len(a), len(b)))
    compared = f"mean return of {len(distances)} iterations"
    return _level("L3", compared, found, max(distances, default=0.0), len(distances))


def table(levels: Sequence[Level]) -> str:
    """Return a line for each level: what was compared, the result, where they first differ."""
    lines: list[tuple[str, ...]] = [
        ("level", "compared", "result", "largest difference", "first difference")
    ]
    for level in levels:
        first = _shown(level.findings[0]) if level.findings else level.unknown
        largest = f"{level.largest:.3g}" if math.isfinite(level.largest) else "-"
        lines.append((level.name, level.compared, level.result, largest, first))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _shown(finding: Finding) -> str:
    # Nine digits tell any two float32 numbers apart.
    expected, found = (
        f"{value:.9g}" if isinstance(value, float) else str(value)
        for value in (finding.expected, finding.found)
    )
    return f"{finding.where}: expected {expected}, found {found}"


def _level(name: str, compared: str, found: list[Finding], largest: float, count: int) -> Level:
    if not count and not found:  # what compares nothing proves nothing
        found = [Finding(name, compared, "some", "none")]
    return Level(name, compared, found, largest)


def _rows_differ(
    level: str, where: str, expected: list[TrainedRow] | None, found: list[TrainedRow] | None
) -> Finding:
    counts = ["not recorded" if rows is None else len(rows) for rows in (expected, found)]
    return Finding(level, where, *counts)


def _distance(a: Sequence[float | None], b: Sequence[float | None]) -> float:
    """Return the largest absolute difference; infinite if a number is missing or NaN."""
    if len(a) != len(b):
        return math.inf
    pairs = zip(a, b, strict=True)
    differences = [math.nan if x is None or y is None else abs(x - y) for x, y in pairs]
    return math.inf if any(map(math.isnan, differences)) else max(differences, default=0.0)


def _by_task(episodes: Sequence[EpisodeRecord]) -> dict[tuple[int, int], EpisodeRecord]:
    """Return episodes by seed and by index among those with the same seed."""
    seen: Counter[int] = Counter()
    out = {}
    for episode in episodes:
        seed = episode.trajectory.task.seed
        out[seed, seen[seed]] = episode
        seen[seed] += 1
    return out


def _first_batch(run: RunRecord) -> list[EpisodeRecord]:
    if missing := run.missing("train", {0}):
        raise ConfigurationError(
            f"{run.folder} lacks {missing:,} episodes of the first iteration, of which all are "
            "compared: record them with `gem-bench run --record all`"
        )
    return list(run.episodes("train", {0}))


def _train(run: RunRecord) -> list[dict[str, Any]]:
    return [m for m in run.metrics if m["split"] == "train"]
