"""Three steps of real verl on CPU for each way of using it; about two minutes each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from real_runs import TIMEOUT_S, kill, log, started, traced, until

from gem_train.launch import Launch
from gem_train.record import read_run
from gem_verl.launch import adapter

pytestmark = pytest.mark.slow

STEPS = 3


Train = Callable[..., str]


@pytest.fixture
def train(compiled: Callable[..., Launch]) -> Train:
    """Train, and return the log: `train(folder, advantage, *overrides)`."""
    other = {
        "name": "other",
        "id": "game:GuessTheNumber-v0",
        "params": {"prompt": "short"},
        "episodes": 3,
        "every": 2,
    }

    def start(folder: Path, advantage: str, *overrides: str) -> str:
        launch = compiled(adapter, folder, algorithm={"advantage": advantage}, eval=[other])
        return run(launch, folder, *overrides)

    return start


def run(launch: Launch, folder: Path, *overrides: str) -> str:
    with started(launch, folder, *overrides) as process:
        status = process.wait(TIMEOUT_S)
    assert status == 0, log(folder)[-4000:]
    assert f"step:{STEPS} " in log(folder)
    return log(folder)


def check_record(folder: Path, rows_per_episode: int) -> None:
    record = read_run(folder)
    train = [m for m in record.metrics if m["split"] == "train"]
    assert [m["iteration"] for m in train] == list(range(STEPS))
    assert [m["iteration"] for m in record.metrics if m["split"] == "eval:other"] == [0, 2, 3]
    assert all(m["episodes"] == 8 and m["failed_episodes"] == 0 for m in train)
    assert all(m["grad_norm"] > 0 for m in train)
    # The engine's log-probabilities are those of the trained weights, on the same tokens.
    assert all(m["logprob_difference_max"] < 1e-5 for m in train)
    episodes = [e for e in record.episodes() if e.split == "train"]
    assert len(episodes) == STEPS * 8
    assert {len(e.trajectory.turns) for e in episodes} == {4}
    for episode in episodes:
        assert episode.rows is not None and len(episode.rows) == rows_per_episode
        assert sum(sum(row.mask) for row in episode.rows) == episode.trajectory.sampled_tokens
        assert sum(map(sum, (row.rewards for row in episode.rows))) == pytest.approx(
            episode.trajectory.total_reward, abs=1e-6
        )
    seeds = [e.trajectory.task.seed for e in episodes]
    assert seeds == [seed for seed in range(STEPS * 4) for _ in range(2)]


def test_verls_own_sync_trainer(train: Train, tmp_path: Path) -> None:
    text = train(tmp_path / "run", "rebn", "trainer.v1.trainer_mode=sync", "~gem.record_dir")
    assert "val-core/other/acc/mean@1" in text
    assert "critic/advantages/max:" in text


def test_verls_own_asynchronous_trainer(train: Train, tmp_path: Path) -> None:
    mode = "trainer.v1.trainer_mode=colocate_async"
    assert "gem_verl" in train(tmp_path / "run", "grpo", mode, "~gem.record_dir", "~gem.seed")


def test_turn_level_gae_with_verls_critic(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run", "gae")
    check_record(tmp_path / "run", rows_per_episode=1)
    assert all(
        m["value_grad_norm"] > 0
        for m in read_run(tmp_path / "run").metrics
        if m["split"] == "train"
    )


def test_a_row_per_turn(train: Train, tmp_path: Path) -> None:
    train(
        tmp_path / "run",
        "rebn",
        "actor_rollout_ref.rollout.agent.default_agent_loop=gem_turns",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    )
    check_record(tmp_path / "run", rows_per_episode=4)


def test_our_asynchronous_trainer(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run", "rebn", "trainer.v1.trainer_mode=gem_colocate_async", "~gem.seed")
    record = read_run(tmp_path / "run")
    assert [m["iteration"] for m in record.metrics if m["split"] == "train"] == list(range(STEPS))


@pytest.mark.nightly
def test_a_run_that_ends_before_its_last_step_ends_with_an_error(
    compiled: Callable[..., Launch], tmp_path: Path
) -> None:
    """verl stops after its last epoch, however many steps it was asked for."""
    folder = tmp_path / "run"
    launch = compiled(adapter, folder, training={"iterations": 2}, eval=[])
    asked = ("trainer.total_training_steps=4", "trainer.total_epochs=1", "trainer.test_freq=-1")
    with started(launch, folder, *asked) as process:
        assert process.wait(TIMEOUT_S) != 0
    assert traced(folder, "recorded only 2 of 4 iterations")
    assert [m["iteration"] for m in read_run(folder).metrics] == [0, 1]


@pytest.mark.parametrize(
    ("killed", "held", "named"),
    [
        # Held up, the actor meets a dead engine or server when it has weights for it.
        ("VLLM::EngineCore", "ray::WorkerDict", "vLLMHttpServer: EngineCore"),
        ("ray::vLLMHttpServer", "ray::WorkerDict", "class_name: vLLMHttpServer"),
        ("ray::AgentLoopWorker", None, "class_name: AgentLoopWorker"),
        ("ray::TransferQueueController", None, "class_name: TransferQueueController"),
    ],
)
def test_a_killed_process_stops_the_run_and_is_named(
    compiled: Callable[..., Launch], tmp_path: Path, killed: str, held: str | None, named: str
) -> None:
    folder = tmp_path / "run"
    launch = compiled(adapter, folder, training={"iterations": 1000})
    with started(launch, folder) as process:
        until(process, folder, "step:1 ")
        kill(process, folder, killed, held)
        assert process.wait(TIMEOUT_S) != 0
    said = traced(folder, "a process that the run needs has died", named)
    assert said, log(folder)[-4000:]
