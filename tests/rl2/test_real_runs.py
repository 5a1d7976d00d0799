"""A few steps of real RL2 and SGLang on CPU for each way of using them; about a minute each."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from flaky_game import ID, source
from processes import left_over, marked
from rl2_runs import TIMEOUT_S, run, split, started, train, with_env_file

from gem_rl2.launch import adapter
from gem_train.launch import Launch
from gem_train.record import RunRecord

pytestmark = pytest.mark.slow

STEPS = 3


Compile = Callable[..., Launch]


@pytest.fixture
def compile(compiled: Compile) -> Compile:
    """Compile a small run: `compile(folder, **tables of the RunSpec)`."""
    return partial(compiled, adapter)


def check_record(
    record: RunRecord, failed: tuple[int, ...] = (0, 0, 0), *, learns: bool = True
) -> None:
    metrics = split(record)
    assert [m["iteration"] for m in metrics] == list(range(STEPS))
    assert [m["failed_episodes"] for m in metrics] == list(failed)
    assert [m["episodes"] for m in metrics] == [8 - n for n in failed]
    # A random model earns the same in every episode, and relative advantages are 0.
    assert all(m["grad_norm"] > 0 for m in metrics) or not learns
    assert all(math.isfinite(m["loss"]) and m["rollout_s"] > 0 for m in metrics)
    episodes = [e for e in record.episodes() if e.split == "train"]
    assert len(episodes) == STEPS * 8
    for episode in episodes:
        if episode.trajectory.valid:
            assert len(episode.trajectory.turns) > 1
            assert episode.rows is not None
            sampled = sum(sum(row.mask) for row in episode.rows)
            assert sampled == episode.trajectory.sampled_tokens
    for k in range(STEPS):
        seeds = sorted(e.trajectory.task.seed for e in episodes if e.iteration == k)
        assert seeds == sorted([4 * k + j for j in range(4)] * 2)


FLAKY = source("seed == 5") + "from gem_rl2.env import generate\n"


def flaky(launch: Launch, folder: Path, *overrides: str) -> Launch:
    """Play in an environment that fails with one of the seeds of the second batch."""
    tasks = launch.files["train.jsonl"].replace("game:GuessTheNumber-v0-easy", ID)
    launch = replace(launch, files={**launch.files, "train.jsonl": tasks})
    return with_env_file(launch, folder, FLAKY, *overrides)


def test_turn_level_gae_with_rl2s_critic_minibatches_and_a_penalty(
    compile: Compile, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    algorithm = {"advantage": "gae", "minibatches": 2, "kl_coef": 0.1}
    record = train(compile(folder, algorithm=algorithm), folder)
    check_record(record)
    for name in ("warm", "greedy"):
        found = split(record, f"eval:{name}")
        assert [(m["iteration"], m["episodes"]) for m in found] == [(0, 3.0), (3, 3.0)]
    metrics = split(record)
    assert all(m["value_grad_norm"] > 0 for m in metrics)
    assert [m["kl"] != 0 for m in metrics] == [False, True, True]
    # SGLang's log-probabilities are those of the trained weights, on the same tokens.
    assert all(m["logprob_difference_max"] < 1e-5 for m in metrics)


def test_several_rows_an_episode_with_failures_and_kl_in_the_reward(
    compile: Compile, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    algorithm = {"advantage": "reinforce", "kl_coef": 0.1}
    training = {"max_failed_fraction": 0.3}
    launch = compile(folder, policy={"context": "window:1"}, algorithm=algorithm, training=training)
    launch = flaky(launch, folder, "actor.kl.type=reward")
    record = train(launch, folder)
    check_record(record, failed=(0, 2, 0))
    rows = [len(e.rows or []) for e in record.episodes() if e.split == "train"]
    assert max(rows) > 1
    assert split(record)[-1]["kl"] != 0


def test_rl2s_own_estimator_on_gems_episodes(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch = compile(folder)
    argv = [word for word in launch.argv if not word.startswith("+gem.advantage=")]
    record = train(replace(launch, argv=[*argv, "adv.norm_var=true"]), folder)
    check_record(record, learns=False)
    assert all(e.advantages is None for e in record.episodes())


def test_too_many_failed_episodes_stop_the_run(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    status, text = run(flaky(compile(folder), folder), folder)
    assert status != 0
    assert "1 of 8 episodes of this batch failed" in text  # a tenth may, the first is too much
    assert "sandbox gone" in text


def wait_for_the_second_batch(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not folder.joinpath("metrics.jsonl").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.5)


def named(folder: Path, name: str) -> list[int]:
    found = []
    for pid in marked(f"GEM_TEST_RUN={folder}"):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
            if name in words:
                found.append(pid)
    return found


def test_a_killed_server_stops_the_run_with_the_cause(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, training={"iterations": 1000})
    with started(launch, folder) as process:
        wait_for_the_second_batch(process, folder)
        schedulers = named(folder, "sglang::scheduler")
        assert schedulers
        for pid in schedulers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert process.wait(TIMEOUT_S) != 0
        assert left_over(folder) == []
    text = folder.joinpath("log").read_text(encoding="utf-8", errors="replace")
    assert f"a process of SGLang has ended (process id {schedulers[0]})" in text


def test_nothing_outlives_a_killed_trainer(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, training={"iterations": 1000})
    with started(launch, folder) as process:
        wait_for_the_second_batch(process, folder)
        workers = [p for p in named(folder, "RL2.trainer.ppo") if p != process.pid]
        assert workers
        os.kill(min(workers), signal.SIGKILL)
        assert process.wait(TIMEOUT_S) != 0
        assert left_over(folder) == []
