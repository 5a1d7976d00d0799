"""Level L0 for RL2: golden trajectories through its tensors and our seam, bit for bit."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from pathlib import Path

import pytest

if importlib.util.find_spec("gem_rl2") is None or os.environ.get("GEM_CPU") != "1":
    pytest.skip("needs the RL2 environment: make env-rl2", allow_module_level=True)
else:
    from gem_cpu import rl2_plugin
    from gem_rl2.release import check_rl2

    rl2_plugin.install()
    sys.path[:0] = [check_rl2().path, *rl2_plugin.folders().split(os.pathsep)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("RL2.datasets")

from gem.trajectory import Trajectory
from gem_rl2.advantage import compute, read, trained_rows
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.hydra import hydra_value
from gem_train.testing.conformance import L0Suite, Rows, critic

_spec = importlib.util.spec_from_file_location(
    "world", Path(__file__).parents[1] / "rl2" / "world.py"
)
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)


class TestRL2(L0Suite):
    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        name = algorithm.advantage
        given = [f"adv.gamma={algorithm.gamma}", f"adv.lamda={algorithm.lam}"]
        given += [
            f"+gem.advantage={name}",
            *(f"+gem.{k}={hydra_value(v)}" for k, v in algorithm.shaping.items()),
            "+gem.prompt_tokens=100",
            "+gem.max_failed_fraction=0.5",
        ]
        if name == "gae":
            given += [
                "adv.estimator=gae",
                "critic.model_name=m",
                "critic.max_length_per_device=500",
            ]
        tensors, edges = world.tensors(batch)
        world.critic(tensors, batch, critic)
        episodes = read(tensors, edges.tolist(), batch)
        compute(world.settings(*given), world.keys(*given), tensors, episodes)
        rows = {id(e.trajectory): trained_rows(tensors, e) for e in episodes}
        # What lies outside of all rows is 0.
        shown = [a for of_episode in rows.values() for row in of_episode for a in row.advantages]
        assert tensors["advantages"].count_nonzero() == sum(map(bool, shown))
        return [rows[id(trajectory)] for trajectory in batch]
