"""Real SkyRL with two ranks and two engines makes the updates that one rank makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib
from real_runs import TIMEOUT_S, log, started

from gem_skyrl.launch import adapter
from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import Launch
from gem_train.record import RunRecord, read_run

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
ITERATIONS = 3
SAME = 1e-5
FLAKY = """
from gem import register
from gem.envs.games.guess_the_number import GuessTheNumber


class Flaky(GuessTheNumber):
    def reset(self, seed=None, **options):
        self.number = seed
        return super().reset(seed, **options)

    def step(self, action):
        if self.number % 8 == 5:
            raise OSError("sandbox gone")
        return super().step(action)


register("test:Flaky-v0", Flaky)
"""


def launch(folder: Path, ranks: int, *, flaky: bool = False) -> Launch:
    """Greedy games of one to four turns.

    Args:
        folder: Of the run.
        ranks: Their number, and that of the engines.
        flaky: Let one episode in eight fail.
    """
    from gem_cpu import tiny_model

    recipe = ROOT / "recipes" / "guess-easy-greedy.toml"
    data = tomllib.loads(recipe.read_text(encoding="utf-8"))
    data["policy"]["model"] = str(tiny_model.ensure())
    data["training"] |= {"iterations": ITERATIONS, "max_failed_fraction": 0.3}
    # SkyRL has no eps of Adam. The first steps with its own are of this size whatever the gradient
    # is, also where that is nothing but rounding.
    data["optimizer"]["lr"] = 1e-5
    folder.mkdir()
    machine = replace(CPU, gpus_per_node=ranks)
    made = adapter.compile(RunSpec.from_mapping(data), run_dir=folder, hardware=machine)
    files, env = dict(made.files), {**made.env, "GEM_RECORD_ROWS": "1"}
    if flaky:
        files["sitecustomize.py"] = FLAKY
        files["train.jsonl"] = files["train.jsonl"].replace(data["env"]["id"], "test:Flaky-v0")
        env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{folder}"
    return replace(made, files=files, env=env)


def train(folder: Path, ranks: int, **kind: bool) -> RunRecord:
    with started(launch(folder, ranks, **kind), folder) as process:
        status = process.wait(TIMEOUT_S)
    assert status == 0, log(folder)[-4000:]
    return read_run(folder)


def rows(run: RunRecord) -> dict[Any, Any]:
    """What is trained on, by iteration and task."""
    return {(e.iteration, e.trajectory.task.seed): e for e in run.episodes()}


def check_equal(one: RunRecord, two: RunRecord) -> None:
    for a, b in zip(one.metrics, two.metrics, strict=True):
        for name in ("grad_norm", "loss", "return_mean", "episodes", "failed_episodes"):
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=SAME), name
    mine, theirs = rows(one), rows(two)
    assert mine.keys() == theirs.keys()
    for key, a in mine.items():
        b = theirs[key]
        assert b.rows is not None and a.rows is not None and len(b.rows) == len(a.rows)
        assert b.advantages == pytest.approx(a.advantages, abs=SAME)
        for mine_row, their_row in zip(a.rows, b.rows, strict=True):
            for name, value in vars(mine_row).items():
                assert getattr(their_row, name) == pytest.approx(value, abs=SAME), name


def test_two_ranks_train_as_one_does(tmp_path: Path, keep: Callable[[str, str], None]) -> None:
    """Rows are of different lengths on every rank."""
    one, two = (train(tmp_path / str(ranks), ranks) for ranks in (1, 2))
    check_equal(one, two)
    assert len({m["grad_norm"] for m in one.metrics}) == ITERATIONS
    keep("skyrl", "two ranks")


def test_so_do_two_with_failed_episodes(tmp_path: Path) -> None:
    """They are not equally many on every rank."""
    one, two = (train(tmp_path / str(ranks), ranks, flaky=True) for ranks in (1, 2))
    assert all(m["failed_episodes"] for m in two.metrics)
    check_equal(one, two)
