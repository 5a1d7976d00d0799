"""Level L0 for Tinker: golden trajectories become datums, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tinker", reason="needs the tinker environment: make env-tinker")

from gem.trajectory import Trajectory
from gem_tinker.advantage import Objective, batch_rows, to_datums, trained_rows
from gem_tinker.settings import Config
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.testing.conformance import L0Suite, Rows

OBJECTIVES = [
    Objective(aggregation, server)
    for aggregation in ("token-mean", "row-mean-token-sum")
    for server in ("hosted", "skyrl_jax")
]


class TestTinker(L0Suite):
    critic = False

    @pytest.fixture(autouse=True, params=OBJECTIVES, ids=lambda o: f"{o.aggregation}-{o.server}")
    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.objective = request.param

    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        """The rows that the record shows; the datums hold them times a factor, in float32."""
        keys = {"advantage": algorithm.advantage, "gamma": algorithm.gamma, **algorithm.shaping}
        config = Config(model="any", train="gem:game:GuessTheNumber-v0", **keys)
        rows, _ = batch_rows(batch, config)
        datums = to_datums(rows, self.objective)
        assert [row.datum for row in rows] == datums
        for row in rows:
            sent = row.datum.loss_fn_inputs["advantages"].to_numpy()
            shown = [0.0] * (len(row.tokens.prompt_ids) - 1) + row.advantages.tolist()
            assert sent.dtype == np.float32
            factors = row.padded(row.factors)
            assert np.array_equal(sent, np.array(shown, np.float32) * factors)
        return trained_rows(rows, batch)
