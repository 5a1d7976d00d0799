"""Level L0 for TRL: golden trajectories through its trainer, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the development environment: make env-dev")

from trl import GRPOConfig

import gem_trl.trainer
from gem.trajectory import Trajectory
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.record import TrainedRow
from gem_train.testing.conformance import L0Suite, Rows
from gem_train.testing.golden import golden_batch
from gem_trl import GemGRPOTrainer, GemSettings, task_dataset


class TestTRL(L0Suite):
    critic = False
    batches = (golden_batch,)

    @pytest.fixture(autouse=True)
    def prepare(self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.folder, self.monkeypatch = model, tmp_path, monkeypatch

    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        """Read the tensors of TRL's loss; a failed episode keeps a row without sampled tokens."""
        trainer = GemGRPOTrainer(
            model=str(self.model),
            args=GRPOConfig(
                output_dir=str(self.folder),
                per_device_train_batch_size=len(batch),
                num_generations=2,
                bf16=False,
                use_cpu=True,
                report_to=[],
            ),
            train_dataset=task_dataset(f"gem:game:GuessTheNumber-v0-easy?n={len(batch)}"),
            gem=GemSettings(
                advantage=algorithm.advantage,
                gamma=algorithm.gamma,
                max_failed_fraction=0.5,
                **algorithm.shaping,
            ),
        )
        self.monkeypatch.setattr(gem_trl.trainer.Lockstep, "play", lambda *_: batch)
        trainer.model.train()
        rows = [trainer.train_dataset[place // 2] for place in range(len(batch))]
        output = trainer._generate_and_score_completions(rows)
        mask = output["completion_mask"] * output["tool_mask"]
        # What the loss multiplies with the mask is 0 wherever nothing was sampled.
        assert not output["advantages"][mask == 0].any()
        lengths = output["completion_mask"].sum(1).tolist()
        return [
            [
                TrainedRow(
                    prompt_ids=output["prompt_ids"][k][output["prompt_mask"][k].bool()].tolist(),
                    response_ids=output["completion_ids"][k, :n].tolist(),
                    mask=mask[k, :n].tolist(),
                    rewards=[],
                    advantages=output["advantages"][k, :n].tolist(),
                )
            ]
            for k, n in enumerate(lengths)
        ]
