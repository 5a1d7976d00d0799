"""Level L0 for OpenRLHF: golden trajectories through its experience maker, bit for bit."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

if importlib.util.find_spec("openrlhf") is None:
    pytest.skip("needs the OpenRLHF environment: make env-openrlhf", allow_module_level=True)
if os.environ.get("GEM_CPU") == "1":
    from gem_cpu import openrlhf_plugin

    openrlhf_plugin.install()

from gem.trajectory import Trajectory
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.testing.conformance import L0Suite, Rows, critic, cut_row
from gem_train.testing.golden import golden_batch

_spec = importlib.util.spec_from_file_location(
    "world", Path(__file__).parents[1] / "openrlhf" / "world.py"
)
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)


class TestOpenRLHF(L0Suite):
    batches = (golden_batch,)

    @pytest.fixture(autouse=True, params=[1, 3, 8], ids="{} rows an experience".format)
    def prepare(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.rows, self.folder = request.param, tmp_path

    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        """A failed episode keeps a row of OpenRLHF's, with nothing to train on."""
        name = algorithm.advantage
        shaping = {k: v for k, v in algorithm.shaping.items() if k != "group_std"}
        agent = world.agent_file(self.folder, advantage=name, max_failed_fraction=0.5, **shaping)
        flags = {"gamma": algorithm.gamma, "lambd": algorithm.lam}
        flags["estimator"] = "gae" if name == "gae" else "reinforce"
        maker = world.maker(
            agent,
            *(x for k, v in flags.items() for x in (f"--algo.advantage.{k}", str(v))),
            *([] if algorithm.group_std else ["--algo.advantage.no_std_norm"]),
        )
        done = maker.compute_advantages_and_returns(
            world.experiences(maker, batch, value=critic, rows=self.rows)
        )
        keys = ("sequences", "attention_mask", "action_mask", "advantages")
        rows = []
        for t, ids, attended, mask, advantages in zip(
            batch, *(world.by_episode(done, key) for key in keys), strict=True
        ):
            prompt = len(t.turns[0].context_ids) if t.valid else 1
            rows.append([cut_row(ids[: sum(attended)], prompt, mask=mask, advantages=advantages)])
        return rows
