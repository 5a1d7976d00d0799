"""What oat's learner takes for its prompts: tasks, made batch by batch when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oat.algorithms.ppo_multiturn import MultiTurnFeedbackCollector
from torch.utils.data import Dataset

from gem_train.experiment import metrics
from gem_train.experiment.mixtures import Tasks
from gem_train.experiment.tasksets import DatasetRow
from gem_train.packed import PackedTrajectory

SHOWN = ("episodes", "failed_episodes", "return_mean", "success_rate", "turns_mean", "rollout_s")
"""Metrics of the rollout that oat shows."""


class Batches(Dataset[tuple[list[str], list[str], list[str]]]):
    """The tasks of one rank, an entry an iteration: of each batch a run of neighbours.

    An entry is what oat takes for `(formatted prompts, prompts, references)`: nothing, the tasks
    with their places in the batch, and the number of the iteration. Nothing grows with the number
    of tasks, as do the samplers of PyTorch that oat uses.
    """

    def __init__(self, tasks: Tasks, batch: int, ranks: int, rank: int) -> None:
        self._tasks, self._batch, size = tasks, batch, batch // ranks
        self._share = range(size * rank, size * (rank + 1))

    def __len__(self) -> int:
        return len(self._tasks) // self._batch

    def __getitem__(self, iteration: int) -> tuple[list[str], list[str], list[str]]:
        tasks, first = self._tasks, iteration * self._batch
        rows = [DatasetRow(tasks[first + place], number=place) for place in self._share]
        return [""] * len(rows), [row.encode() for row in rows], [str(iteration)] * len(rows)


class Collector(MultiTurnFeedbackCollector):  # type: ignore[misc]
    """oat's collector, which has its actor play; what it reports are GEM's metrics."""

    def get_metrics(
        self, actor_time: float, feedback_data: Sequence[PackedTrajectory]
    ) -> dict[str, Any]:
        """Summarise the episodes of this rank; oat shows the mean over ranks."""
        found = {**metrics.episode_metrics(feedback_data), "rollout_s": actor_time}
        # Every rank must have the same keys.
        return {f"actor/{name}": found.get(name, 0.0) for name in SHOWN}
