"""Level L0 for SkyRL: golden trajectories through the tensors of both of its loops, bit for bit."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("gem_skyrl") is None or os.environ.get("GEM_CPU") != "1":
    pytest.skip("needs SkyRL and its shims: make test-skyrl", allow_module_level=True)
from gem_cpu import skyrl_plugin

skyrl_plugin.install()

from gem.trajectory import Trajectory  # noqa: E402
from gem_skyrl.trainer import place, trained_row  # noqa: E402
from gem_train.experiment.runspec import AlgorithmPart  # noqa: E402
from gem_train.testing.conformance import L0Suite, Rows, critic  # noqa: E402
from gem_train.testing.golden import golden_batch, golden_turn_rows  # noqa: E402

_spec = importlib.util.spec_from_file_location(
    "world", Path(__file__).parents[1] / "skyrl" / "world.py"
)
assert _spec is not None and _spec.loader is not None
world: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)


class TestSkyRL(L0Suite):
    batches = (golden_batch,)
    asynchronous = False

    @pytest.fixture(autouse=True, params=[1, 3], ids="{} ranks".format)
    def prepare(self, request: pytest.FixtureRequest) -> None:
        # SkyRL fills a batch up with rows of its own until it divides among the ranks.
        self.ranks = request.param

    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        several = any(len(t.training_rows()) > 1 for t in batch if t.valid)
        words = [f"gem.advantage={algorithm.advantage}", "gem.max_failed_fraction=0.5"]
        words += [f"gem.{name}={value}" for name, value in algorithm.shaping.items() if value]
        words += [f"gem.group_std={algorithm.group_std}"]
        words += [f"trainer.algorithm.gamma={algorithm.gamma}"]
        words += [f"trainer.algorithm.lambd={algorithm.lam}"]
        words += [f"generator.step_wise_trajectories={several}"]
        if algorithm.estimator.needs_critic:
            words.append("trainer.critic.model.path=model")
        trainer = world.trainer(*words, ranks=self.ranks, asynchronous=self.asynchronous)
        # The asynchronous loop has its batches by group.
        order = sorted(range(len(batch)), key=lambda i: batch[i].group)
        ordered = [batch[i] for i in order] if self.asynchronous else batch
        data = world.batch(trainer, ordered)
        numbers = order if self.asynchronous else range(len(batch))
        world.with_values(data, ordered, lambda e, turn: critic(list(numbers)[e], turn))
        data = trainer.compute_advantages_and_returns(data)
        kept = [episode for episode in trainer.gem_batch if episode is not None]
        placed = place(data, kept, len(trainer.gem_batch))
        rows = [[trained_row(data, row) for row in each.rows] for each in placed]
        return [rows[list(numbers).index(i)] for i in range(len(batch))]


class TestRowsOfTurns(TestSkyRL):
    """An episode has a row a turn, for which there is no critic."""

    batches = (golden_turn_rows,)
    critic = False


class TestAsynchronous(TestSkyRL):
    """The other loop, whose batches are put together of groups."""

    asynchronous = True

    @pytest.fixture(autouse=True)
    def prepare(self) -> None:  # type: ignore[override]
        self.ranks = 1
