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

- `images`: the files of the images that were shown, see `gem_train.images`.

`run.json` and every episode have `schema`, the version of this format (`SCHEMA`; none means 0);
newer records are refused. Lines are written whole, so a run that dies
leaves a readable record.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from gem.errors import ConfigurationError, RecordError
from gem.fingerprint import Fingerprint
from gem.json_lines import append_lines, checked, drop_torn_line, numbered_lines, read_json
from gem.schema import NumberOrNan, WrongTypeError, check
from gem.tables import plain_values
from gem.tools.base import printable
from gem.trajectory import Drift, EpisodeEnd, StopReason, Trajectory
from gem_train.images import with_images, write_images
from gem_train.packed import Played, unpacked
from gem_train.table import Status

RUN, METRICS, EPISODES = "run.json", "metrics.jsonl", "episodes.jsonl"
REPLACED = ("metrics.replaced.jsonl", "episodes.replaced.jsonl")
"""What resumed runs did again; see `Recorder.rewind`."""
SCHEMA = 1
"""Version of the format. To be raised when a field is renamed, removed or means something else; a
new field that may be missing needs no new version."""
_MOST_IMAGES = 64
"""About so many images of earlier episodes are kept while a record is read, for equal ones."""


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


class MetricsLine(TypedDict):
    """A line of `metrics.jsonl`, besides its metrics: finite numbers or null."""

    iteration: int
    split: str
    time_s: float


class ParityEntry(TypedDict):
    """See `gem_train.table.Parity`."""

    name: str
    status: Status
    how: str


class EnvEntry(TypedDict, total=False):
    """An environment of a RunSpec."""

    id: str
    seed: int
    params: dict[str, Any]


class PolicyEntry(TypedDict, total=False):
    """The policy of a RunSpec."""

    model: str


class AlgorithmEntry(TypedDict, total=False):
    """The algorithm of a RunSpec."""

    advantage: str
    gamma: float


class OptimizerEntry(TypedDict, total=False):
    """The optimiser of a RunSpec."""

    lr: float


class TrainingEntry(TypedDict, total=False):
    """The size of a RunSpec."""

    iterations: int
    tasks: int
    group_size: int
    precision: str


class SpecEntry(TypedDict, total=False):
    """What readers rely on in a RunSpec, which may be of another version: keys may be missing."""

    name: str
    seed: int
    env: EnvEntry | list[EnvEntry]
    policy: PolicyEntry
    algorithm: AlgorithmEntry
    optimizer: OptimizerEntry
    training: TrainingEntry


class PromptingEntry(TypedDict, total=False):
    """See `gem.rollout.Prompting`."""

    system_prompt: str | None


class ModelEntry(TypedDict, total=False):
    """What an evaluation found of its model."""

    tier: str
    prompting: PromptingEntry


class SettingsEntry(TypedDict, total=False):
    """What an evaluation was asked for."""

    system: str | None
    samples: int
    tasks: list[str] | str


class RunFile(TypedDict, total=False):
    """What readers rely on in `run.json`."""

    schema: int
    kind: str
    trainer: str
    status: str
    iterations: int
    failed_by_cause: dict[str, int]
    spec: dict[str, Any]
    config: Any
    hardware: dict[str, Any]
    model: str | ModelEntry
    command: list[str]
    environment: dict[str, str]
    parity: list[ParityEntry]
    versions: dict[str, str]
    seconds: dict[str, float]
    run_id: str
    started: str
    resumed: list[dict[str, Any]]
    settings: SettingsEntry
    parts: list[str]


class TaskEntry(TypedDict):
    """See `gem.tasks.Task`."""

    env_id: str
    seed: int
    params: dict[str, Any]


class TurnEntry(TypedDict):
    """See `gem.trajectory.Turn`. With images also `images`: the `digest` and `tokens` of each."""

    observation: str | list[dict[str, Any]]
    context_ids: list[int]
    fresh: bool
    response_ids: list[int]
    logprobs: list[float | None] | None
    text: str
    reward: float
    terminated: bool
    truncated: bool
    stop_reason: StopReason
    info: dict[str, Any]


class TrajectoryEntry(TypedDict):
    """See `gem.trajectory.Trajectory`."""

    task: TaskEntry
    group: int
    end: EpisodeEnd
    turns: list[TurnEntry]
    final_observation: str | list[dict[str, Any]] | None
    failure: dict[str, Any] | None
    drift: list[Drift]
    policy_version: tuple[int, int] | None


class RowEntry(TypedDict):
    """See `TrainedRow`; a trainer's tensors may have NaN."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    rewards: list[NumberOrNan]
    advantages: list[NumberOrNan]


class CallEntry(TypedDict, total=False):
    """What is known of a call to a model; it has further entries."""

    prompt_tokens: int
    reply_tokens: int
    cached_tokens: int
    seconds: float
    retries: int
    finish_reason: str
    refused: bool
    reasoning: str
    content: str
    tool_calls: list[dict[str, Any]]


class NotesEntry(TypedDict, total=False):
    """What evaluations add to an episode."""

    sample: int
    calls: list[CallEntry]
    tools: list[dict[str, Any]]


class EpisodeLine(TypedDict):
    """A line of `episodes.jsonl`; it may also have `schema`, `rows`, `fingerprint`, `notes`."""

    iteration: int
    split: str
    advantages: list[float] | None
    trajectory: TrajectoryEntry


class _EpisodeRest(TypedDict, total=False):
    rows: list[RowEntry] | None
    fingerprint: str | None
    notes: NotesEntry


class Recorder:
    """Writes the record of one run into a folder."""

    def __init__(self, folder: str | Path) -> None:
        """Create the folder; an existing record is continued, without a line that was cut off.

        Raises:
            RecordError: The folder cannot be created or written.
        """
        self.folder = Path(folder)
        self._began = time.monotonic()
        self._images: set[str] = set()
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
            write_images(self.folder, trajectory, self._images)
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
        spent, path = 0.0, self.folder
        found: list[tuple[Path, Path, Path, list[bool]]] = []
        try:
            for name, other in zip((METRICS, EPISODES), REPLACED, strict=True):
                path, later = self.folder / name, []
                for entry in _entries(path):
                    later.append((entry["iteration"], entry["split"] == "train") >= after)
                    if not later[-1]:
                        spent = entry.get("time_s", spent)
                if any(later):
                    found.append((path, path.with_suffix(".partial"), self.folder / other, later))
            for path, partial, aside, later in found:
                with path.open("rb") as old, partial.open("wb") as kept, aside.open("ab") as end:
                    for line, moved in zip(old, later, strict=True):
                        (end if moved else kept).write(line)
            # Only when all is read and written: one file must not be rewound without the other.
            for path, partial, *_ in found:
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
    """Taken when the episode was recorded; None where none could be taken."""
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
        RecordError: The folder holds no record, one of a newer schema, a line other than the last
            is damaged, or an iteration is there twice; the message has file and line.
    """
    folder = Path(folder)
    run = folder / RUN
    if not run.exists() and not (folder / METRICS).exists():
        raise RecordError(f"{folder} holds no run: neither {RUN} nor {METRICS} is there")
    meta = read_run_file(run) if run.exists() else {}
    return RunRecord(folder, meta, _metrics(folder / METRICS))


def read_run_file(path: Path) -> dict[str, Any]:
    """Return a `run.json`, without `schema`.

    Raises:
        RecordError: It cannot be read, is damaged, or is of a newer schema.
    """
    meta: dict[str, Any] = read_json(path, dict[str, Any])
    # Half a surrogate pair, which JSON can spell, is in no text that can be printed or written.
    meta = json.loads(printable(json.dumps(meta, ensure_ascii=False)))
    _check_schema(meta.get("schema", 0), str(path))
    _check_meta(meta, str(path))
    meta.pop("schema", None)
    return meta


_COUNTS = ("episodes", "failed_episodes", "recorded_episodes")


def _check_meta(meta: dict[str, Any], place: str) -> None:
    checked(meta, RunFile, place, RecordError)
    for name in ("spec", "hardware"):
        try:
            plain_values(meta.get(name, {}), name)
        except ConfigurationError as error:
            raise RecordError(f"{place} is damaged: {error}") from error
    if meta.get("spec"):
        checked(meta["spec"], SpecEntry, place, RecordError)


def read_metrics_line(line: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a line of `metrics.jsonl` if it is one.

    Args:
        line: The parsed line.
        place: File and number of the line.

    Raises:
        RecordError: It is not.
    """
    try:
        check(line, MetricsLine)
        for name, value in line.items():
            if name not in MetricsLine.__annotations__:
                check(value, float | None, name)
            if printable(name) != name:
                raise WrongTypeError(f"{name!r:.60} is not the name of a metric")
        for name in _COUNTS:
            if (line.get(name) or 0) < 0:
                raise WrongTypeError(f"{name} must be from 0, got {line[name]}")
        _check_place(line)
    except WrongTypeError as error:
        raise RecordError(f"{place} is damaged: {error}") from error
    return line


def _check_place(line: Mapping[str, Any]) -> None:
    iteration, split = line["iteration"], line["split"]
    if not 0 <= iteration < 2**63:
        raise WrongTypeError(f"iteration must be from 0, got {iteration}")
    if (split != "train" and not split.startswith("eval:")) or printable(split) != split:
        raise WrongTypeError(f"split must be 'train' or 'eval:<name>', got {split!r:.60}")


def _metrics(path: Path) -> list[dict[str, Any]]:
    """Read the metrics; each iteration of each split is there once."""
    lines: list[dict[str, Any]] = []
    seen: dict[tuple[int, str], int] = {}
    for number, line in numbered_lines(path):
        read_metrics_line(line, f"{path}, line {number}")
        first = seen.setdefault((line["iteration"], line["split"]), number)
        if first != number:
            raise RecordError(
                f"{path}, line {number}: iteration {line['iteration']} of {line['split']} is "
                f"already in line {first}; two runs were recorded into one folder"
            )
        lines.append(line)
    return lines


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics or episodes, as far as both have the same entries."""
    for number, line in numbered_lines(path):
        place = f"{path}, line {number}"
        for name, wanted in (("iteration", int), ("split", str)):
            if name not in line:
                raise RecordError(f"{place} is damaged: {name} is missing")
            checked(line[name], wanted, f"{place}, {name}", RecordError)
        yield line


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
        RecordError: A line other than the last is damaged or of a newer schema, or an episode is
            there twice; the message has the line.
    """
    path = Path(path)
    known = _played(path.with_name(METRICS)) if path.name == EPISODES else {}
    counted: Counter[tuple[int, str]] = Counter()
    seen: dict[tuple[Any, ...], int] = {}
    images: dict[str, bytes] = {}
    for number, line in numbered_lines(path):
        place = f"{path}, line {number}"
        _check_schema(line.get("schema", 0), place)
        with _named(place):
            check(line, EpisodeLine)
            _check_place(line)
            key = (line["iteration"], line["split"])
            counted[key] += 1
            if counted[key] > known.get(key, math.inf):
                raise WrongTypeError(
                    f"{METRICS} has {known[key]} episodes of iteration {key[0]} of {key[1]}, and "
                    "this is one more; two runs were recorded into one folder"
                )
        if split is not None and line["split"] != split:
            continue
        if iterations is not None and line["iteration"] not in iterations:
            continue
        with _named(place):
            record = _episode(line)
        if len(images) > _MOST_IMAGES:
            images.clear()
        record = replace(record, trajectory=with_images(record.trajectory, path.parent, images))
        if "sample" in record.notes:
            task = record.trajectory.task
            first = seen.setdefault((*key, task.seed, record.notes["sample"]), number)
            if first != number:
                raise RecordError(
                    f"{place}: sample {record.notes['sample']} of seed {task.seed} of {key[1]} is "
                    f"already in line {first}; two evaluations were recorded into one folder"
                )
        yield record


def read_episode_line(line: dict[str, Any], place: str) -> EpisodeRecord:
    """Return the episode of a line of `episodes.jsonl`.

    Args:
        line: The parsed line.
        place: File and number of the line.

    Raises:
        RecordError: It is damaged or of a newer schema.
    """
    _check_schema(line.get("schema", 0), place)
    with _named(place):
        check(line, EpisodeLine)
        _check_place(line)
        return _episode(line)


@contextlib.contextmanager
def _named(place: str) -> Iterator[None]:
    """Name the place of a line that is not an episode."""
    try:
        yield
    except WrongTypeError as error:
        raise RecordError(f"{place} is damaged: {error}") from error
    except (AttributeError, KeyError, TypeError, ConfigurationError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"is no episode: {error}"
        raise RecordError(f"{place} {what}") from error


def _played(path: Path) -> dict[tuple[int, str], int]:
    """Return how many episodes are recorded according to the metrics, by iteration and split."""
    found = {}
    for line in _metrics(path):
        played, failed = line.get("episodes"), line.get("failed_episodes")
        recorded = line.get("recorded_episodes")
        if recorded is None and played is not None and failed is not None:
            recorded = played + failed
        if recorded is not None:
            found[line["iteration"], line["split"]] = int(recorded)
    return found


def _episode(line: dict[str, Any]) -> EpisodeRecord:
    """Make an episode of a line that is an `EpisodeLine`."""
    check(line, _EpisodeRest)
    rows, taken = line.get("rows"), line.get("fingerprint")
    trajectory = Trajectory.from_dict(line["trajectory"])
    turns, advantages = trajectory.turns, line["advantages"]
    for index, turn in enumerate(turns):
        if turn.logprobs is not None and len(turn.logprobs) != len(turn.response_ids):
            raise WrongTypeError(
                f"trajectory.turns[{index}].logprobs must be {len(turn.response_ids)}, one a "
                f"token, got {len(turn.logprobs)}"
            )
    if advantages and len(advantages) != len(turns):
        raise WrongTypeError(f"advantages must be {len(turns)}, one a turn, got {len(advantages)}")
    for index, row in enumerate(rows or []):
        if len({len(row[name]) for name in ("response_ids", "mask", "rewards", "advantages")}) > 1:
            raise WrongTypeError(f"rows[{index}] has lists of different lengths")
    return EpisodeRecord(
        iteration=line["iteration"],
        split=line["split"],
        advantages=advantages,
        rows=None if rows is None else [TrainedRow(**row) for row in rows],
        trajectory=trajectory,
        fingerprint=None if taken is None else Fingerprint.parse(taken),
        notes=line.get("notes", {}),
    )


def _check_schema(schema: Any, place: str) -> None:
    if type(schema) is not int or schema < 0:
        raise RecordError(f"{place}: schema must be an integer from 0, got {schema!r:.80}")
    if schema > SCHEMA:
        raise RecordError(
            f"{place}: the record has schema {schema}, this version of gem-core reads up to "
            f"{SCHEMA}; read it with the version that wrote it, or a newer one"
        )
