"""Level L0 for RL2: golden trajectories through its tensors and our seam, bit for bit."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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

from gem import advantage
from gem.advantage import ADVANTAGES, advantages
from gem.testing.golden import golden_batch, golden_turn_rows
from gem.trajectory import Sequence, Trajectory, turn_table
from gem_rl2.advantage import compute, read

_spec = importlib.util.spec_from_file_location(
    "world", Path(__file__).parents[1] / "rl2" / "world.py"
)
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)

GAMMA, LAM = 0.9, 0.8
KEYS = (f"adv.gamma={GAMMA}", f"adv.lamda={LAM}", "+gem.max_failed_fraction=0.5")
BATCHES = {"one row an episode": golden_batch, "one row a turn": golden_turn_rows}


def critic(episode: int, turn: int) -> float:
    return 0.125 * episode - 0.25 * turn


def rl2_advantages(
    name: str, batch: list[Trajectory], overrides: tuple[str, ...] = KEYS
) -> list[list[float]]:
    """One list of token advantages a row, as RL2 trains on them."""
    given = [*overrides, f"+gem.advantage={name}", "+gem.prompt_tokens=100"]
    if name == "gae":
        given += ["adv.estimator=gae", "critic.model_name=m", "critic.max_length_per_device=500"]
    tensors, edges = world.tensors(batch)
    world.critic(tensors, batch, critic)
    compute(
        world.settings(*given), world.keys(*given), tensors, read(tensors, edges.tolist(), batch)
    )
    found: list[list[float]] = tensors["advantages"].tolist()
    return found


def expected(name: str, batch: list[Trajectory]) -> list[list[float]]:
    """`gem.advantage` on the trajectories, spread by their own rows, as float32."""
    values = [[critic(e, k) for k in range(len(t.turns))] for e, t in enumerate(batch)]
    table = turn_table(batch, values)
    per_turn, _ = advantages(name, table, gamma=GAMMA, lam=LAM)
    out = []
    for trajectory, split in zip(batch, table.split(per_turn), strict=True):
        for row in trajectory.sequences() if trajectory.valid else []:
            tokens = [0.0] * (len(row.prompt_ids) - 1) + row.spread(split)
            out.append(np.asarray(tokens, np.float32).tolist())
    return out


def same(found: list[list[float]], wanted: list[list[float]]) -> bool:
    """Whether rows agree to the last bit; what lies beyond a row must be 0."""
    return all(
        row[: len(tokens)] == tokens and not any(row[len(tokens) :])
        for row, tokens in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", ADVANTAGES)
def test_rl2_gets_gems_advantages(name: str, make: Callable[[], list[Trajectory]]) -> None:
    wanted = expected(name, make())
    assert any(any(row) for row in wanted)
    assert same(rl2_advantages(name, make()), wanted)


def _gamma(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    return ("adv.gamma=1.0", *KEYS[1:])


def _ddof(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    def unbiased(x: Any, valid: Any, all_reduce: Any) -> Any:
        result = np.zeros_like(x)
        result[valid] = (x[valid] - x[valid].mean()) / x[valid].std(ddof=1)
        return result

    patch.setattr(advantage, "_normalise", unbiased)
    return KEYS


def _shift(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    original = Sequence.spread

    def shifted(row: Sequence, per_turn: Any) -> list[float]:
        return [0.0, *original(row, per_turn)[:-1]]

    patch.setattr(Sequence, "spread", shifted)
    return KEYS


def _last_turn(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    def last(trajectory: Trajectory) -> list[float]:
        total = sum(turn.reward for turn in trajectory.turns)
        return [0.0] * (len(trajectory.turns) - 1) + [total]

    patch.setattr(Trajectory, "rewards", property(last))
    return KEYS


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], tuple[str, ...]]] = {
    "gamma": _gamma,
    "unbiased standard deviation": _ddof,
    "advantages shifted by one token": _shift,
    "all reward in the last turn": _last_turn,
}


@pytest.mark.parametrize("broken", BREAKS)
def test_the_comparison_notices(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected("rebn", golden_batch())
    overrides = BREAKS[broken](monkeypatch)
    assert not same(rl2_advantages("rebn", golden_batch(), overrides), wanted)
