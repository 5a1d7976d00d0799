"""The record that every trainer leaves: `run.json`, `metrics.jsonl`, `episodes.jsonl`.

- `run.json`: what was run (free-form; `gem-bench` writes the RunSpec, parity and versions).
- `metrics.jsonl`: a line per iteration and split:
  `{"iteration": int, "split": "train" | "eval:<name>", "time_s": float, <metric>: float, ...}`.
  Iterations count from 0; the metrics of a batch are those of the policy that sampled it.
  `time_s` is seconds since the recorder was opened; a resumed run counts on from the last line that
  was kept. `recorded_episodes` is there only where fewer episodes are recorded than were played
  (`Settings.record`).
- `episodes.jsonl`: a line per episode:
  `{"iteration": int, "split": str, "advantages": [per turn], "rows": [...], "trajectory": {...},
  "fingerprint": str}`, where `rows` is what the trainer itself trains on (`TrainedRow`), if it was
  asked to show it. Evaluations add `"notes"`, what else is known of the episode. `python -m gem
  replay` plays the episodes again.

`run.json` and every episode have `schema`, the version of this format (`SCHEMA`; none means 0).
Older records stay readable, newer ones are refused. Lines are written whole, so a run that dies
leaves a readable record.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, RecordError
from gem.fingerprint import Fingerprint
from gem.json_lines import append_lines, drop_torn_line, read_lines
from gem.packed import Played, unpacked
from gem.trajectory import Trajectory

RUN, METRICS, EPISODES = "run.json", "metrics.jsonl", "episodes.jsonl"
REPLACED = ("metrics.replaced.jsonl", "episodes.replaced.jsonl")
"""What resumed runs did again; see `Recorder.rewind`."""
SCHEMA = 1
"""Version of the format. To be raised when a field is renamed, removed or means something else; a
new field that may be missing needs no new version."""


@dataclass(frozen=True)
class TrainedRow:
    """One training row as read back from the trainer's own tensors, one entry a token."""

    prompt_ids: list[int]
    """Without padding."""
    response_ids: list[int]
    mask: list[int]
    """1 where the loss counts the token, `[response]`."""
    rewards: list[float]
    """Token-level rewards, `[response]`."""
    advantages: list[float]
    """Token-level advantages, `[response]`."""


class Recorder:
    """Writes the record of one run into a folder."""

    def __init__(self, folder: str | Path) -> None:
        """Create the folder; an existing record is continued, without a line that was cut off.

        Raises:
            RecordError: The folder cannot be created or written.
        """
        self.folder = Path(folder)
        self._began = time.monotonic()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in (METRICS, EPISODES):
                drop_torn_line(self.folder / name)
        except OSError as error:
            raise RecordError(f"cannot use the record folder {self.folder}: {error}") from error

    def start(self, meta: Mapping[str, Any]) -> None:
        """Write `run.json`, replacing an earlier one as a whole.

        Raises:
            RecordError: It cannot be written.
        """
        path = self.folder / RUN
        partial = path.with_suffix(".partial")
        try:
            text = json.dumps({"schema": SCHEMA, **meta}, indent=2) + "\n"
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error}") from error

    def metrics(self, iteration: int, values: Mapping[str, float], split: str = "train") -> None:
        """Append the metrics of an iteration; values that are not finite are written as null.

        Raises:
            RecordError: The line cannot be written; earlier lines stay readable.
        """
        line: dict[str, Any] = {"iteration": iteration, "split": split}
        line["time_s"] = round(time.monotonic() - self._began, 3)
        line |= {k: float(v) if math.isfinite(v) else None for k, v in values.items()}
        append_lines(self.folder / METRICS, [json.dumps(line)])

    def episodes(
        self,
        iteration: int,
        trajectories: Sequence[Played],
        advantages: Sequence[Sequence[float]] | None = None,
        split: str = "train",
        rows: Sequence[Sequence[TrainedRow]] | None = None,
        notes: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Append episodes.

        Args:
            iteration: Number of the batch.
            trajectories: Its episodes.
            advantages: Advantage of each turn, `advantages[episode][turn]`.
            split: `train` or `eval:<name>`.
            rows: What the trainer trains on, `rows[episode][row]`.
            notes: What else is known of each episode, JSON values.

        Raises:
            RecordError: They cannot be written; earlier lines stay readable.
        """

        def line(index: int, trajectory: Trajectory) -> str:
            entry = {
                "schema": SCHEMA,
                "iteration": iteration,
                "split": split,
                "advantages": None if advantages is None else list(advantages[index]),
                "rows": None if rows is None else [vars(row) for row in rows[index]],
                "trajectory": trajectory.to_dict(),
                "fingerprint": str(trajectory.fingerprint),
            }
            if notes is not None:
                entry["notes"] = dict(notes[index])
            return json.dumps(entry, separators=(",", ":"))

        # One after the other: a batch need not fit into memory as text.
        lines = (line(index, unpacked(each)) for index, each in enumerate(trajectories))
        append_lines(self.folder / EPISODES, lines)

    def rewind(self, iteration: int, split: str = "train") -> None:
        """Set aside what an earlier process recorded from here on: a resumed run does it again.

        Within an iteration evaluations come before training. The lines go to the ends of the files
        `REPLACED`. Time counts on from the last line that is kept.

        Args:
            iteration: Of the next line.
            split: Of the next line.

        Raises:
            RecordError: A file is damaged or cannot be written; the record is as it was.
        """
        after = (iteration, split == "train")
        spent = 0.0
        for name, aside in zip((METRICS, EPISODES), REPLACED, strict=True):
            path = self.folder / name
            partial, replaced = path.with_suffix(".partial"), self.folder / aside
            later = []
            try:
                for entry in read_lines(path):
                    later.append((entry["iteration"], entry["split"] == "train") >= after)
                    if not later[-1]:
                        spent = entry.get("time_s", spent)
                if not any(later):
                    continue
                with path.open("rb") as old, partial.open("wb") as kept, replaced.open("ab") as end:
                    for line, moved in zip(old, later, strict=True):
                        (end if moved else kept).write(line)
                partial.replace(path)
            except (OSError, ValueError, KeyError) as error:
                raise RecordError(f"cannot rewind {path}: {error}") from error
        self._began -= spent


@dataclass(frozen=True)
class EpisodeRecord:
    """One line of `episodes.jsonl`."""

    iteration: int
    split: str
    advantages: list[float] | None
    rows: list[TrainedRow] | None
    trajectory: Trajectory
    fingerprint: Fingerprint | None = None
    """Taken when the episode was recorded; None in older records."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What else is known of the episode."""


@dataclass(frozen=True)
class RunRecord:
    """A run's record as read from its folder."""

    folder: Path
    meta: dict[str, Any]
    metrics: list[dict[str, Any]]

    def missing(self, split: str, iterations: Container[int] | None = None) -> int:
        """Return how many episodes were played that are not recorded (`Settings.record`).

        Args:
            split: Of this split.
            iterations: Only of these iterations.
        """
        lines = [line for line in self.metrics if line["split"] == split]
        return sum(
            int(line["episodes"] + line["failed_episodes"] - line["recorded_episodes"])
            for line in lines
            if "recorded_episodes" in line
            and (iterations is None or line["iteration"] in iterations)
        )

    def episodes(
        self, split: str | None = None, iterations: Container[int] | None = None
    ) -> Iterator[EpisodeRecord]:
        """Yield the recorded episodes in order, one at a time.

        Args:
            split: Only those of this split.
            iterations: Only those of these iterations.
        """
        yield from read_episodes(self.folder / EPISODES, split, iterations)


def read_run(folder: str | Path) -> RunRecord:
    """Read a record, also of a run that is still going on or died.

    A last line that was cut off is left out. Missing files are empty. `meta` has no `schema`.

    Raises:
        RecordError: The folder holds no record, one of a newer schema, or a line other than the
            last is damaged.
    """
    folder = Path(folder)
    run = folder / RUN
    if not run.exists() and not (folder / METRICS).exists():
        raise RecordError(f"{folder} holds no run: neither {RUN} nor {METRICS} is there")
    try:
        meta = json.loads(run.read_text(encoding="utf-8")) if run.exists() else {}
    except (OSError, json.JSONDecodeError) as error:
        raise RecordError(f"cannot read {run}: {error}") from error
    if not isinstance(meta, dict):
        raise RecordError(f"cannot read {run}: a JSON object is expected, got {meta!r:.80}")
    _check_schema(meta.pop("schema", 0), str(run))
    return RunRecord(folder, meta, list(read_lines(folder / METRICS)))


def read_episodes(
    path: str | Path, split: str | None = None, iterations: Container[int] | None = None
) -> Iterator[EpisodeRecord]:
    """Yield the episodes of an `episodes.jsonl`, one at a time; nothing if there is no such file.

    A last line that was cut off is left out.

    Args:
        path: The file.
        split: Only episodes of this split; others are not looked into.
        iterations: Only episodes of these iterations; others are not looked into.

    Raises:
        RecordError: A line other than the last is damaged, or of a newer schema.
    """
    path = Path(path)
    for number, line in enumerate(read_lines(path), 1):
        _check_schema(line.get("schema", 0), f"{path}, line {number}")
        try:
            if split is not None and line["split"] != split:
                continue
            if iterations is not None and line["iteration"] not in iterations:
                continue
            rows, taken = line.get("rows"), line.get("fingerprint")
            record = EpisodeRecord(
                iteration=line["iteration"],
                split=line["split"],
                advantages=line["advantages"],
                rows=None if rows is None else [TrainedRow(**row) for row in rows],
                trajectory=Trajectory.from_dict(line["trajectory"]),
                fingerprint=None if taken is None else Fingerprint.parse(taken),
                notes=line.get("notes", {}),
            )
        except (AttributeError, KeyError, TypeError, ConfigurationError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else f"is no episode: {error}"
            raise RecordError(f"{path}, line {number} {what}") from error
        yield record


def _check_schema(schema: Any, place: str) -> None:
    if type(schema) is not int or schema < 0:
        raise RecordError(f"{place}: schema must be an integer from 0, got {schema!r:.80}")
    if schema > SCHEMA:
        raise RecordError(
            f"{place}: the record has schema {schema}, this version of gem-core reads up to "
            f"{SCHEMA}; read it with the version that wrote it, or a newer one"
        )
