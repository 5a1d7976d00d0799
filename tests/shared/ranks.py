"""Greedy runs of a real trainer on Ray with one rank and with two, and their comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import flaky_game
import pytest
import tomllib
from real_runs import TIMEOUT_S, log, started

from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import Adapter, Launch
from gem_train.record import EpisodeRecord, RunRecord, read_run

ROOT = Path(__file__).parents[2]
ITERATIONS = 3
SAME = 1e-5
FLAKY = flaky_game.source("seed % 8 == 5")
"""One episode in eight fails."""


def compiled(
    adapter: Adapter,
    folder: Path,
    ranks: int,
    optimizer: dict[str, float],
    native: dict[str, Any] | None = None,
    *,
    fails: bool = False,
) -> Launch:
    """Compile greedy games of one to four turns, whose rows are recorded.

    Args:
        adapter: Of the trainer.
        folder: Of the run; it is made.
        ranks: Their number, and that of the engines.
        optimizer: Its settings that differ from the recipe's.
        native: The trainer's own settings.
        fails: Play in the environment of `FLAKY`; its source goes to the processes otherwise.
    """
    from gem_cpu import tiny_model

    recipe = ROOT / "recipes" / "guess-easy-greedy.toml"
    data = tomllib.loads(recipe.read_text(encoding="utf-8"))
    data["policy"]["model"] = str(tiny_model.ensure())
    data["training"] |= {"iterations": ITERATIONS, "max_failed_fraction": 0.3}
    data["optimizer"] |= optimizer
    folder.mkdir()
    machine = replace(CPU, gpus_per_node=ranks).with_native(adapter.table.trainer, native or {})
    made = adapter.compile(RunSpec.from_mapping(data), run_dir=folder, hardware=machine)
    files = dict(made.files)
    if fails:
        files["train.jsonl"] = files["train.jsonl"].replace(data["env"]["id"], flaky_game.ID)
    return replace(made, files=files, env={**made.env, "GEM_RECORD_ROWS": "1"})


def trained(launch: Launch, folder: Path) -> RunRecord:
    """Train to the end."""
    with started(launch, folder) as process:
        status = process.wait(TIMEOUT_S)
    assert status == 0, log(folder)[-4000:]
    return read_run(folder)


def check_equal(one: RunRecord, two: RunRecord, metrics: Sequence[str], *, relative: float) -> None:
    """Compare metrics, advantages and what was trained on.

    Args:
        one: With one rank.
        two: With two.
        metrics: Those that must be equal.
        relative: Their largest relative difference.
    """
    for a, b in zip(one.metrics, two.metrics, strict=True):
        for name in metrics:
            assert b[name] == pytest.approx(a[name], rel=relative, abs=SAME), name
    mine, theirs = _rows(one), _rows(two)
    assert mine.keys() == theirs.keys()
    for key, mine_of in mine.items():
        theirs_of = theirs[key]
        assert mine_of.rows is not None and theirs_of.rows is not None
        assert len(theirs_of.rows) == len(mine_of.rows)
        assert theirs_of.advantages == pytest.approx(mine_of.advantages, abs=SAME)
        for mine_row, their_row in zip(mine_of.rows, theirs_of.rows, strict=True):
            for name, value in vars(mine_row).items():
                assert getattr(their_row, name) == pytest.approx(value, abs=SAME), name


def _rows(run: RunRecord) -> dict[tuple[int, int], EpisodeRecord]:
    """What is trained on, by iteration and task; episodes come in the order in which they end."""
    return {(e.iteration, e.trajectory.task.seed): e for e in run.episodes()}
