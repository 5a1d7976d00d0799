"""Real SkyRL with two ranks and two engines makes the updates that one rank makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import ranks

from gem_skyrl.launch import adapter
from gem_train.launch import Launch
from gem_train.record import RunRecord

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

# SkyRL has no eps of Adam. The first steps with its own are of this size whatever the gradient is,
# also where that is nothing but rounding.
OPTIMIZER = {"lr": 1e-5}
METRICS = ("grad_norm", "loss", "return_mean", "episodes", "failed_episodes")


def launch(folder: Path, number: int, *, fails: bool = False) -> Launch:
    """Greedy games with so many ranks; with `fails` one in eight fails."""
    made = ranks.compiled(adapter, folder, number, OPTIMIZER, fails=fails)
    if not fails:
        return made
    env = {**made.env, "PYTHONPATH": f"{made.env['PYTHONPATH']}:{folder}"}
    return replace(made, files={**made.files, "sitecustomize.py": ranks.FLAKY}, env=env)


def train(folder: Path, number: int, *, fails: bool = False) -> RunRecord:
    return ranks.trained(launch(folder, number, fails=fails), folder)


def check_equal(one: RunRecord, two: RunRecord) -> None:
    ranks.check_equal(one, two, METRICS, relative=1e-4)


def test_two_ranks_train_as_one_does(tmp_path: Path, keep: Callable[[str, str], None]) -> None:
    """Rows are of different lengths on every rank."""
    one, two = (train(tmp_path / str(number), number) for number in (1, 2))
    check_equal(one, two)
    assert len({m["grad_norm"] for m in one.metrics}) == ranks.ITERATIONS
    keep("skyrl", "two ranks")


def test_so_do_two_with_failed_episodes(tmp_path: Path) -> None:
    """They are not equally many on every rank."""
    one, two = (train(tmp_path / str(number), number, fails=True) for number in (1, 2))
    assert all(m["failed_episodes"] for m in two.metrics)
    check_equal(one, two)
