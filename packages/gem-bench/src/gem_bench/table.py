"""A table of final success: a row for each environment, a column for each algorithm.

Every cell is over the seeds of one experiment (`gem_bench.stats.of_metric`). Below are the
aggregates over the environments that all algorithms were run on, and the probability that one
algorithm has higher values than another (`gem_bench.aggregate`), which need not be better ones.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gem.errors import ConfigurationError
from gem_bench import aggregate
from gem_bench.compare import cells, estimate, notes, number, told
from gem_bench.series import TRAIN, Group, Run, check_recorded
from gem_bench.stats import Estimate, difference_of_runs, of_metric


@dataclass(frozen=True)
class Cell:
    """One experiment: an environment with an algorithm."""

    start: float
    """The metric in iteration 0, mean over runs: the model as it came."""
    final: Estimate
    """The metric over the last iterations."""
    scores: dict[str, float]
    """The same of each run, by the run's seeds."""
    seconds: float | None
    """Wall time of a run, mean."""


@dataclass(frozen=True)
class Table:
    """All cells, and what they say together."""

    metric: str
    split: str
    window: int
    columns: list[str]
    rows: dict[str, dict[str, Cell]]
    """By environment, then algorithm; a cell is missing where nothing was run."""
    differences: dict[str, Estimate]
    """Of the last column less the first, by row; where both were run."""
    common: list[str]
    """Rows with a cell in every column, which the aggregates are over."""
    aggregates: dict[str, dict[str, Estimate]]
    """By name of the aggregate, then algorithm."""
    improvements: dict[str, Estimate]
    """Probability of improvement, by `one > another`."""
    notes: list[str]
    """What spoils the numbers."""


def tabulate(
    groups: Sequence[Group],
    *,
    rows: str = "name",
    columns: str = "algorithm.advantage",
    metric: str = "success_rate",
    split: str = TRAIN,
    window: int = 20,
) -> Table:
    """Arrange groups of runs by two of their settings.

    Args:
        groups: As read by `load_runs`.
        rows: Setting that names a row.
        columns: Setting that names a column.
        metric: Name of the metric.
        split: `train`, or `eval:<name>`.
        window: Final values are averages over this number of iterations. They end with the last
            iteration at which the split was recorded.

    Raises:
        ConfigurationError: Two groups are in one cell, so that they differ in another setting; two
            runs of a cell have the same seed; or no run recorded the split, or the metric in it.
    """
    check_recorded(groups, [split], metric)
    found: dict[str, dict[str, Cell]] = {}
    for group in groups:
        cell = _cell(group, metric, split, window)
        row, column = (str(group.settings.get(key)) for key in (rows, columns))
        if cell is None:
            continue
        if column in found.setdefault(row, {}):
            raise ConfigurationError(
                f"several experiments have {rows} {row!r} and {columns} {column!r}; give another "
                "setting for rows or columns, or fewer runs"
            )
        found[row][column] = cell
    if not found:
        raise ConfigurationError(f"no iteration of {split} has an episode and {metric!r}")
    names = list(dict.fromkeys(column for row in found.values() for column in row))
    common = [row for row, members in found.items() if len(members) == len(names)]
    scores = {name: [list(found[row][name].scores.values()) for row in common] for name in names}
    several = len(common) > 1
    return Table(
        metric,
        split,
        window,
        names,
        found,
        {
            row: difference_of_runs(members[names[-1]].scores, members[names[0]].scores)
            for row, members in found.items()
            if len(names) > 1 and names[0] in members and names[-1] in members
        },
        common,
        {
            title: {name: measure(scores[name]) for name in names}
            for title, measure in _AGGREGATES.items()
            if several
        },
        {
            f"{a} > {b}": aggregate.probability_of_improvement(scores[a], scores[b])
            for a, b in itertools.combinations(reversed(names), 2)
            if several
        },
        notes(groups) + _left_out(groups, metric, split),
    )


_AGGREGATES: dict[str, Callable[[aggregate.Scores], Estimate]] = {
    "mean": aggregate.mean,
    "interquartile mean": aggregate.interquartile_mean,
}


def _cell(group: Group, metric: str, split: str, window: int) -> Cell | None:
    points: dict[str, list[tuple[int, float, float]]] = {}
    folders: dict[str, Path] = {}
    for run in group.runs:
        if not (found := _points(run, metric, split)):
            continue
        seeds = f"{run.seed}, {run.task_seed}"
        if seeds in points:
            raise ConfigurationError(
                f"{folders[seeds]} and {run.folder} are runs of one experiment with the same seed "
                f"({run.seed}); leave one of them out"
            )
        points[seeds], folders[seeds] = found, run.folder
    if not points:
        return None
    scores = {seeds: _final(found, window) for seeds, found in points.items()}
    known = [run.seconds for run in group.runs if run.seconds is not None]
    return Cell(
        statistics.fmean(found[0][1] for found in points.values()),
        of_metric(metric)(list(scores.values())),
        scores,
        statistics.fmean(known) if known else None,
    )


def _left_out(groups: Sequence[Group], metric: str, split: str) -> list[str]:
    """Name the runs that are in no cell, where others of their experiment are in one."""
    found = []
    for group in groups:
        without = [run for run in group.runs if not _points(run, metric, split)]
        if len(without) < len(group.runs):
            found += [f"{run.folder}: {metric} of {split} is not recorded" for run in without]
    return found


def _points(run: Run, metric: str, split: str) -> list[tuple[int, float, float]]:
    """Return iteration, value and number of episodes where both are recorded."""
    curve = run.curves.get(split)
    if curve is None:
        return []
    points = zip(curve.iterations, curve.column(metric), curve.column("episodes"), strict=True)
    return [(at, value, count) for at, value, count in points if value is not None and count]


def _final(points: Sequence[tuple[int, float, float]], window: int) -> float:
    """Return the mean over the last `window` iterations; an evaluation has few points in them."""
    begin = max(at for at, _, _ in points) - window
    last = [(value, count) for at, value, count in points if at > begin]
    return sum(value * count for value, count in last) / sum(count for _, count in last)


def _lines(table: Table) -> list[list[str]]:
    """Return the table as text, heading first."""
    single = len(table.columns) < 2
    last = [] if single else [f"{table.columns[-1]} less {table.columns[0]}"]
    lines = [["", "start", *table.columns, *last, "s a run"]]
    for row, found in table.rows.items():
        start = statistics.fmean(cell.start for cell in found.values())
        seconds = [cell.seconds for cell in found.values() if cell.seconds is not None]
        took = statistics.fmean(seconds) if seconds else None
        values = [estimate(found[name].final) if name in found else "-" for name in table.columns]
        difference = [] if single else [estimate(table.differences.get(row), "+")]
        lines.append([row, number(start, 3), *values, *difference, number(took, 0)])
    for title, by_name in table.aggregates.items():
        values = [estimate(by_name[name]) for name in table.columns]
        lines.append([title, "", *values, *([""] * len(last)), ""])
    return lines


def _remarks(table: Table) -> list[str]:
    finals = [cell.final for row in table.rows.values() for cell in row.values()]
    how = "; ".join(sorted(set(map(told, finals))))
    lines = [
        f"{table.metric} ({table.split}), averaged over the last {table.window} "
        f"iterations (start: the first recorded); in brackets the 95 % interval ({how})."
    ]
    rows_by_how: dict[str, list[str]] = defaultdict(list)
    for row, difference in table.differences.items():
        rows_by_how[told(difference)].append(row)
    if rows_by_how:
        named = [f"{', '.join(rows)} {text}" for text, rows in rows_by_how.items()]
        lines.append(f"Differences: {'; '.join(named if len(named) > 1 else rows_by_how)}.")
    if table.aggregates:
        left_out = [row for row in table.rows if row not in table.common]
        without = f", without {', '.join(left_out)}" if left_out else ""
        lines.append(
            f"Aggregates are over {len(table.common)} rows that every column has{without}; their "
            "intervals are a stratified bootstrap of the runs (arXiv 2108.13264)."
        )
    higher = f" has a higher {table.metric} than one of "
    lines += [
        f"Probability that a run of {pair.replace(' > ', higher)}: {estimate(found)}"
        for pair, found in table.improvements.items()
    ]
    return lines + table.notes


def as_text(table: Table) -> str:
    """Render for a terminal."""
    lines = _lines(table)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
    return "\n".join([*padded, "", *_remarks(table)])


def as_markdown(table: Table) -> str:
    """Render for a document."""
    heading, *rows = _lines(table)
    rule = cells(["---", *["---:"] * (len(heading) - 1)])
    lines = [cells(heading), rule, *map(cells, rows), ""]
    return "\n".join([*lines, *(f"- {line}" for line in _remarks(table))])


def as_json(table: Table) -> str:
    """Render for programs."""
    return json.dumps(asdict(table), indent=2)


RENDERERS: dict[str, Callable[[Table], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
