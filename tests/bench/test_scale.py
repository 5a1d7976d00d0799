"""The benchmark of scale: its clock and its engines are right, and it runs."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TURN_S = 0.5


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with the simulated engines."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scale_node

    return scale_node


@pytest.fixture
def world(node: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two episodes of one turn that takes half a second, however many are sampled at once."""
    work = node.Work(episodes=2, turns=1, sampled=50, read=8)
    monkeypatch.setattr(node.Work, "tokens", lambda self, episode, turn: 50)
    engines = node.Engines(1, TURN_S / 50, 0.0, 0.0, math.inf)
    return node.World(engines, work, node.Texts(tokenizer, "guess the number " * 200))


def run(node: Any, world: Any, *starts: Any) -> float:
    """Play both episodes; return the simulated seconds."""

    async def one(index: int) -> None:
        await starts[index]()
        await world.generate([index] * node.KEY)

    async def both() -> float:
        began = world.now()
        await asyncio.gather(one(0), one(1))
        return world.now() - began

    with asyncio.Runner(loop_factory=lambda: node.Loop(world)) as runner:
        return float(runner.run(both()))


async def nothing() -> None:
    """Begin at once."""


async def compute() -> None:
    """Keep the event loop for 200 ms of CPU time."""
    began = time.thread_time()
    while time.thread_time() - began < 0.2:
        pass


def test_waiting_for_engines_takes_simulated_time_only(node: Any, world: Any) -> None:
    began = time.process_time()
    assert TURN_S <= run(node, world, nothing, nothing) < TURN_S + 0.1
    assert time.process_time() - began < 0.2
    assert world.answers == 2
    assert 0 <= world.lost / (world.lost + world.used) < 0.05


def test_what_the_driver_computes_is_lost_to_the_engines(node: Any, world: Any) -> None:
    """Both episodes are asked for 200 ms late: neither can before the event loop is free."""
    assert TURN_S + 0.2 <= run(node, world, compute, nothing) < TURN_S + 0.35
    assert world.lost == pytest.approx(2 * 0.2, abs=0.1)
    assert world.used == pytest.approx(2 * TURN_S, rel=0.01)


def test_what_the_event_loop_does_meanwhile_makes_answers_late(node: Any, world: Any) -> None:
    async def busy() -> None:
        await asyncio.sleep(TURN_S - 0.1)
        await compute()

    run(node, world, nothing, busy)
    assert max(world.lags) == pytest.approx(0.1, abs=0.05)


def test_engines_without_a_driver_take_the_time_of_their_tokens(node: Any) -> None:
    engines, work = node.Engines(number=1), node.Work(episodes=1, turns=3)
    step_s = 6.8e-3 + 0.011e-3 + 0.046e-6 * work.context
    sampled = sum(work.tokens(0, turn) for turn in range(3)) * step_s
    read = 4 * 64 / 32_000
    assert node.shortest(engines, work) == pytest.approx(sampled + read + 3 * 0.2)


def test_the_engines_are_as_fast_as_those_that_were_measured(node: Any) -> None:
    """Median time between tokens in ms, of the source that `Engines` names."""
    for sequences, context, measured in (
        (1, 640, 6.86),
        (32, 640, 8.11),
        (128, 640, 12.0),
        (256, 640, 18.08),
        (64, 192, 8.15),
        (128, 192, 9.34),
        (256, 192, 12.83),
        (16, 3072, 9.46),
        (64, 3072, 17.05),
        (10, 8448, 11.78),
    ):
        work = node.Work(turns=1, sampled=context, read=context)
        world = node.World(node.Engines(number=1), work)
        world._running = [(0.0, 0, None)] * sequences
        near = 0.03 if sequences <= 128 and context <= 3072 else 0.09
        assert 1e3 * world.step_s() == pytest.approx(measured, rel=near)


@pytest.mark.nightly
def test_the_script_runs_in_seconds() -> None:
    command = [sys.executable, str(BENCHMARKS / "scale.py"), "--quick"]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    rows = [line.split() for line in said.stdout.splitlines()[1:]]
    assert [row[3] for row in rows] == ["compute", "wait", "rare"]
    for row in rows:
        assert row[:3] == ["rollout", "1", "16"]
        assert 0 <= float(row[4].rstrip("%")) <= 100
