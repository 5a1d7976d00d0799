"""What oat's learner takes for its prompts: tasks, made one by one when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from oat.algorithms.ppo_multiturn import MultiTurnFeedbackCollector
from torch.utils.data import Dataset, Sampler

from gem.tasks import TaskSet
from gem.training import metrics, tasksets
from gem.trajectory import Trajectory

SHOWN = ("episodes", "failed_episodes", "return_mean", "success_rate", "turns_mean", "rollout_s")
"""Metrics of the rollout that oat shows."""


class Tasks(Dataset[tuple[str, str, str]]):
    """A task set as oat's dataset: `(formatted prompt, prompt, reference)`.

    The prompt is the task, the reference its number. Nothing grows with the number of tasks.
    """

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> tuple[str, str, str]:
        return "", tasksets.encode_task(self._tasks[index]), str(index)


class Share(Sampler[int]):
    """The tasks of one rank: of each batch a run of neighbours.

    PyTorch's `DistributedSampler`, oat's default, writes down the numbers of all tasks.
    """

    def __init__(self, tasks: int, batch: int, ranks: int, rank: int) -> None:
        size = batch // ranks
        self._batches = range(0, tasks - batch + 1, batch)
        self._share = range(size * rank, size * (rank + 1))

    def __len__(self) -> int:
        return len(self._batches) * len(self._share)

    def __iter__(self) -> Iterator[int]:
        return (start + place for start in self._batches for place in self._share)


class Collector(MultiTurnFeedbackCollector):  # type: ignore[misc]
    """oat's collector, which has its actor play; what it reports are GEM's metrics."""

    def get_metrics(self, actor_time: float, feedback_data: Sequence[Trajectory]) -> dict[str, Any]:
        """Summarise the episodes of this rank; oat shows the mean over ranks."""
        found = {**metrics.episode_metrics(feedback_data), "rollout_s": actor_time}
        # Every rank must have the same keys.
        return {f"actor/{name}": found.get(name, 0.0) for name in SHOWN}
