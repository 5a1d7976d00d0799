"""Level L0 for OpenRLHF: golden trajectories through its experience maker, bit for bit."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("openrlhf") is None:
    pytest.skip("needs the OpenRLHF environment: make env-openrlhf", allow_module_level=True)
if os.environ.get("GEM_CPU") == "1":
    from gem_cpu import openrlhf_plugin

    openrlhf_plugin.install()

from gem import advantage
from gem.advantage import ADVANTAGES, advantages
from gem.testing.golden import golden_batch
from gem.trajectory import Sequence, Trajectory, turn_table

_spec = importlib.util.spec_from_file_location(
    "world", Path(__file__).parents[1] / "openrlhf" / "world.py"
)
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)

GAMMA, LAM = 0.9, 0.8
FLAGS = ("--algo.advantage.gamma", str(GAMMA), "--algo.advantage.lambd", str(LAM))


def critic(episode: int, turn: int) -> float:
    return 0.125 * episode - 0.25 * turn


def maker(name: str, folder: Path, flags: tuple[str, ...] = FLAGS) -> Any:
    agent = world.agent_file(folder, advantage=name, max_failed_fraction=0.5)
    estimator = "gae" if name == "gae" else "reinforce"
    return world.maker(agent, *flags, "--algo.advantage.estimator", estimator)


def openrlhf_advantages(maker: Any, rows: int) -> list[list[float]]:
    done = world.experiences(maker, golden_batch(), value=critic, rows=rows)
    found: list[list[float]] = world.by_episode(
        maker.compute_advantages_and_returns(done), "advantages"
    )
    return found


def expected(name: str, batch: list[Trajectory]) -> list[list[float]]:
    """`gem.advantage` on the trajectories, spread by their own rows, as float32."""
    values = [[critic(e, k) for k in range(len(t.turns))] for e, t in enumerate(batch)]
    table = turn_table(batch, values)
    per_turn, _ = advantages(name, table, gamma=GAMMA, lam=LAM)
    out = []
    for trajectory, split in zip(batch, table.split(per_turn), strict=True):
        if not trajectory.valid:
            out.append([0.0])
            continue
        row = trajectory.sequences()[0]
        tokens = np.asarray([0.0] * (len(row.prompt_ids) - 1) + row.spread(split), np.float32)
        out.append(tokens.tolist())
    return out


def same(found: list[list[float]], wanted: list[list[float]]) -> bool:
    """Whether rows agree to the last bit; what lies beyond a row must be 0."""
    return all(
        row[: len(tokens)] == tokens and not any(row[len(tokens) :])
        for row, tokens in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_openrlhf_gets_gems_advantages(name: str, rows: int, tmp_path: Path) -> None:
    wanted = expected(name, golden_batch())
    assert any(any(row) for row in wanted)
    assert same(openrlhf_advantages(maker(name, tmp_path), rows), wanted)


def _gamma(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    return ("--algo.advantage.gamma", "1.0")


def _ddof(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    def unbiased(x: Any, valid: Any, all_reduce: Any) -> Any:
        result = np.zeros_like(x)
        result[valid] = (x[valid] - x[valid].mean()) / x[valid].std(ddof=1)
        return result

    patch.setattr(advantage, "_normalise", unbiased)
    return FLAGS


def _shift(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    original = Sequence.spread

    def shifted(row: Sequence, per_turn: Any) -> list[float]:
        return [0.0, *original(row, per_turn)[:-1]]

    patch.setattr(Sequence, "spread", shifted)
    return FLAGS


def _last_turn(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    def last(trajectory: Trajectory) -> list[float]:
        total = sum(turn.reward for turn in trajectory.turns)
        return [0.0] * (len(trajectory.turns) - 1) + [total]

    patch.setattr(Trajectory, "rewards", property(last))
    return FLAGS


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], tuple[str, ...]]] = {
    "gamma": _gamma,
    "unbiased standard deviation": _ddof,
    "advantages shifted by one token": _shift,
    "all reward in the last turn": _last_turn,
}


@pytest.mark.parametrize("broken", BREAKS)
def test_the_comparison_notices(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = expected("rebn", golden_batch())
    flags = BREAKS[broken](monkeypatch)
    assert not same(openrlhf_advantages(maker("rebn", tmp_path, flags), 3), wanted)
