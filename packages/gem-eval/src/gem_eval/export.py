"""`gem eval export`: episodes as chat messages for fine-tuning, as JSON lines or Parquet.

`--format inspect` is `gem_eval.inspect_log`, `--format atif` is `gem_eval.atif`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, RecordError
from gem.plugins import extra
from gem.tools.base import printable
from gem_eval import native
from gem_eval.about import model_name, system_prompt
from gem_eval.contents import text_of
from gem_eval.runner import KIND
from gem_train.record import EpisodeRecord, RunRecord, read_run

INSPECT, ATIF = "inspect", "atif"
"""Formats that are folders: logs, which have void episodes, too; a file for each valid episode."""
_AT_ONCE = 512
"""Rows of Parquet that are in memory."""


def rows(
    run: RunRecord, *, only_success: bool, reasoning: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the valid episodes of an evaluation, one at a time.

    A row has `messages`, `tools` (JSON, None if the model was told of none through its API),
    `env_id`, `params` (JSON), `seed`, `sample`, `success`, `return`, `reward` (of each turn, which
    is each message of the assistant), `end` and `model`. In every row every key is there.

    Args:
        run: The record.
        only_success: Leave out episodes without success.
        reasoning: Messages of the assistant have what it thought, as `reasoning_content`.

    Raises:
        RecordError: The record cannot be read.
    """
    system, model = system_prompt(run), model_name(run)
    for record in run.episodes():
        episode = record.trajectory
        if not episode.valid or (only_success and not episode.success):
            continue
        params = {name: value for name, value in episode.task.params.items() if name != "wrappers"}
        tools = record.notes.get("tools")
        yield {
            "messages": list(_messages(record, system, reasoning)),
            "tools": None if tools is None else json.dumps(tools),
            "env_id": episode.task.env_id,
            "params": json.dumps(params),
            "seed": episode.task.seed,
            "sample": record.notes.get("sample", 0),
            "success": episode.success,
            "return": episode.total_reward,
            "reward": episode.rewards,
            "end": episode.end,
            "model": model,
        }


def export(
    folder: Path, out: Path, form: str, *, only_success: bool, reasoning: bool = False
) -> int:
    """Write episodes into a file, replacing it as a whole; return their number.

    Args:
        folder: The record of an evaluation.
        out: The file.
        form: One of `FORMS`.
        only_success: See `rows`.
        reasoning: See `rows`.

    Raises:
        ConfigurationError: The folder holds no evaluation, or no episode is to be written.
        MissingExtraError: Parquet needs pyarrow, which is not installed.
        RecordError: The record cannot be read, or the file not be written.
    """
    run = read_run(folder)
    if run.meta.get("kind") != KIND:
        raise ConfigurationError(f"{folder} holds no evaluation")
    partial = out.with_name(f"{out.name}.partial")
    found = rows(run, only_success=only_success, reasoning=reasoning)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            written = FORMS[form](partial, found)
            if not written:
                what = "successful" if only_success else "valid"
                raise ConfigurationError(f"{folder} has no {what} episode; nothing is written")
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {out}: {error}") from error
    return written


def _messages(
    record: EpisodeRecord, system: str | None, reasoning: bool
) -> Iterator[dict[str, Any]]:
    if system:
        yield {"role": "system", "content": system}
    calls: list[Mapping[str, Any]] = record.notes.get("calls", [])
    note: Mapping[str, Any] | None = None
    for number, turn in enumerate(record.trajectory.turns):
        text = text_of(turn.observation, record.trajectory.task)
        yield from native.before(printable(text), note)
        note = calls[number] if number < len(calls) else {}
        message = native.after(printable(turn.text), note)
        if reasoning:
            message["reasoning_content"] = printable(note.get("reasoning", ""))
        yield message


def _json_lines(path: Path, found: Iterable[Mapping[str, Any]]) -> int:
    number = 0
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for row in found:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            number += 1
    return number


def _parquet(path: Path, found: Iterable[Mapping[str, Any]]) -> int:
    needed = "Parquet needs pyarrow: pip install 'gem-eval[parquet]'; --format jsonl needs nothing"
    arrow, parquet = extra("pyarrow", needed), extra("pyarrow.parquet", needed)
    schema = _schema(arrow)
    number = 0
    left = iter(found)
    with parquet.ParquetWriter(path, schema) as writer:
        while some := list(itertools.islice(left, _AT_ONCE)):
            writer.write_table(arrow.Table.from_pylist(some, schema=schema))
            number += len(some)
    return number


def _schema(arrow: Any) -> Any:
    text = arrow.string()
    function = arrow.struct({"name": text, "arguments": text})
    call = arrow.struct({"id": text, "type": text, "function": function})
    message = {
        "role": text,
        "content": text,
        "tool_calls": arrow.list_(call),
        "tool_call_id": text,
        "reasoning_content": text,
    }
    return arrow.schema(
        {
            "messages": arrow.list_(arrow.struct(message)),
            "tools": text,
            "env_id": text,
            "params": text,
            "seed": arrow.int64(),
            "sample": arrow.int64(),
            "success": arrow.bool_(),
            "return": arrow.float64(),
            "reward": arrow.list_(arrow.float64()),
            "end": text,
            "model": text,
        }
    )


FORMS: dict[str, Callable[[Path, Iterable[Mapping[str, Any]]], int]] = {
    "jsonl": _json_lines,
    "parquet": _parquet,
}


def _inspect(folder: Path, out: Path, only: bool) -> int:
    if only:
        raise ConfigurationError("a log of inspect-ai has all episodes: leave out --only success")
    extra("inspect_ai", "logs of inspect-ai need it: pip install 'gem-eval[inspect]'")
    from gem_eval.inspect_log import write_logs

    for path in write_logs(folder, out):
        print(path, file=sys.stderr)
    return 0


def main(argv: Sequence[str]) -> int:
    """Run `gem eval export`; return 0."""
    parser = argparse.ArgumentParser(
        prog="gem eval export",
        description="Write episodes as chat messages for fine-tuning, as trajectories of ATIF, "
        "or as logs of inspect-ai.",
    )
    add = parser.add_argument
    add(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="record of an evaluation; with --format atif of any run",
    )
    about = "which valid episodes (all)"
    add("--only", choices=("success", "all"), default="all", help=about)
    forms = sorted([*FORMS, INSPECT, ATIF])
    add("--format", choices=forms, default="jsonl", help="of the file (jsonl)")
    about = "the file (FOLDER.jsonl or FOLDER.parquet); with --format inspect or atif a folder"
    add("--out", type=Path, metavar="FILE", help=about)
    about = "put what the model thought into its messages, as reasoning_content"
    add("--reasoning", action="store_true", help=about)
    args = parser.parse_args(argv)
    folder = args.folder
    out = args.out or folder.with_name(f"{folder.resolve().name}.{args.format}")
    only = args.only == "success"
    if args.reasoning and args.format not in FORMS:
        raise ConfigurationError(
            f"--reasoning is of {', '.join(FORMS)}; {args.format} has what the model thought anyway"
        )
    if args.format == INSPECT:
        return _inspect(folder, out, only)
    if args.format == ATIF:
        from gem_eval.atif import write_trajectories

        number = write_trajectories(folder, out, only_success=only)
        print(f"{number} episodes: {out}", file=sys.stderr)
        return 0
    number = export(folder, out, args.format, only_success=only, reasoning=args.reasoning)
    print(f"{number} episodes: {out}", file=sys.stderr)
    return 0
