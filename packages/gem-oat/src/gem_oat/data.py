"""What oat's learner takes for its prompts: tasks, made one by one when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from oat.algorithms.ppo_multiturn import MultiTurnFeedbackCollector
from torch.utils.data import Dataset, Sampler

from gem.tasks import TaskSet
from gem.training.metrics import episode_metrics
from gem.training.tasksets import encode_task
from gem.trajectory import Trajectory


class Tasks(Dataset[tuple[str, str, str]]):
    """A task set as oat's dataset: `(formatted prompt, prompt, reference)`.

    The prompt is the task, the reference its number. Nothing grows with the number of tasks.
    """

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> tuple[str, str, str]:
        return "", encode_task(self._tasks[index]), str(index)


class Share(Sampler[int]):
    """The tasks of one rank: of each batch a run of neighbours.

    PyTorch's `DistributedSampler`, oat's default, writes down the numbers of all tasks.
    """

    def __init__(self, tasks: int, batch: int, ranks: int, rank: int) -> None:
        self._tasks = tasks
        self._batch = batch
        self._size = batch // ranks
        self._first = self._size * rank

    def __len__(self) -> int:
        return self._tasks // self._batch * self._size

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self._tasks - self._batch + 1, self._batch):
            yield from range(start + self._first, start + self._first + self._size)


class Collector(MultiTurnFeedbackCollector):  # type: ignore[misc]
    """oat's collector, which has its actor play; what it reports are GEM's metrics."""

    def get_metrics(self, actor_time: float, feedback_data: Sequence[Trajectory]) -> dict[str, Any]:
        """Summarise the episodes of this rank; oat shows the mean over ranks."""
        metrics = episode_metrics(feedback_data)
        shown = {"rollout_s": actor_time, **metrics}
        # Every rank must have the same keys.
        names = ("episodes", "failed_episodes", "return_mean", "success_rate", "turns_mean")
        return {f"actor/{name}": shown.get(name, 0.0) for name in (*names, "rollout_s")}
