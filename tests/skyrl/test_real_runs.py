"""A few steps of real SkyRL on CPU for each way of using it; one to two minutes each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from flaky_game import ID, source
from real_runs import TIMEOUT_S, log, started

from gem_skyrl.launch import adapter
from gem_train.launch import Launch
from gem_train.record import read_run

pytestmark = pytest.mark.slow

STEPS = 3
FLAKY = source("seed == 5")
Compile = Callable[..., Launch]


@pytest.fixture
def compile(compiled: Compile) -> Compile:
    """Compile a small run: `compile(folder, **tables of the RunSpec)`."""
    return partial(compiled, adapter)


def run(launch: Launch, folder: Path, *overrides: str) -> tuple[int, str]:
    """Train to the end; return the exit status and the log."""
    with started(launch, folder, *overrides) as process:
        status = process.wait(TIMEOUT_S)
    return status, log(folder)


def flaky(launch: Launch, folder: Path) -> Launch:
    """Play in an environment that fails with one of the seeds of the second batch."""
    tasks = launch.files["train.jsonl"].replace("game:GuessTheNumber-v0-easy", ID)
    files = {**launch.files, "train.jsonl": tasks, "sitecustomize.py": FLAKY}
    path = f"{launch.env['PYTHONPATH']}:{folder}"
    return replace(launch, files=files, env={**launch.env, "PYTHONPATH": path})


def check_record(folder: Path, failed: tuple[int, ...] = (0, 0, 0)) -> None:
    record = read_run(folder)
    train = [m for m in record.metrics if m["split"] == "train"]
    assert [m["iteration"] for m in train] == list(range(STEPS))
    assert [m["failed_episodes"] for m in train] == list(failed)
    assert [m["episodes"] for m in train] == [8 - n for n in failed]
    assert all(m["grad_norm"] > 0 for m in train)
    # The engine's log-probabilities are those of the trained weights, on the same tokens.
    assert all(m["logprob_difference_max"] < 1e-4 for m in train)
    episodes = [e for e in record.episodes() if e.split == "train"]
    for episode in episodes:
        if episode.trajectory.valid:
            assert episode.rows is not None
            sampled = sum(sum(row.mask) for row in episode.rows)
            assert sampled == episode.trajectory.sampled_tokens
    seeds = [e.trajectory.task.seed for e in episodes]
    assert seeds == [seed for seed in range(STEPS * 4) for _ in range(2)]


def test_turn_level_gae_with_skyrls_critic(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    status, text = run(compile(folder, algorithm={"advantage": "gae"}), folder)
    assert status == 0, text[-4000:]
    check_record(folder)
    record = read_run(folder)
    for name in ("warm", "greedy"):
        found = [m for m in record.metrics if m["split"] == f"eval:{name}"]
        assert [(m["iteration"], m["episodes"]) for m in found] == [(0, 3.0), (3, 3.0)]
    metrics = [m for m in record.metrics if m["split"] == "train"]
    assert all(m["value_grad_norm"] > 0 for m in metrics)


def test_rows_of_turns_with_failures_and_kl_in_the_reward(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch = compile(
        folder,
        policy={"context": "concat", "turns": 4},
        algorithm={"kl_coef": 0.1, "kl_in": "reward"},
        training={"max_failed_fraction": 0.3},
    )
    status, text = run(flaky(launch, folder), folder)
    assert status == 0, text[-4000:]
    check_record(folder, failed=(0, 2, 0))
    several = [len(e.rows or []) for e in read_run(folder).episodes() if e.split == "train"]
    assert max(several) > 1


def test_the_asynchronous_loop_records_the_versions_of_the_weights(
    compile: Compile, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, eval=[])
    status, text = run(
        launch,
        folder,
        "trainer.fully_async.enabled=true",
        "trainer.fully_async.max_staleness_steps=1",
        "trainer.fully_async.num_parallel_generation_workers=8",
        "trainer.algorithm.policy_loss_type=rollout_is",
    )
    assert status == 0, text[-4000:]
    record = read_run(folder)
    train = [m for m in record.metrics if m["split"] == "train"]
    assert [m["iteration"] for m in train] == list(range(STEPS))
    late = []
    for episode in record.episodes():
        version = episode.trajectory.policy_version
        assert version is not None
        late.append(episode.iteration - min(version))
    assert min(late) >= 0 and max(late) >= 1


def test_a_run_whose_episodes_all_fail_ends_and_says_why(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, policy={"prompt_tokens": 1})
    status, text = run(launch, folder)
    assert status != 0
    assert "episodes of evaluation" in text and "failed" in text
