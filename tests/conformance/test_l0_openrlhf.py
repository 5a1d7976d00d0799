"""Level L0 for OpenRLHF: golden trajectories through its experience maker, bit for bit."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from golden_rows import DEFECTS, GAMMA, LAM, critic, expected, same

if importlib.util.find_spec("openrlhf") is None:
    pytest.skip("needs the OpenRLHF environment: make env-openrlhf", allow_module_level=True)
if os.environ.get("GEM_CPU") == "1":
    from gem_cpu import openrlhf_plugin

    openrlhf_plugin.install()

from gem.advantage import ADVANTAGES
from gem.testing.golden import golden_batch

_spec = importlib.util.spec_from_file_location(
    "world", Path(__file__).parents[1] / "openrlhf" / "world.py"
)
assert _spec is not None and _spec.loader is not None
world = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(world)


def maker(name: str, folder: Path, gamma: float = GAMMA) -> Any:
    agent = world.agent_file(folder, advantage=name, max_failed_fraction=0.5)
    estimator = "gae" if name == "gae" else "reinforce"
    flags = {"gamma": gamma, "lambd": LAM, "estimator": estimator}
    return world.maker(
        agent, *(x for k, v in flags.items() for x in (f"--algo.advantage.{k}", str(v)))
    )


def openrlhf_advantages(maker: Any, rows: int) -> list[list[float]]:
    done = world.experiences(maker, golden_batch(), value=critic, rows=rows)
    found: list[list[float]] = world.by_episode(
        maker.compute_advantages_and_returns(done), "advantages"
    )
    return found


def wanted(name: str) -> list[list[float]]:
    """A row for every episode: what failed has none to train on, but OpenRLHF keeps a row."""
    rows = iter(expected(name, golden_batch()))
    return [next(rows) if trajectory.valid else [0.0] for trajectory in golden_batch()]


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_openrlhf_gets_gems_advantages(name: str, rows: int, tmp_path: Path) -> None:
    right = wanted(name)
    assert any(any(row) for row in right)
    assert same(openrlhf_advantages(maker(name, tmp_path), rows), right)


@pytest.mark.parametrize("broken", DEFECTS)
def test_a_defect_is_noticed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = wanted("rebn")
    DEFECTS[broken](monkeypatch)
    assert not same(openrlhf_advantages(maker("rebn", tmp_path), 3), right)


def test_another_discount_is_noticed(tmp_path: Path) -> None:
    assert not same(openrlhf_advantages(maker("rebn", tmp_path, gamma=1.0), 3), wanted("rebn"))
