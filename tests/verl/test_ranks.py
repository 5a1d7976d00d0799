"""Real verl with two ranks and two engines, in one Ray node and in two: they train as one does.

Played are greedy games of the tiny model, of one to four turns, so that nothing is random.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch
from real_runs import TIMEOUT_S, log, started

from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import Launch
from gem_train.record import EpisodeRecord, read_run
from gem_verl.launch import adapter

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
STEPS = 3
TASKS = 30
FLAKY = """
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.registry import register, spec


class Flaky(GuessTheNumber):
    def reset(self, seed=None, **options):
        if seed == {failing}:
            raise OSError("sandbox gone")
        return super().reset(seed, **options)


register("test:Flaky-v0", Flaky, **spec("{env}").kwargs)
"""

Compile = Callable[..., Launch]


@pytest.fixture(scope="module")
def compile() -> Compile:
    """Compile a few iterations, of which the second has an episode that fails.

    `compile(folder, ranks, nodes=1)`.
    """
    from gem_cpu import tiny_model

    recipe = ROOT / "recipes" / "guess-easy-greedy.toml"
    spec = tomllib.loads(recipe.read_text(encoding="utf-8"))
    spec["policy"]["model"] = str(tiny_model.ensure())
    spec["training"] |= {"tasks": TASKS, "iterations": STEPS}
    failing = spec["env"]["seed"] + TASKS + 5
    source = FLAKY.format(env=spec["env"]["id"], failing=failing)
    data = {**spec, "env": {**spec["env"], "id": "test:Flaky-v0"}}

    def make(folder: Path, ranks: int, nodes: int = 1) -> Launch:
        folder.mkdir()
        launch = adapter.compile(
            RunSpec.from_mapping(data), run_dir=folder, hardware=hardware(ranks, nodes)
        )
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        env = {"GEM_RECORD_ROWS": "1", "VERL_USE_EXTERNAL_MODULES": "flaky", "PYTHONPATH": path}
        return replace(launch, files={"flaky.py": source}, env=launch.env | env)

    return make


def hardware(ranks: int, nodes: int) -> Hardware:
    return replace(CPU, nodes=nodes, gpus_per_node=ranks // nodes, checkpoint_every=STEPS)


def train(*launches: tuple[Any, ...]) -> None:
    """Train side by side, to the end: launch, folder and overrides of each run."""
    with ExitStack() as stack:
        runs = [(stack.enter_context(started(*each)), each[1]) for each in launches]
        for process, folder in runs:
            assert process.wait(TIMEOUT_S) == 0, log(folder)[-4000:]


@pytest.fixture(scope="module")
def alone(compile: Compile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one rank."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    train((compile(folder, 1), folder))
    return folder


def shown(episode: EpisodeRecord) -> Any:
    """What an episode is and what is trained on."""
    played, rows = episode.trajectory, episode.rows
    turns = [turn.response_ids for turn in played.turns]
    return played.task, turns, played.rewards, episode.advantages, rows


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the last checkpoint, put together from the parts of all ranks."""
    parts = sorted((folder / "checkpoints" / f"global_step_{STEPS}" / "actor").glob("model_*.pt"))
    states = [torch.load(part, map_location="cpu", weights_only=False) for part in parts]
    return {
        name: torch.cat([getattr(s[name], "_local_tensor", s[name]) for s in states])
        for name in states[0]
    }


def check_equal(alone: Path, other: Path) -> None:
    mine, theirs = read_run(alone), read_run(other)
    episodes = list(mine.episodes())
    assert [shown(e) for e in theirs.episodes()] == [shown(e) for e in episodes]
    assert len({len(e.trajectory.turns) for e in episodes}) > 1
    assert [m["iteration"] for m in theirs.metrics] == list(range(STEPS))
    assert [m["failed_episodes"] for m in theirs.metrics] == [0, 1, 0]
    for a, b in zip(mine.metrics, theirs.metrics, strict=True):
        for name in ("loss", "grad_norm", "entropy", "return_mean"):
            assert b[name] == pytest.approx(a[name], rel=1e-5, abs=1e-7), (name, a["iteration"])
    # Adam makes steps of 1e-3 even of small gradients, and of their rounding.
    expected, found = weights(alone), weights(other)
    for name, weight in expected.items():
        assert torch.allclose(found[name], weight, rtol=0, atol=2e-5), name


def test_two_ranks_train_as_one_does(
    compile: Compile, alone: Path, tmp_path: Path, keep: Callable[[str, str], None]
) -> None:
    folder = tmp_path / "run"
    train((compile(folder, 2), folder))
    for name in ("WorkerDict", "vLLMHttpServer", "AgentLoopWorkerTQ"):
        assert len(set(re.findall(rf"\({name} pid=(\d+)\)", log(folder)))) == 2
    check_equal(alone, folder)
    keep("verl", "two ranks")


def test_so_do_two_beside_it_with_a_row_per_turn(compile: Compile, tmp_path: Path) -> None:
    """Games end after different numbers of turns: verl fills up the rows of both ranks."""
    folders = tmp_path / "one", tmp_path / "two"
    rows = (
        "actor_rollout_ref.rollout.agent.default_agent_loop=gem_turns",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS * 4}",
    )
    train(*((compile(folder, n), folder, *rows) for n, folder in enumerate(folders, 1)))
    check_equal(*folders)


@pytest.fixture
def cluster(compile: Compile, tmp_path: Path) -> Iterator[str]:
    """Two Ray nodes on this machine, each with a slot for a rank; the address of the first."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        # Processes get their environment from the node.
        launch = compile(tmp_path / "nodes", 2, 2)
        tmp_path.joinpath("nodes", "flaky.py").write_text(launch.files["flaky.py"])
        for name, value in launch.env.items():
            patch.setenv(name, value)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        nodes = Cluster()
        try:
            for extra in ({"include_dashboard": False}, {}):
                add_node(nodes, **extra)
            yield nodes.address
        finally:
            nodes.shutdown()


def add_node(nodes: Any, **extra: Any) -> None:
    """Add a node; Ray gives a start half a minute, which a busy machine may need twice."""
    given = {"num_cpus": 10, "num_gpus": 1, "object_store_memory": 300_000_000, **extra}
    for attempt in range(3):
        try:
            nodes.add_node(**given)
            return
        except Exception as error:  # Ray has no class for it.
            if attempt == 2 or "timed out during startup" not in str(error):
                raise


def test_so_do_two_nodes(compile: Compile, alone: Path, tmp_path: Path, cluster: str) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, 2, 2)
    train((replace(launch, env={**launch.env, "RAY_ADDRESS": cluster}), folder))
    check_equal(alone, folder)
