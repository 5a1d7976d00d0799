"""What an adapter does to leave a record (`gem_train.record`) of its trainer's run.

An iteration comes in parts: the rollout's episodes and their advantages are kept
(`RunRecording.keep_batch`) until the trainer's own metrics of the update are known
(`RunRecording.write_iteration`). An evaluation is written at once
(`RunRecording.write_evaluation`); or, where its episodes come in parts, they are kept
(`RunRecording.keep_evaluated`) until they are written (`RunRecording.write_evaluated`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gem.errors import ConfigurationError, RecordError
from gem.trajectory import Failure
from gem_train.ending import to_the_end
from gem_train.experiment.metrics import (
    advantage_metrics,
    episode_metrics,
    sampled_metrics,
)
from gem_train.packed import Played, Selection
from gem_train.record import METRICS, RUN, Recorder, TrainedRow, read_run
from gem_train.resuming import check_same
from gem_train.settings import check_episodes

T = TypeVar("T")
Names = Mapping[str, str | tuple[str, ...]]
"""The record's name of a metric, and the trainer's; of several the first that is there counts."""
Report = Callable[[int, str, Mapping[str, float]], None]
"""Takes iteration, split and metrics, for whoever watches the run."""
Rows = Sequence[Sequence[TrainedRow]]
"""Training rows, `[episode][row]`."""


def rows_wanted() -> bool:
    """Whether the record is to have training rows: `GEM_RECORD_ROWS` is 1."""
    return os.environ.get("GEM_RECORD_ROWS") == "1"


class RunRecording:
    """The record of one run, written by the one process that knows its metrics.

    Where an earlier process has recorded the iteration that this one begins with, a resumed run
    trains it again: the earlier lines are set aside (`Recorder.rewind`).
    """

    def __init__(
        self,
        folder: str | Path | None,
        about: Mapping[str, Any],
        names: Names | None = None,
        report: Report = lambda *_: None,
        *,
        record: str | None = None,
        info: Sequence[str] = (),
        free: Sequence[str] | None = None,
    ) -> None:
        """Open the record, and write `run.json` unless it is there already.

        Args:
            folder: Of the record; None computes metrics and writes nothing.
            about: For `run.json`: `trainer`, `versions`, and `spec` or `config` if it is known.
            names: The trainer's metrics that are recorded. Metrics of a trainer that uses the
                record's names need none.
            report: Called with iteration, split and metrics of all that is recorded.
            record: Which episodes are recorded (`Settings.record`); None: what `GEM_RECORD` says.
            info: Numbers of the environments' infos that are metrics, too (`Settings.info`).
            free: See `begin`.

        Raises:
            ConfigurationError: `GEM_RECORD` has a value that `record` cannot have, or the folder
                holds another run's record.
            RecordError: The folder cannot be created or written.
        """
        self.folder = None if folder is None else Path(folder)
        self._selection = Selection("metrics" if folder is None else record)
        self._recorder = None if folder is None else Recorder(folder)
        if self._recorder is not None:
            begin(self._recorder, about, free)
        self._names = dict(names or {})
        self._info = tuple(info)
        self._report = report
        self._begins = True
        self._recorded: int | None = None
        self._logged: dict[str, Any] = {}
        self._batch: _Batch | None = None
        self.evaluated: dict[str, list[Played]] = {}
        """Episodes of evaluations that are not written yet, by name."""

    @property
    def iterations(self) -> int:
        """Number of iterations up to the last one that is recorded.

        That is the last one of this process or, before it has written one, of the record that it
        goes on with.
        """
        if self._recorded is not None:
            return self._recorded
        if self.folder is None or not (self.folder / METRICS).exists():
            return 0
        lines = read_run(self.folder).metrics
        return max((line["iteration"] + 1 for line in lines if line["split"] == "train"), default=0)

    def to_the_end(self, wanted: Callable[[], int]) -> AbstractContextManager[None]:
        """Return a context for a trainer's own loop: it must record all iterations.

        Without a folder, a process that writes no iteration is not checked: it may go on with a run
        that was complete.

        Args:
            wanted: Returns how many iterations the run was asked for; called when the block ends.

        Raises:
            UnfinishedError: When the block ends before that; see `gem_train.ending`.
        """

        def checked() -> int:
            known = self.folder is not None or self._recorded is not None
            return wanted() if known else 0

        return to_the_end(lambda: self.iterations, checked)

    def keep_batch(
        self,
        trajectories: Sequence[Played],
        advantages: Sequence[Sequence[float]] | None = None,
        rows: Callable[[], Rows] | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        lost: Sequence[Failure] = (),
    ) -> dict[str, float]:
        """Keep an iteration's episodes until `write_iteration`, in place of those kept before.

        Args:
            trajectories: The episodes of all ranks.
            advantages: `[episode][turn]`; None if they are not GEM's.
            rows: Returns what is trained on, `[episode][row]`; called before this returns, and
                only if rows are wanted.
            metrics: Further ones, under the record's names.
            lost: Failures of episodes without a trajectory.

        Returns:
            The metrics of the episodes: `episode_metrics`, `advantage_metrics` and `metrics`, and
            `tokens_per_s` if `rollout_s` is one of them.
        """
        found = _measured(episode_metrics(trajectories, lost, self._info), metrics)
        if advantages is not None:
            found |= advantage_metrics(trajectories, advantages)
        self._batch = self._part(found, trajectories, advantages, rows)
        return dict(found)

    def kept(self, trajectories: Sequence[Played]) -> Sequence[int]:
        """Return which episodes of a batch the record keeps, by index."""
        return self._selection.of(trajectories)

    def log(self, values: Mapping[str, Any]) -> None:
        """Add metrics under the trainer's names; a later value replaces an earlier one."""
        self._logged.update(values)

    def write_iteration(
        self,
        iteration: int,
        logged: Mapping[str, Any] | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Write the iteration whose batch is kept; without one nothing is done.

        Args:
            iteration: Its number, from 0.
            logged: Metrics under the trainer's names, besides those of `log`. Those that `names`
                lacks are left out.
            metrics: Metrics under the record's names, of which all are written.

        Returns:
            The metrics as written: those of `keep_batch`, the trainer's in the order of `names`,
            `metrics`, `tokens_per_s`.

        Raises:
            RecordError: It cannot be written, is written already, or an iteration before it is
                not.
        """
        batch = self._batch
        if batch is None:
            return {}
        known = {**self._logged, **(logged or {})}
        self._batch, self._logged = None, {}
        found = _measured(batch.metrics | self._renamed(known), metrics)
        self._write(iteration, "train", found, batch)
        self._recorded = iteration + 1
        return found

    def write_evaluation(
        self,
        iteration: int,
        name: str,
        trajectories: Sequence[Played],
        *,
        metrics: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Write an evaluation.

        Args:
            iteration: Number of iterations that the policy has been trained for.
            name: Of the evaluation; the record's split is `eval:<name>`.
            trajectories: Its episodes.
            metrics: Further ones, under the record's names.

        Returns:
            The metrics as written.

        Raises:
            RecordError: It cannot be written.
        """
        known = episode_metrics(trajectories, info=self._info) | sampled_metrics(trajectories)
        found = _measured(known, metrics)
        self._write(iteration, f"eval:{name}", found, self._part(found, trajectories))
        return found

    def keep_evaluated(self, name: str, trajectories: Iterable[Played]) -> None:
        """Keep episodes of an evaluation until `write_evaluated`, besides those kept before."""
        self.evaluated.setdefault(name, []).extend(trajectories)

    def check_evaluated(self, limit: float) -> None:
        """Raise `RolloutError` if too many episodes of a kept evaluation failed.

        Args:
            limit: Largest share of failed episodes with which training goes on.
        """
        for name, trajectories in self.evaluated.items():
            check_episodes(trajectories, limit, batch=f"evaluation {name!r}")

    def write_evaluated(self, iteration: int) -> None:
        """Write the kept evaluations, with their episodes in the order of their tasks.

        Trainers hand over the episodes in the order in which they ended, or in any other.

        Args:
            iteration: Number of iterations that the policy has been trained for.

        Raises:
            RecordError: They cannot be written.
        """
        for name, trajectories in self.evaluated.items():
            self.write_evaluation(iteration, name, sorted(trajectories, key=_place))
        self.evaluated.clear()

    def _part(
        self,
        found: dict[str, float],
        trajectories: Sequence[Played],
        advantages: Sequence[Sequence[float]] | None = None,
        rows: Callable[[], Rows] | None = None,
    ) -> _Batch:
        """Return what is recorded of a batch with the metrics `found`."""
        which = self.kept(trajectories)
        if self._recorder is not None and len(which) < len(trajectories):
            found["recorded_episodes"] = float(len(which))
        shown = rows() if which and rows is not None and rows_wanted() else None
        episodes = [trajectories[i] for i in which]
        return _Batch(found, episodes, _picked(advantages, which), _picked(shown, which))

    def _write(
        self, iteration: int, split: str, metrics: Mapping[str, float], batch: _Batch
    ) -> None:
        if self._recorder is not None:
            if self._begins:
                self._recorder.rewind(iteration, split)
                self._begins = False
            if split == "train" and 0 < self.iterations < iteration:
                raise RecordError(
                    f"{self.folder}: iteration {iteration} would follow iteration "
                    f"{self.iterations - 1}: what is between them was not recorded. Every "
                    "iteration has to be logged; a run that goes on from a later checkpoint needs "
                    "a record of its own"
                )
            if split == "train" and iteration < self.iterations:
                raise RecordError(
                    f"{self.folder}: iteration {iteration} is recorded already; the trainer logged "
                    "it twice, or iterations are counted wrongly"
                )
            self._recorder.metrics(iteration, metrics, split)
            self._recorder.episodes(
                iteration, batch.trajectories, batch.advantages, split, rows=batch.rows
            )
        self._report(iteration, split, metrics)

    def _renamed(self, logged: Mapping[str, Any]) -> dict[str, float]:
        found = {}
        for ours, theirs in self._names.items():
            for name in (theirs,) if isinstance(theirs, str) else theirs:
                if name in logged:
                    found[ours] = float(logged[name])
                    break
        return found


def begin(recorder: Recorder, about: Mapping[str, Any], free: Sequence[str] | None = None) -> None:
    """Write `run.json`; where an earlier start has recorded something, refuse another run.

    The launcher of `gem-bench run` writes `run.json` itself, before it starts the trainer. It stays
    as it is.

    Args:
        recorder: Of the run.
        about: See `RunRecording`.
        free: Keys of `config` that may differ between two starts; None compares none of it.

    Raises:
        ConfigurationError: What the folder holds is of another trainer, spec, version or
            configuration.
        RecordError: It cannot be written or read.
    """
    if not (recorder.folder / RUN).exists():
        recorder.start(about)
        return
    earlier = read_run(recorder.folder)
    run_id = earlier.meta.get("run_id")
    if run_id is not None and os.environ.get("GEM_RUN_ID") == run_id:
        return  # the launcher has compared it
    launched = "command" in earlier.meta
    if not launched and not earlier.metrics:
        recorder.start(about)  # an earlier start recorded nothing
        return
    if launched and earlier.meta.get("status") != "running":
        raise ConfigurationError(
            f"{recorder.folder} holds a run of gem-bench ({earlier.meta.get('status')}): resume it "
            "with `gem-bench run --resume`, or begin a run in another folder"
        )
    compared = ["trainer"]
    if not launched:  # a launcher tells the trainer where the model is
        compared += ["spec", *([] if free is None else ["config"])]
    before = {key: value for key, value in earlier.meta.items() if key in compared}
    found = earlier.meta.get("versions", {})
    before["versions"] = {name: found[name] for name in about.get("versions", {}) if name in found}
    check_same(recorder.folder, before, about, [f"config.{key}" for key in free or ()])


@dataclass(frozen=True)
class _Batch:
    """What is known of an iteration before its update."""

    metrics: dict[str, float]
    trajectories: Sequence[Played]
    advantages: Sequence[Sequence[float]] | None = None
    rows: Rows | None = None


def _place(trajectory: Played) -> tuple[int, int]:
    return trajectory.group, trajectory.task.seed


def _picked(column: Sequence[T] | None, which: Sequence[int]) -> list[T] | None:
    return None if column is None else [column[i] for i in which]


def _measured(values: Mapping[str, float], further: Mapping[str, float] | None) -> dict[str, float]:
    """Return both with the tokens per second, as soon as the rollout's seconds are known."""
    found = {**values, **(further or {})}
    if found.get("rollout_s"):
        found["tokens_per_s"] = found["sampled_tokens"] / found["rollout_s"]
    return found
