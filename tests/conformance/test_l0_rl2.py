"""Level L0 for RL2: golden trajectories through its tensors and our seam, bit for bit."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_rows import DEFECTS, GAMMA, LAM, critic, expected, same

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

from gem.advantage import ADVANTAGES
from gem.testing.golden import golden_batch, golden_turn_rows
from gem.trajectory import Trajectory
from gem_rl2.advantage import compute, read

_spec = importlib.util.spec_from_file_location(
    "world", Path(__file__).parents[1] / "rl2" / "world.py"
)
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)

BATCHES = {"one row an episode": golden_batch, "one row a turn": golden_turn_rows}


def rl2_advantages(name: str, batch: list[Trajectory], gamma: float = GAMMA) -> list[list[float]]:
    """One list of token advantages a row, as RL2 trains on them."""
    given = [f"adv.gamma={gamma}", f"adv.lamda={LAM}", "+gem.max_failed_fraction=0.5"]
    given += [f"+gem.advantage={name}", "+gem.prompt_tokens=100"]
    if name == "gae":
        given += ["adv.estimator=gae", "critic.model_name=m", "critic.max_length_per_device=500"]
    tensors, edges = world.tensors(batch)
    world.critic(tensors, batch, critic)
    compute(
        world.settings(*given), world.keys(*given), tensors, read(tensors, edges.tolist(), batch)
    )
    found: list[list[float]] = tensors["advantages"].tolist()
    return found


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", ADVANTAGES)
def test_rl2_gets_gems_advantages(name: str, make: Callable[[], list[Trajectory]]) -> None:
    wanted = expected(name, make())
    assert any(any(row) for row in wanted)
    assert same(rl2_advantages(name, make()), wanted)


@pytest.mark.parametrize("broken", DEFECTS)
def test_a_defect_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected("rebn", golden_batch())
    DEFECTS[broken](monkeypatch)
    assert not same(rl2_advantages("rebn", golden_batch()), wanted)


def test_another_discount_is_noticed() -> None:
    wanted = expected("rebn", golden_batch())
    assert not same(rl2_advantages("rebn", golden_batch(), gamma=1.0), wanted)
