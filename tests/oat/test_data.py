"""The learner's dataset: every task once, in order, whatever their number."""

from __future__ import annotations

import itertools
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from gem.tasks import Task, TaskSet
from gem.trajectory import Failure, Trajectory
from gem_oat.data import Batches, Collector
from gem_train.experiment.tasksets import DatasetRow


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(0, 7))
def test_ranks_share_each_batch_as_neighbours(
    per_rank: int, ranks: int, iterations: int, rest: int
) -> None:
    batch = per_rank * ranks
    tasks = TaskSet("game:GuessTheNumber-v0", batch * iterations + min(rest, batch - 1))
    shares = [Batches(tasks, batch, ranks, rank) for rank in range(ranks)]
    assert all(len(share) == iterations for share in shares)
    for k, parts in enumerate(zip(*(DataLoader(s, batch_size=None) for s in shares), strict=True)):
        assert all(references == [str(k)] * per_rank for _, _, references in parts)
        rows = [DatasetRow.decode(prompt) for _, prompts, _ in parts for prompt in prompts]
        assert [row.task.seed for row in rows] == list(range(k * batch, (k + 1) * batch))
        assert [row.number for row in rows] == list(range(batch))


def test_a_task_travels_as_oats_prompt() -> None:
    batches = Batches(TaskSet("game:GuessTheNumber-v0", 100, seed=7), 4, 2, 1)
    [_, batch] = itertools.islice(DataLoader(batches, batch_size=None), 2)
    formatted, prompts, references = batch
    rows = [DatasetRow.decode(prompt) for prompt in prompts]
    assert [row.task.env_id for row in rows] == ["game:GuessTheNumber-v0"] * 2
    assert [(row.task.seed, row.number) for row in rows] == [(13, 2), (14, 3)]
    assert references == ["1", "1"]
    assert formatted == ["", ""]


def test_memory_does_not_depend_on_the_number_of_tasks() -> None:
    def peak(n: int) -> int:
        tracemalloc.start()
        batches = Batches(TaskSet("game:GuessTheNumber-v0", n), 128, 8, 3)
        assert len(batches) == n // 128
        for _ in itertools.islice(DataLoader(batches, batch_size=None), 5):
            pass
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1280)
    assert peak(128 * 10**10) < peak(1280) + 10_000


def test_metrics_of_a_rank_have_the_same_names_also_when_everything_failed() -> None:
    collector = object.__new__(Collector)
    lost = Failure("environment", "the disk is full", 2)
    void = Trajectory(Task("game:Wordle-v0", 0), end="failed", failure=lost)
    assert collector.get_metrics(2.0, [void]) == {
        "actor/episodes": 0.0,
        "actor/failed_episodes": 1.0,
        "actor/return_mean": 0.0,
        "actor/success_rate": 0.0,
        "actor/turns_mean": 0.0,
        "actor/rollout_s": 2.0,
    }
