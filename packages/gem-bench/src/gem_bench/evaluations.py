"""The report of evaluations: the page of `gem_bench.report`, with tables that the caller made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from gem_bench import sections
from gem_bench.report import page
from gem_bench.series import Group, Run
from gem_bench.stats import Estimate
from gem_train.record import EpisodeRecord, RunRecord, read_run

_MOST_TOKENS = 1_000_000
"""Most tokens shown of one evaluation, to keep the file small; four characters count as one."""
_FAILURES = 0.75
"""Share of the shown episodes that are without success, if there are so many."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation and its overall result."""

    folder: Path
    label: str
    success: Estimate | None
    facts: list[str]
    """What else its card says."""


@dataclass(frozen=True)
class Table:
    """A table of the report."""

    title: str
    rows: list[list[str]]
    """The first one is the head."""
    remarks: list[str]


def report(
    evaluations: Sequence[Evaluation],
    tables: Sequence[Table],
    *,
    episodes: int = 500,
    tokenizer: Path | None = None,
) -> str:
    """Return the report as one HTML file that loads nothing from disk or network.

    Args:
        evaluations: What is reported.
        tables: Of all of them.
        episodes: Most episodes of an evaluation in the report, as many of each environment; three
            of four without success, if there are so many. Fewer if they are long.
        tokenizer: See `gem_bench.report.report`.

    Raises:
        RecordError: A folder holds no record.
    """
    runs = [read_run(each.folder) for each in evaluations]
    groups = [
        Group(each.label, [Run(run, {})]) for each, run in zip(evaluations, runs, strict=True)
    ]
    shown, recorded = [], 0
    for index, run in enumerate(runs):
        chosen, count = _sample(run, episodes)
        shown += [(index, 0, record) for record in chosen]
        recorded += count
    cards = [
        sections.card(index, each.label, each.success, "success", each.facts)
        for index, each in enumerate(evaluations)
    ]
    parts = {
        "title": escape(", ".join(each.label for each in evaluations)),
        "kind": "evaluation",
        "training": "hidden",
        "summary": f"{len(shown):,} of {recorded:,} recorded episodes can be read here.",
        "cards": "".join(cards),
        "table": "".join(
            f"<h3>{escape(each.title)}</h3>{sections.numbers_table(each.rows, each.remarks)}"
            for each in tables
        ),
        "parity": "",
        "settings": "",
        "picture": "",
    }
    return page(groups, shown, parts, tokenizer=tokenizer)


def _sample(run: RunRecord, most: int) -> tuple[list[EpisodeRecord], int]:
    """Return episodes of each split, in order of seed and sample, and how many are recorded."""
    splits = list(run.meta.get("parts", [])) or [None]
    share = max(most // len(splits), 1) if most else 0
    kept: dict[str, tuple[list[EpisodeRecord], list[EpisodeRecord]]] = defaultdict(lambda: ([], []))
    count = 0
    for record in run.episodes():
        count += 1
        others = kept[record.split][record.trajectory.success]
        if len(others) < share:
            others.append(record)
    chosen: list[EpisodeRecord] = []
    for lost, won in kept.values():
        least = min(len(won), round(share * (1 - _FAILURES)))
        some = lost[: share - least]
        some += won[: share - len(some)]
        tokens = 0
        for record in some:
            tokens += _tokens(record)
            if tokens > _MOST_TOKENS / len(splits):
                break
            chosen.append(record)
    order = {split: index for index, split in enumerate(splits)}
    chosen.sort(
        key=lambda each: (
            order.get(each.split, len(order)),
            each.trajectory.task.seed,
            each.notes.get("sample", 0),
        )
    )
    return chosen, count


def _tokens(record: EpisodeRecord) -> int:
    return sum(
        len(turn.context_ids)
        + len(turn.response_ids)
        + (len(turn.text) + len(turn.observation)) // 4
        for turn in record.trajectory.turns
    )
