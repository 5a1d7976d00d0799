"""Compares groups of runs: cost, success, and whether a comparison is fair.

Final success is the mean over the last `window` iterations of training, best success the highest
mean over any `window` consecutive iterations; both use the sampled training episodes. Final success
has a confidence interval, over runs if there are several seeds, else over tasks; best success, a
maximum, has none (`gem_bench.stats`). Differences to the first group are paired where both groups
have the same seeds or tasks.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gem_bench.parity import untold_text
from gem_bench.provenance import decisive
from gem_bench.series import TRAIN, Group, Run, differences
from gem_bench.stats import (
    Estimate,
    difference_of_runs,
    difference_of_tasks,
    over_tasks,
    rate_over_runs,
)
from gem_train.experiment.metrics import failures_text
from gem_train.table import Parity


@dataclass(frozen=True)
class Row:
    """One group of runs; numbers are means over its runs."""

    label: str
    trainer: str
    folders: list[str]
    seeds: list[int | None]
    iterations: float
    episodes: float
    failed_episodes: float
    failed_by_cause: dict[str, float]
    """Failed episodes by cause, see `gem.blame.CAUSES`."""
    turns: float
    sampled_tokens: float
    wall_s: float | None
    """From the start of the launcher to its end."""
    start_up_s: float | None
    """Until the first iteration was recorded."""
    iteration_s: float | None
    """Median seconds between recorded iterations."""
    final: Estimate | None
    best: float | None
    departures: list[Parity]
    """Settings that are not matched."""


@dataclass(frozen=True)
class Contrast:
    """Final success of one group minus that of the first group."""

    label: str
    baseline: str
    difference: Estimate


@dataclass(frozen=True)
class Comparison:
    """All groups, and the caveats of comparing them."""

    window: int
    rows: list[Row]
    contrasts: list[Contrast]
    differing: dict[str, list[Any]]
    """Settings that differ between the groups: key, value in each."""
    notes: list[str]


def compare(groups: Sequence[Group], *, window: int = 20) -> Comparison:
    """Compare groups of runs.

    Args:
        groups: As read by `load_runs`.
        window: Iterations over which final and best success are averaged.
    """
    finals = [_Final.read(group, window) for group in groups]
    return Comparison(
        window,
        [_row(group, final, window) for group, final in zip(groups, finals, strict=True)],
        _contrasts(groups, finals),
        differences([group.settings for group in groups]),
        [
            *notes(groups),
            *_hardware_notes(groups),
            *_clip_notes(groups),
            *_untold_notes(groups),
        ],
    )


def window_means(run: Run, window: int) -> list[float]:
    """Return the success rate of every `window` consecutive iterations, of all if fewer."""
    points = [(rate * count, count) for _, rate, count in _points(run)]
    last = max(len(points) - window, 0)
    spans = [points[i : i + window] for i in range(last + 1)] if points else []
    return [sum(s for s, _ in span) / sum(n for _, n in span) for span in spans]


def _points(run: Run) -> list[tuple[int, float, float]]:
    """Iteration, success rate and number of episodes, where both are recorded."""
    curve = run.curves.get(TRAIN)
    if curve is None:
        return []
    columns = (curve.iterations, curve.column("success_rate"), curve.column("episodes"))
    return [
        (iteration, rate, count)
        for iteration, rate, count in zip(*columns, strict=True)
        if rate is not None and count
    ]


@dataclass(frozen=True)
class _Final:
    """The success of a group in its last iterations."""

    rates: dict[Hashable, float]
    """Success rate by the seeds of the run and of its tasks, or by a key that no other group has
    where seeds repeat or are not known. Runs without a rate are missing."""
    outcomes: dict[str, list[float]]
    """Success of each episode by task, if the group is one run that recorded all its episodes."""

    @classmethod
    def read(cls, group: Group, window: int) -> _Final:
        keys: list[Hashable] = [(run.seed, run.task_seed) for run in group.runs]
        if len(set(keys)) < len(keys) or any(run.seed is None for run in group.runs):
            keys = [(run.folder, i) for i, run in enumerate(group.runs)]
        means = [window_means(run, window) for run in group.runs]
        outcomes: dict[str, list[float]] = {}
        if len(group.runs) == 1:
            run = group.runs[0]
            last = frozenset(iteration for iteration, _, _ in _points(run)[-window:])
            # A part of the episodes has another mean than all, which the curve is of.
            if not run.record.missing(TRAIN, last):
                outcomes = run.outcomes(TRAIN, last)
        return cls(
            {key: found[-1] for key, found in zip(keys, means, strict=True) if found}, outcomes
        )

    @property
    def estimate(self) -> Estimate | None:
        if not self.rates:
            return None
        over = rate_over_runs(list(self.rates.values()))
        if len(self.rates) > 1 or not self.outcomes:
            return over
        # The mean of the metrics, as in the curve; the interval of the episodes.
        return replace(over_tasks(list(self.outcomes.values())), mean=over.mean)


def _contrasts(groups: Sequence[Group], finals: Sequence[_Final]) -> list[Contrast]:
    """Return each group minus the first, with an interval where the data allow one."""
    found = []
    for group, final in zip(groups[1:], finals[1:], strict=True):
        if not finals[0].rates or not final.rates:
            continue
        if final.outcomes and finals[0].outcomes:
            difference = difference_of_tasks(final.outcomes, finals[0].outcomes)
        else:
            difference = difference_of_runs(final.rates, finals[0].rates)
        found.append(Contrast(group.label, groups[0].label, difference))
    return found


def _row(group: Group, final: _Final, window: int) -> Row:
    runs = group.runs
    best = [max(means) for run in runs if (means := window_means(run, window))]
    parity = {(k.name, k.status, k.how): k for run in runs for k in run.parity}
    return Row(
        label=group.label,
        trainer=group.trainer,
        folders=[str(run.folder) for run in runs],
        seeds=[run.seed for run in runs],
        iterations=statistics.fmean(_iterations(run) for run in runs),
        episodes=statistics.fmean(run.total("episodes") for run in runs),
        failed_episodes=statistics.fmean(run.total("failed_episodes") for run in runs),
        failed_by_cause=_failed_by_cause(runs),
        turns=statistics.fmean(run.total("turns_total") for run in runs),
        sampled_tokens=statistics.fmean(run.total("sampled_tokens") for run in runs),
        wall_s=_mean([run.seconds for run in runs]),
        start_up_s=_mean([run.record.meta.get("seconds", {}).get("start_up") for run in runs]),
        iteration_s=_mean([_iteration_seconds(run) for run in runs]),
        final=final.estimate,
        best=_mean(best),
        departures=[each for each in parity.values() if each.status != "matched"],
    )


def _failed_by_cause(runs: Sequence[Run]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.failed_by_cause())
    return {cause: count / len(runs) for cause, count in counts.most_common()}


def _iterations(run: Run) -> int:
    return len(run.curves[TRAIN].iterations) if TRAIN in run.curves else 0


def _iteration_seconds(run: Run) -> float | None:
    times = run.curves[TRAIN].seconds if TRAIN in run.curves else []
    steps = [b - a for a, b in itertools.pairwise(times)]
    return statistics.median(steps) if steps else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def notes(groups: Sequence[Group]) -> list[str]:
    """Say what spoils the numbers of groups of runs."""
    return [*(note for group in groups for note in _notes(group)), *_origin_notes(groups)]


def _notes(group: Group) -> list[str]:
    found = []
    for run in group.runs:
        if run.status not in ("finished", "unknown"):
            found.append(f"{run.folder}: this run is not finished ({run.status})")
        found += [
            f"{run.folder}, {split}: {failures_text(counts)}; they count nowhere"
            for split in run.curves
            if (counts := run.failed_by_cause(split))
        ]
        found += [
            f"{run.folder}, {split}: {missing:,} episodes are not recorded; an interval over tasks "
            "is left out where one is missing"
            for split in run.curves
            if (missing := run.record.missing(split))
        ]
        if not run.spec:
            missing_part = "run.json has no spec" if run.record.meta else "no run.json"
            found.append(f"{run.folder}: {missing_part}, so its settings are not known")
    seeds = [run.seed for run in group.runs]
    if len(set(seeds)) < len(seeds):
        found.append(f"{group.label}: runs share a seed, so the interval is too narrow")
    return found


def _origin_notes(groups: Sequence[Group]) -> list[str]:
    """Say where runs of one trainer had different models or versions, which no setting says."""
    found = []
    for trainer in dict.fromkeys(group.trainer for group in groups):
        members = [group for group in groups if group.trainer == trainer]
        origins = _origins([run for group in members for run in group.runs])
        if not origins:
            continue
        mixed = ", ".join(group.label for group in members if _origins(group.runs))
        found.append(
            f"{trainer}: runs are not of one model and version ({'; '.join(origins)})"
            + (f"; these means are over several: {mixed}" if mixed else "")
        )
    return found


def _origins(runs: Sequence[Run]) -> list[str]:
    """Return each model setting and each package that has several values, with the values."""
    values: dict[tuple[str, Any], dict[str, None]] = defaultdict(dict)
    for run in runs:
        meta = run.record.meta
        if "model" in meta:
            # A small model is made for its experiment's environment.
            setting = run.spec.get("name"), run.spec.get("policy.model")
            values["model", setting][str(meta["model"])] = None
        for name, version in decisive(meta.get("versions", {})).items():
            values[name, None][version] = None
    return [f"{name}: {', '.join(each)}" for (name, _), each in values.items() if len(each) > 1]


def _hardware_notes(groups: Sequence[Group]) -> list[str]:
    runs = [run for group in groups for run in group.runs]
    found = differences([run.hardware for run in runs])
    if not found:
        return []
    each = "; ".join(f"{key}: {', '.join(map(repr, values))}" for key, values in found.items())
    return [f"the hardware differs, which is no difference of the experiment ({each})"]


def _clipped_tokens(name: str) -> Callable[[Run], list[float | None]]:
    return lambda run: run.curves[TRAIN].column(name) if TRAIN in run.curves else []


def _clipped_gradients(run: Run) -> list[float | None]:
    most = run.spec.get("optimizer.grad_clip")
    norms = _clipped_tokens("grad_norm")(run)
    if not isinstance(most, int | float):
        return [None] * len(norms)
    return [None if norm is None else float(norm > most) for norm in norms]


_CLIPS: dict[str, tuple[str, Callable[[Run], list[float | None]]]] = {
    "the policy's clip": ("of tokens", _clipped_tokens("clip_fraction")),
    "the bound of importance weights (tis_*)": ("of tokens", _clipped_tokens("tis_fraction")),
    "rejection (reject_*)": ("of tokens", _clipped_tokens("rejected_fraction")),
    "the gradient's clip": ("of iterations", _clipped_gradients),
}
"""What limits updates; of what the share is, and that of each iteration, None where unknown."""
ACTS, IDLE = 0.01, 0.001
"""Share from which a limit changes what is learned, and up to which it does not."""


def _clip_notes(groups: Sequence[Group]) -> list[str]:
    """Say where a limit of updates acts in some groups and not in others."""
    found = []
    for name, (of, values) in _CLIPS.items():
        shares = {}
        for group in groups:
            known = [v for run in group.runs for v in values(run) if v is not None]
            shares[group.label] = statistics.fmean(known) if known else None
        acting = [label for label, share in shares.items() if share is not None and share >= ACTS]
        idle = [label for label, share in shares.items() if share is None or share <= IDLE]
        if acting and idle:
            shown = "; ".join(
                f"{label}: {'not recorded' if share is None else f'{share:.1%} {of}'}"
                for label, share in shares.items()
            )
            found.append(
                f"{name} acts in {', '.join(acting)}, and is not seen to act in {', '.join(idle)} "
                f"({shown}): their updates are not of one kind"
            )
    return found


def _untold_notes(groups: Sequence[Group]) -> list[str]:
    """Say which metrics of an update some trainers cannot give and others do."""
    found = []
    for group in groups:
        untold = {k: v for run in group.runs for k, v in run.record.meta.get("untold", {}).items()}
        others = [run for other in groups if other is not group for run in other.runs]
        known = {k: v for k, v in untold.items() if any(_column(run, k) for run in others)}
        found += [f"{group.label}: {line}" for line in untold_text(known)]
    return found


def _column(run: Run, name: str) -> list[float]:
    """Return the values of a metric of training that are recorded."""
    values = run.curves[TRAIN].column(name) if TRAIN in run.curves else []
    return [value for value in values if value is not None]


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "runs": lambda r: str(len(r.folders)),
    "iterations": lambda r: f"{r.iterations:,.0f}",
    "episodes": lambda r: f"{r.episodes:,.0f}",
    "turns": lambda r: f"{r.turns:,.0f}",
    "sampled tokens": lambda r: f"{r.sampled_tokens:,.0f}",
    "wall s": lambda r: number(r.wall_s, 0),
    "start-up s": lambda r: number(r.start_up_s, 0),
    "s/iteration": lambda r: number(r.iteration_s, 2),
    "final success": lambda r: estimate(r.final),
    "best success": lambda r: number(r.best, 3),
}


def number(value: float | None, digits: int) -> str:
    """Return a number with thousands separators; `-` for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def estimate(value: Estimate | None, sign: str = "") -> str:
    """Return `mean [low, high]`, or the mean alone if there is no interval.

    Args:
        value: Estimate; None becomes `-`.
        sign: `+` to write the sign of positive numbers.
    """
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return f"{value.mean:{sign}.3f}"
    return f"{value.mean:{sign}.3f} [{value.low:{sign}.3f}, {value.high:{sign}.3f}]"


HOW = {
    "runs": "over {n} runs",
    "tasks": "over {n:,} tasks of one run; runs differ by more",
    "paired runs": "over {n} pairs of runs with the same seed",
    "paired tasks": "over {n:,} tasks that both played; runs differ by more",
    "unpaired runs": "over unpaired runs",
    "unpaired tasks": "over the tasks of one run each; runs differ by more",
    "bootstrap": "stratified bootstrap of the runs of {n} environments",
    "none": "no interval: too little to tell",
}
"""Text that explains each kind of interval; format it with `n`."""


def told(value: Estimate) -> str:
    """Return what an interval is over."""
    return HOW[value.method].format(n=value.n)


def contrasts(comparison: Comparison) -> list[str]:
    """Return a line for each difference to the first group."""
    return [
        f"{c.label} less {c.baseline}: final success {estimate(c.difference, '+')} "
        f"({told(c.difference)})"
        for c in comparison.contrasts
    ]


def table(comparison: Comparison) -> list[list[str]]:
    """Return the table of numbers, heading first."""
    heading = ["", *_COLUMNS]
    return [
        heading,
        *([r.label, *(show(r) for show in _COLUMNS.values())] for r in comparison.rows),
    ]


def remarks(comparison: Comparison) -> list[str]:
    """Return how to read the table, and what makes the comparison unfair."""
    finals = [row.final for row in comparison.rows if row.final is not None]
    how = sorted(set(map(told, finals)))
    lines = [
        f"Success is that of sampled training episodes, averaged over (up to) {comparison.window} "
        f"iterations; in brackets the 95 % interval ({'; '.join(how) or 'none'}). The best of many "
        "windows is above its own mean by chance and has no interval. Counts are per run.",
        *contrasts(comparison),
    ]
    if comparison.differing:
        keys = ", ".join(comparison.differing)
        lines.append(f"These runs are not of one experiment; they differ in: {keys}.")
    return lines + comparison.notes


def as_text(comparison: Comparison) -> str:
    """Render for a terminal."""
    cells = table(comparison)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for label, *numbers in cells:
        padded = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *padded]))
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines += ["", *remarks(comparison)]
    for row in comparison.rows:
        lines += ["", f"{row.label}: settings that are not matched ({len(row.departures)})"]
        width = min(max((len(k.name) for k in row.departures), default=0), 32)
        lines += [f"  {k.status:9}  {k.name:<{width}}  {k.how}".rstrip() for k in row.departures]
    for key, values in comparison.differing.items():
        shown = "; ".join(f"{r.label}: {v}" for r, v in zip(comparison.rows, values, strict=True))
        lines += ["", f"{key}  {shown}"]
    return "\n".join(lines)


def as_markdown(comparison: Comparison) -> str:
    """Render for a document."""
    heading, *rows = table(comparison)
    lines = [cells(heading), cells(["---", *["---:"] * (len(heading) - 1)])]
    lines += [cells(row) for row in rows]
    lines += ["", *(f"- {line}" for line in remarks(comparison))]
    departures = [(row.label, each) for row in comparison.rows for each in row.departures]
    if departures:
        lines += ["", cells(["", "setting", "parity", "how"]), cells(["---"] * 4)]
        lines += [cells([label, f"`{k.name}`", k.status, k.how]) for label, k in departures]
    if comparison.differing:
        labels = [row.label for row in comparison.rows]
        lines += ["", cells(["differs", *labels]), cells(["---"] * (len(labels) + 1))]
        for key, values in comparison.differing.items():
            lines.append(cells([f"`{key}`", *(f"`{value}`" for value in values)]))
    return "\n".join(lines)


def as_json(comparison: Comparison) -> str:
    """Render for programs."""
    return json.dumps(asdict(comparison), indent=2)


def cells(texts: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


RENDERERS: dict[str, Callable[[Comparison], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
