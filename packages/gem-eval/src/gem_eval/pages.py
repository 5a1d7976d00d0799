"""The report of evaluations as a page of HTML, with episodes to read: `gem eval report --out`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gem.errors import ConfigurationError
from gem_bench import evaluations
from gem_bench.evaluations import Evaluation
from gem_eval.comparison import compare
from gem_eval.numbers import Summary
from gem_eval.tables import of_comparison, of_summary


def report(
    summaries: Sequence[Summary], *, episodes: int = 500, tokenizer: Path | None = None
) -> str:
    """Return one HTML file that loads nothing from disk or network.

    Args:
        summaries: The evaluations; of exactly two the page shows the comparison, too.
        episodes: Most episodes of an evaluation that can be read.
        tokenizer: Folder with `tokenizer.json`, for episodes with tokens; by default that of the
            model.

    Raises:
        RecordError: A record cannot be read.
    """
    tables = [of_summary(summary) for summary in summaries]
    if len(summaries) == 2:
        first, second = (summary.folder for summary in summaries)
        # They may have no task in common.
        with suppress(ConfigurationError):
            tables.append(of_comparison(first, second, compare(first, second)))
    models = Counter(summary.model for summary in summaries)
    return evaluations.report(
        [
            Evaluation(
                summary.folder,
                summary.model
                if models[summary.model] == 1
                else f"{summary.model} ({summary.folder})",
                None if summary.overall is None else summary.overall.success,
                _facts(summary),
            )
            for summary in summaries
        ],
        [evaluations.Table(table.title, table.rows, table.remarks) for table in tables],
        episodes=episodes,
        tokenizer=tokenizer,
    )


def _facts(summary: Summary) -> list[str]:
    episodes = sum(part.episodes for part in summary.parts)
    void = sum(sum(part.failed.values()) for part in summary.parts)
    environments = f"{len(summary.parts)} environment{'s' if len(summary.parts) > 1 else ''}"
    return [environments, f"{episodes:,} episodes", f"{void:,} failed" if void else ""]
