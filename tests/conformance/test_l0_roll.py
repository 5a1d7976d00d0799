"""Level L0 for ROLL: golden trajectories through its rows and our seam, bit for bit.

The seam is called as ROLL's driver calls it, with tensors as ROLL's `DataProto` has them; a
checkout of ROLL is not needed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("gem_roll", reason="needs the development environment: make env-dev")

from gem.trajectory import Trajectory
from gem_roll.rows import compute, read, trained_rows
from gem_roll.settings import GemSettings
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.packed import PackedTrajectory
from gem_train.testing.conformance import L0Suite, Rows, critic
from gem_train.testing.golden import golden_batch

_spec = importlib.util.spec_from_file_location(
    "roll_batches", Path(__file__).parents[1] / "roll" / "batches.py"
)
assert _spec is not None and _spec.loader is not None
batches = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(batches)


class TestROLL(L0Suite):
    batches = (golden_batch,)

    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        """Read the tensors of ROLL's loss; its rows come in the order in which episodes end."""
        data = batches.batch(batch, order=reversed(range(len(batch))))
        mask = data.batch["response_mask"][:, 1:]
        data.batch["values"] = mask.float() * 0
        episodes = read(data)
        numbers = [PackedTrajectory.of(t).data for t in batch]
        for episode in episodes:
            number = numbers.index(episode.trajectory.data)
            values = [critic(number, k) for k in range(len(episode.trajectory.rewards))]
            for row in episode.rows:
                for turn, at in row.tokens.states:
                    data.batch["values"][row.place, at] = values[turn]
        settings = GemSettings(
            advantage=algorithm.advantage, max_failed_fraction=0.5, **algorithm.shaping
        )
        compute(settings, data, episodes, algorithm.gamma, algorithm.lam)
        # What ROLL's mean over tokens sums without the mask is 0 wherever nothing was sampled.
        assert not data.batch["advantages"][~mask].any()
        found = {e.trajectory.data: trained_rows(data, e) for e in episodes}
        return [found[packed] for packed in numbers]
