"""Environments on a Ray cluster of two nodes, one of which is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import gem
from gem.executors.recipe import Recipe
from gem.vector import AsyncVectorEnv, VectorEnv, make_vec
from gem_serve.executors.ray import RayExecutor

ray = pytest.importorskip("ray", reason="Ray is in the trainers' environments: make nightly")

EASY = "game:GuessTheNumber-v0-easy"
NODE = {"num_cpus": 1, "resources": {"envs": 8}}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose CPUs are those of nodes that can be removed."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    cluster.connect()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def shown(vector: VectorEnv, turns: int) -> list[Any]:
    seen = []
    for turn in range(turns):
        actions = [f"\\boxed{{{(turn * 3 + i) % 10 + 1}}}" for i in range(vector.num_envs)]
        observations, rewards, terminated, truncated, infos = vector.step(actions)
        flags = [rewards.tolist(), terminated.tolist(), truncated.tolist()]
        seen.append([observations, *flags, infos])
    return seen


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_loss_of_an_actor_and_of_a_node_loses_nothing(cluster: Any) -> None:
    nodes = [cluster.add_node(**NODE) for _ in range(2)]
    expected = make_vec(EASY, num_envs=12, seed=7)
    executor = RayExecutor(2, resources={"envs": 1})
    vector = AsyncVectorEnv([Recipe(EASY)] * 12, executor, seed=7)
    try:
        assert vector.reset() == expected.reset()
        assert shown(vector, 5) == shown(expected, 5)
        ray.kill(executor.actors()[0])
        assert shown(vector, 5) == shown(expected, 5)
        cluster.remove_node(nodes[0], allow_graceful=False)
        assert shown(vector, 5) == shown(expected, 5)
        actors = executor.actors()
        assert actors
    finally:
        vector.close()
    for actor in actors:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actor.answers.remote(), timeout=60)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_what_an_environment_of_an_actor_raises_is_a_failure(cluster: Any) -> None:
    cluster.add_node(**NODE)
    gem.register("test:Leaves-v0", "leaving:Leaves")
    recipes = [Recipe("test:Leaves-v0", {"kind": kind}) for kind in range(6)]
    executor = RayExecutor(1, resources={"envs": 1})
    vector = AsyncVectorEnv([*recipes, Recipe(EASY)], executor, seed=7, autoreset="disabled")
    try:
        vector.reset()
        *_, truncated, infos = vector.step(["x"] * 7)
        assert truncated.tolist() == [True] * 6 + [False]
        names = [info["failure"].message.partition(": ")[2].partition(":")[0] for info in infos[:6]]
        assert names == [
            "SystemExit",
            "KeyboardInterrupt",
            "GeneratorExit",
            "CancelledError",
            "StopIteration",
            "BaseException",
        ]
    finally:
        vector.close()
