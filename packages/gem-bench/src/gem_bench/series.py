"""Reads run folders; groups the runs that differ only in their seeds.

- `Run`: one run folder, with its training curve and its evaluations as columns of numbers.
- `Group`: the runs of one trainer and one experiment; the unit of every table and picture.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, RecordError
from gem.tables import flatten
from gem_train.experiment.metrics import PART, failed_by_cause
from gem_train.record import RunRecord, read_run
from gem_train.table import Parity

TRAIN = "train"
X_AXES = {
    "iteration": "iteration",
    "tokens": "tokens sampled",
    "time": "seconds since the record was opened",
}
METRICS = {
    "success_rate": "success rate",
    "return_mean": "return",
    "turns_mean": "turns per episode",
    "tokens_per_episode": "sampled tokens per episode",
    "format_error_rate": "episodes with a format error",
    "truncated_rate": "truncated episodes",
    "failed_rate": "failed episodes, of all played",
    "loss": "loss",
    "grad_norm": "gradient norm",
    "entropy": "entropy (nats per token)",
}
"""Readable names of metrics; other metrics are shown under their own name."""


@dataclass(frozen=True)
class Curve:
    """Metrics of one split of one run, one column `[points]` per metric."""

    iterations: list[int]
    tokens: list[float]
    """Tokens sampled for training before each point."""
    seconds: list[float]
    columns: dict[str, list[float | None]]

    def column(self, metric: str) -> list[float | None]:
        """Return a metric; None where the trainer did not record it."""
        return self.columns.get(metric, [None] * len(self.iterations))

    def thinned(self, most: int) -> Curve:
        """Return the curve with at most so many points.

        Each point is the mean of as many neighbours as that takes, at the place of the last one;
        points that a metric lacks do not count.
        """
        size = math.ceil(len(self.iterations) / most)
        if size <= 1:
            return self
        ends = range(size, len(self.iterations) + size, size)
        last = [min(end, len(self.iterations)) - 1 for end in ends]

        def means(values: list[float | None]) -> list[float | None]:
            blocks = [[v for v in values[end - size : end] if v is not None] for end in ends]
            return [sum(block) / len(block) if block else None for block in blocks]

        return Curve(
            [self.iterations[i] for i in last],
            [self.tokens[i] for i in last],
            [self.seconds[i] for i in last],
            {name: means(values) for name, values in self.columns.items()},
        )

    def divided(self) -> tuple[Curve, dict[str, Curve]]:
        """Return the curve without metrics of single environments and opponents, and these."""
        rest: dict[str, list[float | None]] = {}
        parts: dict[str, dict[str, list[float | None]]] = defaultdict(dict)
        for name, column in self.columns.items():
            found = PART.fullmatch(name)
            if found is None:
                rest[name] = column
            else:
                parts[found["name"]][found["metric"]] = column
        return replace(self, columns=rest), {
            name: replace(self, columns=columns) for name, columns in parts.items()
        }

    def x(self, axis: str) -> list[float]:
        """Return one of `X_AXES`."""
        if axis == "iteration":
            return [float(i) for i in self.iterations]
        return self.tokens if axis == "tokens" else self.seconds


@dataclass(frozen=True)
class Run:
    """One run, read from its folder."""

    record: RunRecord
    spec: Mapping[str, Any]
    """The experiment's settings by dotted key, and those that were given to the trainer as they are
    (`native.<key>`); empty without a `run.json`, or one without a spec."""

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.record.folder

    @property
    def trainer(self) -> str:
        """The trainer's name, or the folder's name if unknown."""
        return str(self.record.meta.get("trainer") or self.folder.name)

    @property
    def seed(self) -> int | None:
        """The spec's seed."""
        return self.spec.get("seed")

    @property
    def task_seed(self) -> int:
        """First seed of the tasks, of several environments that of the first."""
        return int(self.spec.get("env.seed", self.spec.get("env.0.seed", 0)))

    @property
    def status(self) -> str:
        """Status of the run, as in `run.json`; `unknown` without one."""
        return str(self.record.meta.get("status", "unknown"))

    @property
    def parity(self) -> list[Parity]:
        """The adapter's parity report."""
        return [Parity(**each) for each in self.record.meta.get("parity", [])]

    @property
    def hardware(self) -> dict[str, Any]:
        """What the run was given, by dotted key, without native settings; empty if unknown."""
        return flatten({**self.record.meta.get("hardware", {}), "native": {}})

    @property
    def seconds(self) -> float | None:
        """Wall time from the start of the launcher to its end; of a resumed run, of its record."""
        known = self.record.meta.get("seconds", {}).get("command")
        if known is not None and "resumed" not in self.record.meta:
            return float(known)
        return self.curves[TRAIN].seconds[-1] if TRAIN in self.curves else None

    def failed_by_cause(self, split: str = TRAIN) -> dict[str, int]:
        """Return the number of failed episodes of a split, by cause."""
        return failed_by_cause(line for line in self.record.metrics if line["split"] == split)

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """A curve per split: `train`, `eval:<name>`."""
        lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in self.record.metrics:
            lines[line["split"]].append(line)
        train = lines.get(TRAIN, [])
        sampled = accumulate((line.get("sampled_tokens") or 0.0 for line in train), initial=0.0)
        before = dict(zip((line["iteration"] for line in train), sampled, strict=False))
        total = sum(line.get("sampled_tokens") or 0.0 for line in train)
        return {split: _curve(rows, before, total) for split, rows in lines.items()}

    def outcomes(self, split: str, iterations: Container[int]) -> dict[str, list[float]]:
        """Return the success (0 or 1) of each valid episode, by task.

        The key is the task's JSON, the same in every trainer.
        """
        found: dict[str, list[float]] = defaultdict(list)
        for record in self.record.episodes(split, iterations):
            trajectory = record.trajectory
            if trajectory.valid:
                key = json.dumps(trajectory.task.to_dict(), sort_keys=True)
                found[key].append(float(trajectory.success))
        return dict(found)

    def total(self, metric: str) -> float:
        """Sum of a training metric over the run."""
        column = self.curves[TRAIN].column(metric) if TRAIN in self.curves else []
        return sum(value for value in column if value is not None)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in `seed` and `env.seed` (the seed of the tasks, of several
    environments that of the first). A run without a spec is a group of its own."""

    label: str
    runs: list[Run]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the runs share, by dotted key; without `seed`, with all values of `env.seed`.
    """

    @property
    def trainer(self) -> str:
        """The trainer of the runs."""
        return self.runs[0].trainer

    @property
    def landmarks(self) -> dict[str, float]:
        """Success rates that the recipe names, such as random play's."""
        return {
            name.removeprefix("landmarks."): value
            for run in self.runs
            for name, value in run.spec.items()
            if name.startswith("landmarks.") and isinstance(value, int | float)
        }


def load_runs(folders: Sequence[Path]) -> list[Group]:
    """Read run folders and group them, in the order given.

    Raises:
        RecordError: A folder holds no run, or no run has recorded anything.
    """
    records = [read_run(folder) for folder in folders]
    if not any(record.metrics for record in records):
        raise RecordError(f"nothing is recorded yet in {', '.join(map(str, folders))}")
    return group_runs(records)


def group_runs(records: Sequence[RunRecord]) -> list[Group]:
    """Group the runs of records that were read, in the order given."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for index, run in enumerate(map(_run, records)):
        # The experiment of a run without a spec is unknown, so it shares a group with no other.
        settings = _settings(run) if run.spec else index
        groups[json.dumps([run.trainer, settings], sort_keys=True)].append(run)
    members = list(groups.values())
    named = labels([(m[0].trainer, _settings(m[0])) for m in members])
    distinct = [
        name if named.count(name) == 1 else f"{name}, {m[0].folder}"
        for name, m in zip(named, members, strict=True)
    ]
    return [Group(label, m, _common(m)) for label, m in zip(distinct, members, strict=True)]


def check_recorded(groups: Sequence[Group], splits: Sequence[str], metric: str) -> None:
    """Check that runs have what is asked for.

    Raises:
        ConfigurationError: No run recorded one of the splits, or the metric in any of them; the
            message has what is recorded.
    """
    curves = [each for group in groups for run in group.runs for each in run.curves.items()]
    recorded = {split for split, _ in curves}
    for split in splits:
        if split not in recorded:
            raise ConfigurationError(
                f"no run recorded the split {split!r}; recorded: {', '.join(sorted(recorded))}"
            )
    columns = [each for split, curve in curves if split in splits for each in curve.columns.items()]
    names = {name for name, values in columns if any(value is not None for value in values)}
    if metric not in names:
        raise ConfigurationError(
            f"no run recorded {metric!r} of {' or '.join(splits)}; recorded: "
            f"{', '.join(sorted(names))}"
        )


def landmarks(groups: Sequence[Group | None]) -> list[tuple[str, float]]:
    """Return the landmarks of several groups, lowest first, each once."""
    found = {each for group in groups if group is not None for each in group.landmarks.items()}
    return sorted(found, key=lambda each: (each[1], each[0]))


def differences(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that are not equal everywhere: key, value in each.

    Empty mappings, of runs without a `run.json`, are not compared.
    """
    known = [s for s in settings if s]
    keys = dict.fromkeys(key for s in known for key in s)
    return {
        key: [s.get(key) for s in settings]
        for key in keys
        if any(s.get(key) != known[0].get(key) for s in known)
    }


def smooth(values: Sequence[float | None], window: int) -> list[float | None]:
    """Return the trailing mean over up to `window` points; None values are skipped."""
    out: list[float | None] = []
    for end in range(1, len(values) + 1):
        known = [v for v in values[max(0, end - window) : end] if v is not None]
        out.append(sum(known) / len(known) if known and values[end - 1] is not None else None)
    return out


def _run(record: RunRecord) -> Run:
    native = record.meta.get("hardware", {}).get("native", {}).get(record.meta.get("trainer"), {})
    given = {f"native.{key}": value for key, value in native.items()}
    return Run(record, flatten(record.meta.get("spec", {})) | given)


def _settings(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.spec.items() if not _SEED.fullmatch(key)}


_SEED = re.compile(r"(env\.([0-9]+\.)?)?seed|landmarks\..*")
"""What is no setting of a group."""


def _common(runs: Sequence[Run]) -> dict[str, Any]:
    settings = _settings(runs[0])
    if settings:
        settings["env.seed"] = sorted({run.task_seed for run in runs})
    return settings


def _curve(rows: list[dict[str, Any]], before: Mapping[int, float], total: float) -> Curve:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {
        name: [row.get(name) for row in rows]
        for name in names
        if name not in ("iteration", "split", "time_s")
    }
    return Curve(
        [row["iteration"] for row in rows],
        # The evaluation after the last batch has an iteration number without a batch.
        [before.get(row["iteration"], total) for row in rows],
        [row["time_s"] for row in rows],
        columns,
    )


def labels(groups: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Name each group by its trainer and the settings in which groups differ."""
    differing = differences([settings for _, settings in groups])
    # The experiment's name and its estimator distinguish groups best: use them alone if they can.
    leading = [key for key in ("algorithm.advantage", "name") if key in differing]
    found = [trainer for trainer, _ in groups]
    for key in [*leading, *(k for k in differing if k not in leading)]:
        if len(set(found)) == len(found):
            break
        short = key.rpartition(".")[2]
        # An entry of a list says what it is by itself.
        named = key not in leading and not short.isdigit()
        for i, (_, settings) in enumerate(groups):
            if (value := settings.get(key)) is not None:
                found[i] += f", {short} {value}" if named else f", {value}"
    return found
