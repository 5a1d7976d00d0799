"""Level L0: golden trajectories through the trainer's own tensors, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from gem.trajectory import Trajectory
from gem_skyrl.rollout import trainer_row
from gem_skyrl.trainer import GemTrainer, trained_row
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.rows import PlacedRow, placed_rows
from gem_train.testing.conformance import L0Suite, Rows


class TestSkyrl(L0Suite):
    critic = False

    @pytest.fixture(autouse=True)
    def prepare(self, config: dict[str, Any]) -> None:
        self.config = config

    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        gem = {**self.config["gem"], "advantage": algorithm.advantage}
        gem |= algorithm.shaping
        trainer = GemTrainer({**self.config, "gamma": algorithm.gamma, "gem": gem})
        trainer.played = batch
        rows = placed_rows(batch, PlacedRow)
        tensors = trainer.collate([trainer_row(row.tokens) for row in rows])
        trainer.compute_advantages(tensors)
        found: Rows = [[] for _ in batch]
        for row in rows:
            found[row.episode].append(trained_row(tensors, row, batch[row.episode]))
        return found
