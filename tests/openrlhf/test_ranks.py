"""Real OpenRLHF with two ranks and two engines makes the updates that one rank makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib
from real_runs import TIMEOUT_S, log, started

from gem_openrlhf.launch import adapter
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


DYNAMIC = {
    "train.dynamic_batch_enable": True,
    "train.max_tokens_per_gpu": 400,
    "rollout.max_tokens_per_gpu": 300,
}


def launch(folder: Path, ranks: int, *, flaky: bool = False, packed: bool = False) -> Launch:
    """Greedy games of one to four turns.

    Args:
        folder: Of the run.
        ranks: Their number, and that of the engines.
        flaky: Let one episode in eight fail.
        packed: Put rows without padding into forward passes of at most so many tokens.
    """
    from gem_cpu import tiny_model

    recipe = ROOT / "recipes" / "guess-easy-greedy.toml"
    data = tomllib.loads(recipe.read_text(encoding="utf-8"))
    data["policy"]["model"] = str(tiny_model.ensure())
    data["training"] |= {"iterations": ITERATIONS, "max_failed_fraction": 0.3}
    # Where a gradient is next to nothing, Adam with a smaller eps makes much of how it is rounded.
    data["optimizer"]["eps"] = 1e-5
    folder.mkdir()
    machine = replace(CPU, gpus_per_node=ranks).with_native("openrlhf", DYNAMIC if packed else {})
    made = adapter.compile(RunSpec.from_mapping(data), run_dir=folder, hardware=machine)
    files = dict(made.files)
    if flaky:
        files["agent.py"] = FLAKY + files["agent.py"]
        files["train.jsonl"] = files["train.jsonl"].replace(data["env"]["id"], "test:Flaky-v0")
    return replace(made, files=files, env={**made.env, "GEM_RECORD_ROWS": "1"})


def train(folder: Path, ranks: int, **kind: bool) -> RunRecord:
    with started(launch(folder, ranks, **kind), folder) as process:
        status = process.wait(TIMEOUT_S)
    assert status == 0, log(folder)[-4000:]
    return read_run(folder)


def weights(run: RunRecord) -> Any:
    from safetensors.torch import load_file

    return load_file(run.folder / "model" / "model.safetensors")


def rows(run: RunRecord) -> dict[Any, Any]:
    """What is trained on, by iteration and task; episodes come in the order in which they end."""
    return {(e.iteration, e.trajectory.task.seed): e for e in run.episodes()}


def check_equal(one: RunRecord, two: RunRecord) -> None:
    for a, b in zip(one.metrics, two.metrics, strict=True):
        # OpenRLHF weighs the ranks' losses twice in its logs.
        for name in ("grad_norm", "return_mean", "episodes", "failed_episodes"):
            assert b[name] == pytest.approx(a[name], rel=SAME, abs=SAME), name
        # The engines got the weights: what they report is what the ranks compute.
        assert b["logprob_difference_max"] < SAME
    mine, theirs = rows(one), rows(two)
    assert mine.keys() == theirs.keys()
    for key, a in mine.items():
        b = theirs[key]
        assert b.rows is not None and a.rows is not None and len(b.rows) == len(a.rows)
        assert b.advantages == pytest.approx(a.advantages, abs=SAME)
        for mine_row, their_row in zip(a.rows, b.rows, strict=True):
            for name, value in vars(mine_row).items():
                assert getattr(their_row, name) == pytest.approx(value, abs=SAME), name
    trained, other = weights(one), weights(two)
    assert trained.keys() == other.keys()
    far = max(float((trained[name] - other[name]).abs().max()) for name in trained)
    assert far < SAME


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
    one, two = (train(tmp_path / str(ranks), ranks, flaky=True) for ranks in (1, 2))
    assert all(m["failed_episodes"] for m in two.metrics)
    check_equal(one, two)


def test_two_runs_on_one_machine_do_not_meet(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("left", "right")]
    left, right = (started(launch(folder, 2), folder) for folder in folders)
    with left as one, right as other:
        statuses = [process.wait(TIMEOUT_S) for process in (one, other)]
    assert statuses == [0, 0], log(folders[statuses.index(max(statuses))])[-4000:]
    check_equal(*map(read_run, folders))
