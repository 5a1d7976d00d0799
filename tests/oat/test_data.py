"""The learner's dataset: every task once, in order, whatever their number."""

from __future__ import annotations

import itertools
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from gem.tasks import Task, TaskSet
from gem.training.tasksets import decode_task
from gem.trajectory import Failure, Trajectory
from gem_oat.data import Collector, Share, Tasks


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(0, 7))
def test_ranks_share_each_batch_as_neighbours(
    per_rank: int, ranks: int, iterations: int, rest: int
) -> None:
    batch = per_rank * ranks
    tasks = batch * iterations + min(rest, batch - 1)
    shares = [list(Share(tasks, batch, ranks, rank)) for rank in range(ranks)]
    for rank, share in enumerate(shares):
        assert len(share) == len(Share(tasks, batch, ranks, rank)) == per_rank * iterations
    for k in range(iterations):
        together = [i for share in shares for i in share[k * per_rank : (k + 1) * per_rank]]
        assert together == list(range(k * batch, (k + 1) * batch))


def test_a_task_travels_as_oats_prompt() -> None:
    _, prompt, reference = Tasks(TaskSet("game:GuessTheNumber-v0", 100, seed=7))[5]
    task, _ = decode_task(prompt)
    assert (task.env_id, task.seed, reference) == ("game:GuessTheNumber-v0", 12, "5")


def test_memory_does_not_depend_on_the_number_of_tasks() -> None:
    def peak(n: int) -> int:
        tracemalloc.start()
        tasks, share = Tasks(TaskSet("game:GuessTheNumber-v0", n)), Share(n, 128, 8, 3)
        assert len(share) == n // 8
        for index in itertools.islice(share, 50):
            tasks[index]
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
