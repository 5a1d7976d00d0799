"""Compare runs: what they cost, how well they did, and whether they are comparable at all.

Final success is the mean over the last `window` iterations of training, best success the highest
mean over any `window` iterations in a row; both are of the sampled training episodes. With
several seeds the interval is Student's t over runs, with one it is Wilson's over episodes.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gem.experiment import Knob
from gem_bench.series import TRAIN, Group, Run, differences
from gem_bench.stats import Estimate, over_episodes, over_runs


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
    turns: float
    sampled_tokens: float
    wall_s: float | None
    """From the start of the launcher to its end."""
    start_up_s: float | None
    """Until the first iteration was recorded."""
    iteration_s: float | None
    """Median seconds between two records."""
    final: Estimate | None
    best: Estimate | None
    knobs: list[Knob]
    """Settings that are not matched."""


@dataclass(frozen=True)
class Comparison:
    """All groups, and what a reader must know before comparing them."""

    window: int
    rows: list[Row]
    differing: dict[str, list[Any]]
    """Settings that differ between the groups: key, value in each."""
    notes: list[str]


def compare(groups: Sequence[Group], *, window: int = 20) -> Comparison:
    """Compare groups of runs.

    Args:
        groups: As read by `load_runs`.
        window: Iterations that final and best success are averaged over.
    """
    return Comparison(
        window,
        [_row(group, window) for group in groups],
        differences([group.settings for group in groups]),
        [note for group in groups for note in _notes(group)],
    )


def window_means(run: Run, window: int) -> list[tuple[float, float]]:
    """Return `(successes, episodes)` over every `window` iterations in a row, or over all."""
    curve = run.curves.get(TRAIN)
    if curve is None:
        return []
    points = [
        (rate * count, count)
        for rate, count in zip(curve.column("success_rate"), curve.column("episodes"), strict=True)
        if rate is not None and count
    ]
    last = max(len(points) - window, 0)
    spans = [points[i : i + window] for i in range(last + 1)] if points else []
    return [(sum(s for s, _ in span), sum(n for _, n in span)) for span in spans]


def _row(group: Group, window: int) -> Row:
    runs = group.runs
    spans = [w for run in runs if (w := window_means(run, window))]
    parity = {(k.name, k.status, k.how): k for run in runs for k in run.parity}
    return Row(
        label=group.label,
        trainer=group.trainer,
        folders=[str(run.folder) for run in runs],
        seeds=[run.seed for run in runs],
        iterations=statistics.fmean(_iterations(run) for run in runs),
        episodes=statistics.fmean(run.total("episodes") for run in runs),
        failed_episodes=statistics.fmean(run.total("failed_episodes") for run in runs),
        turns=statistics.fmean(run.total("turns_total") for run in runs),
        sampled_tokens=statistics.fmean(run.total("sampled_tokens") for run in runs),
        wall_s=_mean([run.seconds for run in runs]),
        start_up_s=_mean([run.record.meta.get("seconds", {}).get("start_up") for run in runs]),
        iteration_s=_mean([_iteration_seconds(run) for run in runs]),
        final=_estimate([w[-1] for w in spans]),
        best=_estimate([max(w, key=lambda span: span[0] / span[1]) for w in spans]),
        knobs=[knob for knob in parity.values() if knob.status != "matched"],
    )


def _estimate(spans: list[tuple[float, float]]) -> Estimate | None:
    if not spans:
        return None
    if len(spans) == 1:
        return over_episodes(*spans[0])
    return over_runs([successes / episodes for successes, episodes in spans])


def _iterations(run: Run) -> int:
    return len(run.curves[TRAIN].iterations) if TRAIN in run.curves else 0


def _iteration_seconds(run: Run) -> float | None:
    times = run.curves[TRAIN].seconds if TRAIN in run.curves else []
    steps = [b - a for a, b in itertools.pairwise(times)]
    return statistics.median(steps) if steps else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _notes(group: Group) -> list[str]:
    notes = []
    for run in group.runs:
        if run.status not in ("finished", "unknown"):
            notes.append(f"{run.folder}: this run is not finished ({run.status})")
        if run.total("failed_episodes"):
            count = run.total("failed_episodes")
            notes.append(f"{run.folder}: {count:.0f} episodes failed and count nowhere")
        if not run.spec:
            notes.append(f"{run.folder}: no run.json, so its settings are not known")
    seeds = [run.seed for run in group.runs]
    if len(set(seeds)) < len(seeds):
        notes.append(f"{group.label}: runs share a seed, so the interval is too narrow")
    return notes


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
    "best success": lambda r: estimate(r.best),
}


def number(value: float | None, digits: int) -> str:
    """Return a number with thousands separators; `-` if it is not known."""
    return "-" if value is None else f"{value:,.{digits}f}"


def estimate(value: Estimate | None) -> str:
    """Return `mean [low, high]`."""
    if value is None:
        return "-"
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"


def table(comparison: Comparison) -> list[list[str]]:
    """Return the table of numbers, heading first."""
    heading = ["", *_COLUMNS]
    return [
        heading,
        *([r.label, *(show(r) for show in _COLUMNS.values())] for r in comparison.rows),
    ]


def remarks(comparison: Comparison) -> list[str]:
    """Return how to read the table, and whatever stands in the way of a fair comparison."""
    rows = comparison.rows
    methods = {e.method for r in rows for e in (r.final, r.best) if e is not None}
    how = {
        "t": "Student's t over runs",
        "wilson": "Wilson over the episodes of one run; seeds vary more",
    }
    lines = [
        f"Success is that of sampled training episodes, averaged over (up to) {comparison.window} "
        "iterations; in brackets the 95 % interval "
        f"({'; '.join(how[m] for m in sorted(methods)) or 'none'}). Counts are per run."
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
        lines += ["", f"{row.label}: settings that are not matched ({len(row.knobs)})"]
        width = min(max((len(k.name) for k in row.knobs), default=0), 32)
        lines += [f"  {k.status:9}  {k.name:<{width}}  {k.how}".rstrip() for k in row.knobs]
    for key, values in comparison.differing.items():
        shown = "; ".join(f"{r.label}: {v}" for r, v in zip(comparison.rows, values, strict=True))
        lines += ["", f"{key}  {shown}"]
    return "\n".join(lines)


def as_markdown(comparison: Comparison) -> str:
    """Render for a document."""
    heading, *rows = table(comparison)
    lines = [_cells(heading), _cells(["---", *["---:"] * (len(heading) - 1)])]
    lines += [_cells(row) for row in rows]
    lines += ["", *(f"- {line}" for line in remarks(comparison))]
    knobs = [(row.label, knob) for row in comparison.rows for knob in row.knobs]
    if knobs:
        lines += ["", _cells(["", "setting", "parity", "how"]), _cells(["---"] * 4)]
        lines += [_cells([label, f"`{k.name}`", k.status, k.how]) for label, k in knobs]
    if comparison.differing:
        labels = [row.label for row in comparison.rows]
        lines += ["", _cells(["differs", *labels]), _cells(["---"] * (len(labels) + 1))]
        for key, values in comparison.differing.items():
            lines.append(_cells([f"`{key}`", *(f"`{value}`" for value in values)]))
    return "\n".join(lines)


def as_json(comparison: Comparison) -> str:
    """Render for programs."""
    return json.dumps(asdict(comparison), indent=2)


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


RENDERERS: dict[str, Callable[[Comparison], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
