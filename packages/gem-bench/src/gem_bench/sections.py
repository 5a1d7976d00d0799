"""Makes the plain HTML sections of the report: summary, cards, tables, parity, settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gem_bench.compare import Comparison, Row, number, remarks, table
from gem_bench.parity import STATUSES
from gem_bench.progress import clock
from gem_bench.series import Group
from gem_bench.stats import Estimate
from gem_train.table import Parity


def summary(groups: Sequence[Group]) -> str:
    """Return one sentence that names the learning problem."""
    s = next((group.settings for group in groups if group.settings), None)
    if s is None:
        return "No settings are recorded."
    if not all(key in s for key in _TOLD) or not _prefixes(s):
        return "The settings are not completely recorded."
    envs = " and ".join(_environment(s, prefix) for prefix in _prefixes(s))
    estimators = dict.fromkeys(g.settings.get("algorithm.advantage", "?") for g in groups)
    episodes = s["training.tasks"] * s["training.group_size"]
    return escape(
        f"Model {s['policy.model']} learns {envs} with {', '.join(estimators)}, γ = "
        f"{s['algorithm.gamma']:g}: {s['training.iterations']} iterations of {episodes} episodes, "
        f"learning rate {s['optimizer.lr']:g}, {s['training.precision']}."
    )


_TOLD = (
    *("training.tasks", "training.group_size", "training.iterations", "training.precision"),
    *("policy.model", "algorithm.gamma", "optimizer.lr"),
)
"""Settings that `summary` tells."""


def _prefixes(settings: Mapping[str, Any]) -> list[str]:
    """Return what the keys of each environment begin with."""
    return [key.removesuffix("id") for key in settings if re.fullmatch(r"env\.([0-9]+\.)?id", key)]


def _environment(settings: Mapping[str, Any], prefix: str) -> str:
    params = f"{prefix}params."
    given = [f"{k.removeprefix(params)}={v}" for k, v in settings.items() if k.startswith(params)]
    return f"{settings[f'{prefix}id']}" + (f" ({', '.join(given)})" if given else "")


def cards(comparison: Comparison) -> str:
    """Show each group's final success and what it cost."""
    what = f"final success (last {comparison.window} iterations)"
    return "".join(_card(row, index, what) for index, row in enumerate(comparison.rows))


def card(index: int, label: str, estimate: Estimate | None, what: str, facts: Sequence[str]) -> str:
    """Show a group's number with its interval, what it is, and what else is known."""
    mean, interval = "–", ""
    if estimate is not None:
        mean = f"{estimate.mean:.3f}"
        if estimate.low is not None and estimate.high is not None:
            interval = f"{estimate.low:.3f} – {estimate.high:.3f}"
    return (
        f'<article class="card g{index}"><h3>{escape(label)}</h3>'
        f'<p class="big">{mean}<small>{interval}</small></p>'
        f"<p>{escape(what)}{' and its 95 % interval' if interval else ''}</p>"
        f'<p class="facts">{escape(" · ".join(filter(None, facts)))}</p></article>'
    )


def _card(row: Row, index: int, what: str) -> str:
    facts = [
        f"best {row.best:.3f}" if row.best is not None else "",
        f"{row.episodes:,.0f} episodes",
        f"{clock(row.wall_s)} wall" if row.wall_s is not None else "",
        f"{number(row.iteration_s, 2)} s/iteration" if row.iteration_s is not None else "",
        f"{len(row.folders)} runs" if len(row.folders) > 1 else "",
    ]
    return card(index, row.label, row.final, what, facts)


def numbers(comparison: Comparison) -> str:
    """The comparison table and how to read it."""
    return numbers_table(table(comparison), remarks(comparison), dots=True)


def numbers_table(
    rows: Sequence[Sequence[str]],
    remarks: Sequence[str],
    *,
    dots: bool = False,
    groups: Sequence[int | None] | None = None,
) -> str:
    """Return a table whose first row is its head, and remarks below.

    Args:
        rows: Cells; the first of each row is its name.
        remarks: Lines of text.
        dots: Whether each row has the colour of a group.
        groups: Group of each row, None where it has none; by default each row is one.
    """
    heading, *others = rows
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heading)
    body = []
    for (label, *cells), group in zip(others, groups or range(len(others)), strict=True):
        dot = '<i class="dot"></i>' if dots and group is not None else ""
        name = f'<th scope="row">{dot}{escape(label)}</th>'
        values = "".join(
            f'<td data-label="{escape(title)}">{escape(cell)}</td>'
            for title, cell in zip(heading[1:], cells, strict=True)
        )
        body.append(f'<tr class="g{group}">{name}{values}</tr>')
    notes = "".join(f"<li>{escape(line)}</li>" for line in remarks)
    return (
        f'<div class="scroll"><table class="numbers"><thead><tr>{head}</tr></thead>'
        f'<tbody>{"".join(body)}</tbody></table></div><ul class="notes">{notes}</ul>'
    )


def parity(groups: Sequence[Group]) -> str:
    """One row per setting, one column per group; settings matched everywhere are folded."""
    reports = [{each.name: each for run in group.runs for each in run.parity} for group in groups]
    names = list(dict.fromkeys(name for known in reports for name in known))
    if not names:
        return "<p>No parity report is recorded.</p>"
    cells = {
        name: [_said(name, known, group) for known, group in zip(reports, groups, strict=True)]
        for name in names
    }
    names.sort(key=lambda name: min(_RANKS.index(status) for status, _ in cells[name]))
    matched: list[list[str]] = []
    other: list[list[str]] = []
    for name in names:
        settled = all(status in ("matched", _NONE) for status, _ in cells[name])
        (matched if settled else other).append([name, *map(_parity_cell, cells[name])])
    labels = [group.label for group in groups]
    first = _settings_table(labels, other) if other else "<p>Everything is matched.</p>"
    if not matched:
        return first
    return (
        f"{first}<details><summary>Settings matched wherever they apply: {len(matched)}</summary>"
        f"{_settings_table(labels, matched)}</details>"
    )


def settings(groups: Sequence[Group]) -> str:
    """All settings of the experiment; rows that differ between groups are highlighted."""
    keys = list(dict.fromkeys(key for group in groups for key in group.settings))
    if not keys:
        return "<p>No settings are recorded.</p>"
    rows, differing = [], set()
    for key in keys:
        values = [group.settings.get(key) for group in groups]
        rows.append([key, *(f"<code>{escape(str(value))}</code>" for value in values)])
        if any(value != values[0] for value in values):
            differing.add(key)
    return _settings_table([group.label for group in groups], rows, differing)


def _settings_table(
    labels: Sequence[str], rows: Sequence[Sequence[str]], differing: set[str] | None = None
) -> str:
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in ["setting", *labels])
    body = []
    for name, *cells in rows:
        mark = ' class="differs"' if differing and name in differing else ""
        values = "".join(
            f'<td data-label="{escape(label)}">{cell}</td>'
            for label, cell in zip(labels, cells, strict=True)
        )
        body.append(f'<tr{mark}><th scope="row"><code>{escape(name)}</code></th>{values}</tr>')
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


_NONE = "none"
_RANKS = ("unknown", *STATUSES, _NONE)
"""Statuses of a cell, what a reader must see first."""


def _said(name: str, known: Mapping[str, Parity], group: Group) -> tuple[str, str]:
    """Return status and text of what a group's trainer says of a setting."""
    if name in known:
        return known[name].status, known[name].how
    # An adapter reports every setting of the experiment. Of the hardware's settings it reports
    # those that its trainer has, and remarks of another adapter are that trainer's.
    if known and name not in group.settings:
        return _NONE, "does not apply"
    return "unknown", "not reported"


def _parity_cell(found: tuple[str, str]) -> str:
    status, how = found
    shown = "–" if status == _NONE else status
    return f'<span class="status {status}">{shown}</span> {escape(how)}'
