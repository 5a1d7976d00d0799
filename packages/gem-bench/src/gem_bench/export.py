"""`gem-bench export`: recorded episodes as Parquet or as a Hugging Face dataset.

`TURNS` and `EPISODES` are the two forms of a row. Rows are written in blocks: a record need not fit
into memory.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, RecordError
from gem.plugins import extra
from gem.tasks import Task
from gem.tools.base import printable
from gem.trajectory import Trajectory, Turn
from gem_train.record import EpisodeRecord, RunRecord, read_run

_AT_ONCE = 512
"""Rows that are in memory."""
_DATASET = "dataset_info.json"
"""File in the folder of a dataset."""
_PARQUET = "Parquet needs pyarrow: pip install 'gem-bench[parquet]'"
_DATASETS = "Hugging Face datasets need datasets: pip install 'gem-bench[hf]'"


@dataclass(frozen=True)
class Row:
    """What a row is made of."""

    run: RunRecord
    number: int
    """Of the episode in its record, from 0."""
    record: EpisodeRecord
    turn: int = 0
    """Index of the turn, where a row is one."""

    @property
    def advantage(self) -> float | None:
        """Of the turn."""
        return self.record.advantages[self.turn] if self.record.advantages else None


@dataclass(frozen=True)
class Column:
    """A column of the exported table."""

    name: str
    type: str
    """`text`, `int`, `float`, `bool`, with `list ` before it once or twice."""
    meaning: str
    value: Callable[[Row], Any]


def _text(observation: Any) -> str:
    if isinstance(observation, str):
        return printable(observation)
    return printable("".join(part.get("text", f"[{part['type']}]") for part in observation))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


_EPISODE = (
    Column("run", "text", "name of the run's folder", lambda r: printable(r.run.folder.name)),
    Column("trainer", "text", "who trained", lambda r: str(r.run.meta.get("trainer", ""))),
    Column("iteration", "int", "number of the batch, from 0", lambda r: r.record.iteration),
    Column("split", "text", "`train` or `eval:<name>`", lambda r: r.record.split),
    Column("episode", "int", "number in the run's record, from 0", lambda r: r.number),
    Column("env_id", "text", "environment", lambda r: _task(r).env_id),
    Column("env_name", "text", "its name in a run of several", lambda r: _task(r).name),
    Column("params", "text", "its parameters, JSON", lambda r: _json(dict(_task(r).params))),
    Column("seed", "int", "seed of the task", lambda r: _task(r).seed),
    Column("group", "int", "shared by the episodes of a task", lambda r: _of(r).group),
    Column("success", "bool", "whether the episode succeeded", lambda r: _of(r).success),
    Column("return", "float", "undiscounted sum of its rewards", lambda r: _of(r).total_reward),
    Column("turns", "int", "number of its turns", lambda r: len(_of(r).turns)),
    Column("end", "text", "why it ended", lambda r: _of(r).end),
    Column(
        "failure",
        "text",
        "cause of a failed episode, which counts nowhere; null if it is valid",
        lambda r: None if (f := _of(r).failure) is None else f.cause,
    ),
)
TURNS = (
    *_EPISODE,
    Column("turn", "int", "index of the turn, from 0", lambda r: r.turn),
    Column(
        "observation", "text", "what the policy was shown", lambda r: _text(_turn(r).observation)
    ),
    Column("response", "text", "what it said", lambda r: printable(_turn(r).text)),
    Column("reward", "float", "reward of the turn", lambda r: _turn(r).reward),
    Column("advantage", "float", "null if the trainer recorded none", lambda r: r.advantage),
    Column("terminated", "bool", "the task ended", lambda r: _turn(r).terminated),
    Column(
        "truncated", "bool", "a limit of the environment ended it", lambda r: _turn(r).truncated
    ),
    Column("stop_reason", "text", "`stop` or `length`", lambda r: _turn(r).stop_reason),
    Column("fresh", "bool", "the prompt starts anew instead of growing", lambda r: _turn(r).fresh),
    Column("context_ids", "list int", "prompt tokens it added", lambda r: _turn(r).context_ids),
    Column("response_ids", "list int", "sampled tokens", lambda r: _turn(r).response_ids),
    Column(
        "logprobs",
        "list float",
        "of the sampled tokens when they were sampled; null if unknown",
        lambda r: _turn(r).logprobs,
    ),
    Column("info", "text", "the environment's info, JSON", lambda r: _json(_turn(r).info)),
)
"""A row is a turn."""
EPISODES = (
    *_EPISODE,
    Column(
        "observations",
        "list text",
        "of each turn",
        lambda r: [_text(t.observation) for t in _all(r)],
    ),
    Column(
        "responses", "list text", "of each turn", lambda r: [printable(t.text) for t in _all(r)]
    ),
    Column("rewards", "list float", "of each turn", lambda r: [t.reward for t in _all(r)]),
    Column(
        "advantages",
        "list float",
        "of each turn; null if the trainer recorded none",
        lambda r: r.record.advantages,
    ),
    Column("stop_reasons", "list text", "of each turn", lambda r: [t.stop_reason for t in _all(r)]),
    Column("fresh", "list bool", "of each turn", lambda r: [t.fresh for t in _all(r)]),
    Column(
        "context_ids", "list list int", "of each turn", lambda r: [t.context_ids for t in _all(r)]
    ),
    Column(
        "response_ids", "list list int", "of each turn", lambda r: [t.response_ids for t in _all(r)]
    ),
    Column("logprobs", "list list float", "of each turn", lambda r: [t.logprobs for t in _all(r)]),
    Column("infos", "list text", "of each turn, JSON", lambda r: [_json(t.info) for t in _all(r)]),
    Column(
        "final_observation",
        "text",
        "the last one, which nobody answered; null if there is none",
        lambda r: None if (last := _of(r).final_observation) is None else _text(last),
    ),
    Column(
        "message",
        "text",
        "what is known of a failure; null if the episode is valid",
        lambda r: None if (f := _of(r).failure) is None else printable(f.message),
    ),
)
"""A row is an episode; lists have an entry for each turn."""
FORMS = {"turn": TURNS, "episode": EPISODES}


def export(
    folders: Sequence[Path],
    to: str,
    out: Path,
    *,
    rows: str = "turn",
    split: str | None = None,
    overwrite: bool = False,
) -> int:
    """Write the recorded episodes of runs.

    Args:
        folders: Of the runs.
        to: `parquet` (a file) or `hf` (a folder that `datasets.load_from_disk` reads).
        out: What is written; it is there as a whole or not at all.
        rows: `turn` or `episode`.
        split: Only `train`, or `eval:<name>`; by default all.
        overwrite: Replace what is there.

    Returns:
        The number of rows.

    Raises:
        ConfigurationError: `out` exists, or is a folder without a dataset; or there is no episode.
        MissingExtraError: A package is not installed.
        RecordError: A record cannot be read, or `out` cannot be written.
    """
    write = {"parquet": _parquet, "hf": _hf}[to]
    if out.exists() and not overwrite:
        raise ConfigurationError(f"{out} exists; replace it with --overwrite")
    if out.is_dir() and any(out.iterdir()) and not (out / _DATASET).exists():
        raise ConfigurationError(
            f"{out} is a folder of something else than a dataset; name another place"
        )
    columns = FORMS[rows]
    found = _rows([read_run(folder) for folder in folders], split, by_turn=rows == "turn")
    values = ({column.name: column.value(row) for column in columns} for row in found)
    partial = out.with_name(f"{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            written = write(partial, columns, values)
            if not written:
                of = "" if split is None else f" of {split}"
                named = ", ".join(map(str, folders))
                raise ConfigurationError(f"no episodes{of} are recorded in {named}")
            _remove(out)
            partial.rename(out)
        finally:
            _remove(partial)
    except OSError as error:
        raise RecordError(f"cannot write {out}: {error}") from error
    return written


def _rows(runs: Sequence[RunRecord], split: str | None, *, by_turn: bool) -> Iterator[Row]:
    for run in runs:
        # Numbered among all of a file, whatever is left out.
        for number, record in enumerate(run.episodes()):
            if split is not None and record.split != split:
                continue
            turns = len(record.trajectory.turns) if by_turn else 1
            yield from (Row(run, number, record, turn) for turn in range(turns))


def _parquet(path: Path, columns: Sequence[Column], rows: Iterator[Mapping[str, Any]]) -> int:
    arrow, parquet = extra("pyarrow", _PARQUET), extra("pyarrow.parquet", _PARQUET)
    schema = _schema(arrow, columns)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        return _in_blocks(arrow, schema, rows, writer.write_table)


def _hf(path: Path, columns: Sequence[Column], rows: Iterator[Mapping[str, Any]]) -> int:
    datasets, arrow = extra("datasets", _DATASETS), extra("pyarrow", _DATASETS)
    schema = _schema(arrow, columns)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        stream = Path(folder, "episodes.arrow")
        with arrow.OSFile(str(stream), "wb") as file, arrow.ipc.new_stream(file, schema) as writer:
            number = _in_blocks(arrow, schema, rows, writer.write_table)
        if number:
            datasets.disable_progress_bars()
            datasets.Dataset.from_file(str(stream)).save_to_disk(str(path))
    return number


def _in_blocks(
    arrow: Any, schema: Any, rows: Iterator[Mapping[str, Any]], write: Callable[[Any], object]
) -> int:
    number = 0
    while block := list(itertools.islice(rows, _AT_ONCE)):
        write(arrow.Table.from_pylist(block, schema=schema))
        number += len(block)
    return number


def _schema(arrow: Any, columns: Sequence[Column]) -> Any:
    plain = {"text": "string", "int": "int64", "float": "float64", "bool": "bool_"}

    def kind(name: str) -> Any:
        outer, _, inner = name.partition(" ")
        return arrow.list_(kind(inner)) if outer == "list" else getattr(arrow, plain[outer])()

    return arrow.schema(
        [
            arrow.field(column.name, kind(column.type), metadata={"meaning": column.meaning})
            for column in columns
        ]
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _of(row: Row) -> Trajectory:
    return row.record.trajectory


def _task(row: Row) -> Task:
    return row.record.trajectory.task


def _all(row: Row) -> list[Turn]:
    return row.record.trajectory.turns


def _turn(row: Row) -> Turn:
    return row.record.trajectory.turns[row.turn]
