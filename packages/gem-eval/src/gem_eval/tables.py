"""Shows results: as text for the terminal, as Markdown, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gem_bench.stats import Estimate
from gem_eval.comparison import Comparison, Verdict
from gem_eval.numbers import Numbers, Summary

_NOTHING = "-"
_FLIPS = 12


@dataclass(frozen=True)
class Table:
    """A table to be shown."""

    title: str
    rows: list[list[str]]
    """The first one is the head."""
    remarks: list[str]
    data: dict[str, Any]
    """All of its numbers, JSON values."""


def of_summary(summary: Summary) -> Table:
    """Return the table of an evaluation."""
    data = {
        "model": summary.model,
        "environments": [asdict(part) for part in summary.parts],
        "overall": None if summary.overall is None else asdict(summary.overall),
    }
    return Table(summary.model, _rows(summary), _remarks(summary), data)


def of_comparison(first: Path, second: Path, comparison: Comparison) -> Table:
    """Return the table of a comparison."""
    rows = [["environment", "tasks", "change of success", "p", "gained", "lost", "detectable"]]
    remarks = ["intervals: 95 %, paired over tasks; p: sign test, corrected for all environments"]
    for part in comparison.parts:
        row = [part.name, f"{part.success.n}", interval(part.success), f"{part.p:.3f}"]
        row += [f"{len(part.gained)}", f"{len(part.lost)}", _number(part.detectable, 3)]
        rows.append(row)
        for what, seeds in (("gained", part.gained), ("lost", part.lost)):
            if seeds:
                more = ", ..." if len(seeds) > _FLIPS else ""
                shown = ", ".join(map(str, seeds[:_FLIPS]))
                remarks.append(f"{part.name}: {what} the seeds {shown}{more}")
        if part.unpaired:
            remarks.append(f"{part.name}: {part.unpaired} tasks are in one of the two only")
    if len(comparison.parts) > 1:
        tasks = f"{comparison.overall.n}"
        rows.append(["overall", tasks, interval(comparison.overall), *[_NOTHING] * 4])
    remarks += [f"only one of the two has {name}" for name in comparison.missing]
    return Table(f"{first} -> {second}", rows, remarks, asdict(comparison))


def of_gate(
    verdict: Verdict, reason: str, summary: Summary, change: tuple[Path, Comparison] | None
) -> Table:
    """Return a verdict with the table that it is about.

    Args:
        verdict: The verdict.
        reason: Its reason.
        summary: The evaluation.
        change: The one that it is compared with, and how it differs from that.
    """
    if change is None:
        table = of_summary(summary)
    else:
        table = of_comparison(change[0], summary.folder, change[1])
    word = verdict.name.lower()
    data = {"verdict": word, "reason": reason, **table.data}
    return replace(table, title=f"{table.title}: {word}: {reason}", data=data)


def text(table: Table) -> str:
    """Return a table for the terminal."""
    widths = [max(map(len, column)) for column in zip(*table.rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table.rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join([table.title, "", *lines, "", *table.remarks])


def markdown(table: Table) -> str:
    """Return a table in Markdown."""
    head, *rows = [f"| {' | '.join(row)} |" for row in table.rows]
    rule = f"|---|{'---:|' * (len(table.rows[0]) - 1)}"
    remarks = [f"- {remark}" for remark in table.remarks]
    return "\n".join([f"**{table.title}**", "", head, rule, *rows, "", *remarks])


def as_json(table: Table) -> str:
    """Return all numbers as JSON; an interval is `{"mean", "low", "high", "method", "n"}`."""
    return json.dumps(table.data, indent=2, allow_nan=False)


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": text,
    "markdown": markdown,
    "json": as_json,
}


def _rows(summary: Summary) -> list[list[str]]:
    parts = list(summary.parts)
    if summary.overall is not None and len(parts) > 1:
        parts.append(summary.overall)
    ks = sorted({k for part in parts for k in part.pass_at})
    head = ["environment", "tasks", "episodes", "failed", "success", "return"]
    head += [f"{name}{k}" for k in ks for name in ("pass@", "pass^")]
    head += ["turns", "prompt tokens", "reply tokens", "format errors"]
    return [head, *(_row(part, ks) for part in parts)]


def _row(part: Numbers, ks: Sequence[int]) -> list[str]:
    row = [part.name, f"{part.tasks}", f"{part.episodes}", f"{sum(part.failed.values())}"]
    row += [interval(part.success), interval(part.total)]
    for k in ks:
        row += [interval(part.pass_at.get(k)), interval(part.pass_all.get(k))]
    row += [_number(part.turns, 1), _number(part.prompt_tokens, 0), _number(part.reply_tokens, 0)]
    return [*row, _NOTHING if part.format_errors is None else f"{part.format_errors:.0%}"]


def _remarks(summary: Summary) -> list[str]:
    remarks = ["intervals: 95 %, over tasks"]
    for part in summary.parts:
        found = [part.cut_off] if part.missing else []
        if part.failed and part.bounds is not None:
            causes = ", ".join(f"{cause} {count}" for cause, count in part.failed.items())
            low, high = part.bounds
            found.append(
                f"{sum(part.failed.values())} episodes failed and do not count ({causes}); "
                f"with them success is between {low:.3f} and {high:.3f}"
            )
        if part.ends.get("token_budget"):
            found.append(f"the context overflowed in {part.ends['token_budget']} episodes")
        for count, what in (
            (part.empty_replies, "were empty"),
            (part.cut_replies, "were cut by the token limit"),
            (part.filtered_replies, "were refusals or ended by a content filter"),
        ):
            if count:
                found.append(f"{count} replies {what}")
        if part.tools is not None:
            use = part.tools
            share = "" if use.succeeded is None else f", {use.succeeded:.0%} without an error"
            found.append(f"{use.calls:.1f} tool calls an episode{share}")
            for which, success in (("with", use.with_calls), ("without", use.without_calls)):
                if success is not None:
                    found[-1] += f"; success {which} a call {interval(success)}"
        for k, count in part.few_samples.items():
            found.append(f"{count} tasks have fewer than {k} valid samples")
        remarks += [f"{part.name}: {each}" for each in found]
    split = not any(part.missing for part in summary.parts)
    if split and summary.overall is not None and summary.overall.missing:
        remarks.append(summary.overall.cut_off)
    return remarks


def interval(estimate: Estimate | None) -> str:
    """Return an estimate with its interval, or a dash."""
    if estimate is None:
        return _NOTHING
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.3f}"
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _number(value: float | None, digits: int) -> str:
    return _NOTHING if value is None else f"{value:,.{digits}f}"
