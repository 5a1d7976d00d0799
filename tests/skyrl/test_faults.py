"""What goes wrong while episodes are played is counted or ends the run, and is never a reward."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fake_trainer import Engine

import gem
from gem.core import Env, Step
from gem.errors import RolloutError
from gem.tasks import Task
from gem_skyrl.trainer import GemTrainer, trained_row
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.experiment.tasksets import DatasetRow
from gem_train.rows import PlacedRow, placed_rows
from gem_train.testing.conformance import Rows, difference

ID = "skyrl:Faulty-v0"


class Faulty(Env):
    """Ends after one turn, unless it is told to misbehave."""

    failed = False
    """Whether an environment with `fault="once"` has failed."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Say something.", {}

    def step(self, action: str) -> Step:
        once = self._fault == "once" and not Faulty.failed
        if self._fault == "always" or once:
            Faulty.failed = True
            raise OSError("no such server")
        if self._fault == "hangs":
            time.sleep(3)
        return "Thank you.", float(len(action)), True, False, {}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faulty, "failed", False)
    if not gem.list_envs(ID):
        gem.register(ID, Faulty)


@pytest.fixture
def trainer(config: dict[str, Any]) -> GemTrainer:
    gem_settings = {**config["gem"], "retries": 1, "step_timeout_s": 0.5, "turn_tokens": 4}
    return GemTrainer({**config, "gamma": 0.9, "gem": gem_settings})


def rollout(trainer: GemTrainer, *faults: str) -> list[dict[str, Any]]:
    """Play an episode of an environment with each fault."""
    tasks = [Task(ID, seed, {"fault": fault}) for seed, fault in enumerate(faults)]
    texts = [DatasetRow(task, number=i).encode() for i, task in enumerate(tasks)]
    return asyncio.run(trainer.rollout(texts))


def test_an_environment_that_fails_once_is_tried_again(trainer: GemTrainer) -> None:
    assert len(rollout(trainer, "once", "", "")) == 3
    assert Faulty.failed
    assert all(trajectory.valid for trajectory in trainer.played)


@pytest.mark.parametrize("fault", ["always", "hangs"])
def test_a_failed_episode_is_counted_and_in_no_mean(trainer: GemTrainer, fault: str) -> None:
    batch = trainer.collate(rollout(trainer, "", fault, "", ""))
    trainer.compute_advantages(batch)
    failures = [trajectory.failure for trajectory in trainer.played]
    assert [failure and failure.cause for failure in failures] == [None, "environment", None, None]
    found: Rows = [[] for _ in trainer.played]
    for row in placed_rows(trainer.played, PlacedRow):
        found[row.episode].append(trained_row(batch, row, trainer.played[row.episode]))
    algorithm = AlgorithmPart(advantage=trainer.settings.advantage, gamma=0.9)
    assert difference(found, trainer.played, algorithm) is None
    metrics = trainer.recording.write_iteration(0)
    assert (metrics["episodes"], metrics["failed_environment"]) == (3, 1)


def test_too_many_failed_episodes_end_the_run(trainer: GemTrainer) -> None:
    with pytest.raises(RolloutError, match=r"3 of 4 episodes.*environment 3 \(.*no such server"):
        rollout(trainer, "always", "always", "always", "")


def test_an_engine_that_died_ends_the_run(
    trainer: GemTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dead(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the engine is gone")

    monkeypatch.setattr(Engine, "generate", dead)
    with pytest.raises(ConnectionError, match="the engine is gone"):
        rollout(trainer, "", "")
