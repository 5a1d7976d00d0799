"""Real OpenRLHF with two ranks and two engines makes the updates that one rank makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ranks
from real_runs import TIMEOUT_S, log, started

from gem_openrlhf.launch import adapter
from gem_train.launch import Launch
from gem_train.record import RunRecord, read_run

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

# Where a gradient is next to nothing, Adam with a smaller eps makes much of how it is rounded.
OPTIMIZER = {"eps": 1e-5}
# OpenRLHF weighs the ranks' losses twice in its logs.
METRICS = ("grad_norm", "return_mean", "episodes", "failed_episodes")
DYNAMIC = {
    "train.dynamic_batch_enable": True,
    "train.max_tokens_per_gpu": 400,
    "rollout.max_tokens_per_gpu": 300,
}
"""Rows without padding in forward passes of at most so many tokens."""


def launch(folder: Path, number: int, *, fails: bool = False, packed: bool = False) -> Launch:
    """Greedy games with so many ranks; with `fails` one in eight fails."""
    native = DYNAMIC if packed else None
    made = ranks.compiled(adapter, folder, number, OPTIMIZER, native, fails=fails)
    if not fails:
        return made
    return replace(made, files={**made.files, "agent.py": ranks.FLAKY + made.files["agent.py"]})


def train(folder: Path, number: int, **kind: bool) -> RunRecord:
    return ranks.trained(launch(folder, number, **kind), folder)


def weights(run: RunRecord) -> Any:
    from safetensors.torch import load_file

    return load_file(run.folder / "model" / "model.safetensors")


def check_equal(one: RunRecord, two: RunRecord) -> None:
    ranks.check_equal(one, two, METRICS, relative=ranks.SAME)
    # The engines got the weights: what they report is what the ranks compute.
    assert all(m["logprob_difference_max"] < ranks.SAME for m in two.metrics)
    trained, other = weights(one), weights(two)
    assert trained.keys() == other.keys()
    far = max(float((trained[name] - other[name]).abs().max()) for name in trained)
    assert far < ranks.SAME


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """What one rank with one engine does."""
    return train(tmp_path_factory.mktemp("alone") / "run", 1)


def test_two_ranks_train_as_one_does(
    alone: RunRecord, tmp_path: Path, keep: Callable[[str, str], None]
) -> None:
    """Rows are of different lengths on every rank."""
    check_equal(alone, train(tmp_path / "run", 2))
    keep("openrlhf", "two ranks")


def test_so_do_two_with_dynamic_batches(alone: RunRecord, tmp_path: Path) -> None:
    """Forward passes have different numbers of rows, and ranks different numbers of passes."""
    check_equal(alone, train(tmp_path / "run", 2, packed=True))


def test_so_do_two_with_failed_episodes(tmp_path: Path) -> None:
    """They are not equally many on every rank."""
    one, two = (train(tmp_path / str(number), number, fails=True) for number in (1, 2))
    assert all(m["failed_episodes"] for m in two.metrics)
    check_equal(one, two)


def test_two_runs_on_one_machine_do_not_meet(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("left", "right")]
    left, right = (started(launch(folder, 2), folder) for folder in folders)
    with left as one, right as other:
        statuses = [process.wait(TIMEOUT_S) for process in (one, other)]
    assert statuses == [0, 0], log(folders[statuses.index(max(statuses))])[-4000:]
    check_equal(*map(read_run, folders))
