"""Real TRL on CPU through the command that gem-bench starts, in each way of using it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from real_runs import TIMEOUT_S, log, started

from gem_train.launch import Launch
from gem_train.record import read_run
from gem_trl.launch import adapter

pytestmark = pytest.mark.slow

STEPS = 3
Compile = Callable[..., Launch]


@pytest.fixture
def compile(compiled: Compile) -> Compile:
    """Compile a small run: `compile(folder, **tables of the RunSpec)`."""
    return partial(compiled, adapter)


def run(launch: Launch, folder: Path, *given: str) -> tuple[int, str]:
    """Train to the end; return the exit status and the log."""
    with started(launch, folder, *given) as process:
        status = process.wait(TIMEOUT_S)
    return status, log(folder)


def train(launch: Launch, folder: Path, *given: str) -> None:
    status, text = run(launch, folder, *given)
    assert status == 0, text[-4000:]


def check_record(folder: Path) -> list[dict[str, Any]]:
    record = read_run(folder)
    found = [m for m in record.metrics if m["split"] == "train"]
    assert [m["iteration"] for m in found] == list(range(STEPS))
    assert [m["episodes"] for m in found] == [8] * STEPS
    assert all(m["grad_norm"] > 0 for m in found)
    episodes = [e for e in record.episodes() if e.split == "train"]
    for episode in episodes:
        assert len(episode.trajectory.turns) > 1
        assert episode.rows is not None and len(episode.rows) == 1
        assert sum(episode.rows[0].mask) == episode.trajectory.sampled_tokens
    seeds = [e.trajectory.task.seed for e in episodes]
    assert seeds == [seed for seed in range(STEPS * 4) for _ in range(2)]
    return found


def test_evaluations_and_several_steps_with_penalty_and_bonus(
    compile: Compile, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    algorithm = {"kl_coef": 0.1, "entropy_coef": 0.01, "epochs": 2, "minibatches": 2}
    train(compile(folder, algorithm=algorithm), folder, "per_device_train_batch_size=2")
    found = check_record(folder)
    # The policy has moved after the first step.
    assert all(m["kl"] > 0 for m in found)
    assert all(m["rollout_s"] < m["step_s"] for m in found)
    metrics = read_run(folder).metrics
    assert [(m["iteration"], m["episodes"]) for m in metrics if m["split"] == "eval:warm"] == [
        (0, 3.0),
        (3, 3.0),
    ]
    first = {
        name: {e.trajectory.turns[0].text for e in read_run(folder).episodes(f"eval:{name}", {0})}
        for name in ("warm", "greedy")
    }
    # The games begin with the same prompt.
    assert (len(first["warm"]), len(first["greedy"])) == (3, 1)


def test_bf16(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(compile(folder, training={"precision": "bf16"}, eval=[]), folder)
    check_record(folder)


def without_times(folder: Path) -> tuple[list[Any], list[Any]]:
    record = read_run(folder)
    metrics = [
        {k: v for k, v in m.items() if not k.endswith("_s")} | {"tokens_per_s": 0}
        for m in record.metrics
    ]
    episodes = [
        (e.iteration, e.split, e.trajectory.to_dict(), e.advantages, e.rows)
        for e in record.episodes()
    ]
    return metrics, episodes


@pytest.mark.parametrize("rank", [0, 4])
def test_a_run_that_is_started_again_goes_on_as_if_it_had_not_ended(
    rank: int, compile: Compile, tmp_path: Path
) -> None:
    """Weights, optimiser, tasks and random numbers: the rest is the same to the last bit."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    tables = {
        **{"algorithm": {"epochs": 2}, "training": {"iterations": 4}},
        "policy": {"lora_rank": rank},
    }
    given = ("save_steps=4", "save_total_limit=3")
    launch = compile(whole, **tables)
    train(launch, whole, *given)
    shutil.copytree(whole, again)
    # As if the run had been killed in its last iteration.
    for step in (6, 8):
        shutil.rmtree(again / "checkpoints" / f"checkpoint-{step}", ignore_errors=True)
    assert (again / "checkpoints" / "checkpoint-4").is_dir()
    argv = [word.replace(str(whole), str(again)) for word in launch.argv]
    train(Launch(argv, launch.env, launch.unset), again, *given)
    assert without_times(again) == without_times(whole)
    replaced = (again / "metrics.replaced.jsonl").read_text().splitlines()
    assert len(replaced) > 0


def test_an_environment_in_which_all_fails_stops_the_run(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, policy={"prompt_tokens": 3}, eval=[])
    status, text = run(launch, folder)
    assert status == 2
    assert "8 of 8 episodes of this batch failed" in text
    assert "budget 8 (the first prompt of game:GuessTheNumber-v0-easy has" in text
