"""SkyRL's trainer with turn-level advantages: what it checks, adds and records."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gem.errors import RolloutError
from gem.tasks import Task
from gem_train.experiment.tasksets import DatasetRow
from gem_train.record import read_run
from gem_train.testing.golden import golden_batch

# Of the data loader that SkyRL uses.
pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
]

FAILING = "gem.max_failed_fraction=0.5"


def test_tokens_that_were_not_sampled_end_the_run(world: Any) -> None:
    trainer = world.trainer(FAILING)
    data = world.batch(trainer, golden_batch())
    data["sequences"][0, -1] += 1
    with pytest.raises(RolloutError, match="does not hold the tokens that were sampled"):
        trainer.compute_advantages_and_returns(data)


def test_a_row_that_vanished_ends_the_run(world: Any) -> None:
    trainer = world.trainer(FAILING)
    data = world.batch(trainer, golden_batch())
    trainer.gem_batch = [*trainer.gem_batch, None]
    with pytest.raises(RolloutError, match="the episodes have 8 rows, SkyRL has 9"):
        trainer.compute_advantages_and_returns(data)


def test_too_many_failed_episodes_end_the_run(world: Any) -> None:
    trainer = world.trainer("gem.max_failed_fraction=0.1")
    data = world.batch(trainer, golden_batch())
    with pytest.raises(RolloutError, match="1 of 8 episodes of this batch failed"):
        trainer.compute_advantages_and_returns(data)


def test_a_kl_penalty_is_taken_from_the_reward_of_its_turn(world: Any) -> None:
    """With REINFORCE without discount an advantage is the sum of rewards from a turn on."""
    words = ("gem.advantage=reinforce", "trainer.algorithm.gamma=1.0", FAILING)
    kl = ("trainer.algorithm.use_kl_in_reward=true", "trainer.algorithm.kl_estimator_type=k1")
    batch = golden_batch()
    trainer = world.trainer(*words, *kl, "trainer.algorithm.kl_loss_coef=0.5")
    data = world.batch(trainer, batch)
    gap = torch.linspace(0.0, 1.0, data["rewards"].numel()).reshape(data["rewards"].shape)
    data["base_action_log_probs"] = data["action_log_probs"] - gap
    rewards = data["rewards"].clone()
    data = trainer.apply_reward_kl_penalty(data)
    expected = rewards - 0.5 * gap * data["loss_mask"]
    torch.testing.assert_close(data["rewards"], expected)
    data = trainer.compute_advantages_and_returns(data)
    for place, episode in enumerate(batch):
        if not episode.valid:
            continue
        [row] = episode.training_rows()
        first = data["rewards"].shape[1] - len(row.response_ids)
        for span in row.spans:
            if span.start < span.end:
                column = first + span.start
                wanted = float(expected[place, column:].sum())
                assert float(data["advantages"][place, column]) == pytest.approx(wanted, abs=1e-5)


def test_how_far_the_engines_are_from_the_trainer_is_recorded(world: Any, tmp_path: Path) -> None:
    trainer = world.trainer(FAILING, f"gem.record_dir={tmp_path}")
    data = world.batch(trainer, golden_batch())
    place, column = (data["loss_mask"] > 0).nonzero()[3].tolist()
    data["action_log_probs"][place, column] += 0.25
    data["action_log_probs"][data["loss_mask"] == 0] += 9.0
    trainer.compute_advantages_and_returns(data)
    metrics = trainer.recording.write_iteration(0)
    tokens = int((data["loss_mask"] > 0).sum())
    assert metrics["logprob_difference_max"] == pytest.approx(0.25)
    assert metrics["logprob_difference_mean"] == pytest.approx(0.25 / tokens, rel=1e-4)
    assert metrics["sampler_kl"] == pytest.approx((math.exp(0.25) - 1.25) / tokens, rel=1e-3)
    assert metrics["mismatched_tokens"] == 0
    [line] = read_run(tmp_path).metrics
    assert (line["episodes"], line["failed_episodes"]) == (7.0, 1.0)


def test_tasks_are_trained_on_in_their_order(world: Any) -> None:
    from gem_skyrl.dataset import TaskDataset

    data = TaskDataset([])
    data.rows = [DatasetRow(Task("game:GuessTheNumber-v0", seed)) for seed in range(12)]
    data._columns = [{"gem": row.encode()} for row in data.rows]
    for asynchronous, size in ((False, 4), (True, 1)):
        trainer = world.trainer("trainer.epochs=2", asynchronous=asynchronous)
        trainer.train_dataset, trainer.mini_batch_size = data, 4
        trainer._build_train_dataloader_and_compute_training_steps()
        assert trainer.total_training_steps == 6
        batches = [[item["uid"] for item in batch] for batch in trainer.train_dataloader]
        assert [len(batch) for batch in batches] == [size] * (12 // size)
        assert [uid for batch in batches for uid in batch] == [str(i) for i in range(12)]


class Generator:
    """Answers with episodes that are known, and remembers what it was asked."""

    def __init__(self, episodes: list[Any]) -> None:
        self.episodes = episodes
        self.asked: list[Any] = []

    async def play(self, rows: Any, keys: Any, sampling: Any) -> list[Any]:
        self.asked.append((rows, keys, sampling))
        return self.episodes


def test_evaluations_are_played_and_recorded_by_name(world: Any, tmp_path: Path) -> None:
    episodes = [each for each in golden_batch() if each.valid][:4]
    names = ["a", "b", "a", "b"]
    rows = [DatasetRow(e.task, evaluation=n) for e, n in zip(episodes, names, strict=True)]
    trainer = world.trainer(f"gem.record_dir={tmp_path}")
    trainer.generator, trainer.eval_dataset = Generator(episodes), SimpleNamespace(rows=rows)
    trainer.global_step = 6
    metrics = asyncio.run(trainer.eval())
    assert set(metrics) == {f"eval/{n}/{m}" for n in "ab" for m in ("success_rate", "return_mean")}
    assert trainer.generator.asked[0][2]["temperature"] == 0.0
    trainer.recording.write_evaluated(6)
    lines = read_run(tmp_path).metrics
    assert [(m["iteration"], m["split"], m["episodes"]) for m in lines] == [
        (6, "eval:a", 2.0),
        (6, "eval:b", 2.0),
    ]


def test_only_complete_iterations_are_recorded(world: Any, tmp_path: Path) -> None:
    """A run that fails hands its tracker what the iteration under way has logged so far."""
    from gem_skyrl.record import GemTracking

    trainer = world.trainer(FAILING, f"gem.record_dir={tmp_path}")
    trainer.compute_advantages_and_returns(world.batch(trainer, golden_batch()))
    tracker = GemTracking("project", "name", "console")
    tracker.recording, tracker.timings = trainer.recording, dict
    tracker.log({"policy/grad_norm": 1.0}, step=1, commit=True)
    assert not (tmp_path / "metrics.jsonl").exists()
    tracker.log({"policy/grad_norm": 2.0, "trainer/global_step": 1}, step=1, commit=True)
    [line] = read_run(tmp_path).metrics
    assert (line["iteration"], line["grad_norm"]) == (0, 2.0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_iteration_is_recorded_before_its_checkpoint_and_with_its_times(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """A run that is killed when the checkpoint is there goes on after that iteration."""
    from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
    from skyrl.train.trainer import RayPPOTrainer

    from gem_skyrl.record import GemTracking

    words = ["trainer.algorithm.policy_loss_type=rollout_is"] if asynchronous else []
    trainer = world.trainer(
        FAILING, f"gem.record_dir={tmp_path}", *words, asynchronous=asynchronous
    )
    trainer.tracker = GemTracking("project", "name", "console")
    trainer.tracker.recording = trainer.recording
    trainer.tracker.timings = lambda: trainer.all_timings
    trainer.compute_advantages_and_returns(world.batch(trainer, golden_batch()))
    trainer.all_metrics["policy/grad_norm"] = 2.0
    trainer.all_timings["run_training"] = 3.0

    def save(self: Any) -> str:
        [line] = read_run(tmp_path).metrics
        assert (line["iteration"], line["grad_norm"], line["update_s"]) == (0, 2.0, 3.0)
        return "folder"

    base = FullyAsyncRayPPOTrainer if asynchronous else RayPPOTrainer
    monkeypatch.setattr(base, "save_checkpoints", save)
    if asynchronous:  # logs before it saves, and times of the step later
        trainer.tracker.log({**trainer.all_metrics, "trainer/global_step": 1}, step=1)
    assert trainer.save_checkpoints() == "folder"
    trainer.tracker.log({**trainer.all_metrics, "trainer/global_step": 1}, step=1, commit=True)
    assert len(read_run(tmp_path).metrics) == 1


def test_a_run_that_ends_early_ends_with_an_error(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyrl.train.trainer import RayPPOTrainer

    from gem.errors import UnfinishedError

    async def nothing(self: Any) -> None: ...

    monkeypatch.setattr(RayPPOTrainer, "train", nothing)
    trainer = world.trainer(f"gem.record_dir={tmp_path}")
    trainer.total_training_steps = 2
    with pytest.raises(UnfinishedError, match="only 0 of 2 iterations"):
        asyncio.run(trainer.train())
