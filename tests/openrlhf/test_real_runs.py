"""A few steps of real OpenRLHF on CPU for each way of using it; about a minute each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from flaky_game import ID, source
from real_runs import TIMEOUT_S, kill, log, started, traced, until

from gem_openrlhf.launch import adapter
from gem_train.launch import Launch
from gem_train.record import read_run

pytestmark = pytest.mark.slow

STEPS = 3


Compile = Callable[..., Launch]


@pytest.fixture
def compile(compiled: Compile) -> Compile:
    """Compile a small run: `compile(folder, **tables of the RunSpec)`."""
    return partial(compiled, adapter)


def run(launch: Launch, folder: Path) -> tuple[int, str]:
    """Train to the end; return the exit status and the log."""
    with started(launch, folder) as process:
        status = process.wait(TIMEOUT_S)
    return status, log(folder)


def train(launch: Launch, folder: Path) -> str:
    status, text = run(launch, folder)
    assert status == 0, text[-4000:]
    assert f"Global step {STEPS}:" in text
    return text


def with_agent(launch: Launch, source: str, *, hook: bool = True) -> Launch:
    env = {k: v for k, v in launch.env.items() if hook or k != "RAY_RUNTIME_ENV_HOOK"}
    return replace(launch, files={**launch.files, "agent.py": source}, env=env)


def check_record(folder: Path, failed: tuple[int, ...] = (0, 0, 0)) -> None:
    record = read_run(folder)
    train = [m for m in record.metrics if m["split"] == "train"]
    assert [m["iteration"] for m in train] == list(range(STEPS))
    assert [m["failed_episodes"] for m in train] == list(failed)
    assert [m["episodes"] for m in train] == [8 - n for n in failed]
    assert all(m["grad_norm"] > 0 for m in train)
    episodes = [e for e in record.episodes() if e.split == "train"]
    assert len(episodes) == STEPS * 8
    for episode in episodes:
        if episode.trajectory.valid:
            assert len(episode.trajectory.turns) > 1
            assert episode.rows is not None and len(episode.rows) == 1
            assert sum(episode.rows[0].mask) == episode.trajectory.sampled_tokens
    seeds = [e.trajectory.task.seed for e in episodes]
    assert sorted(seeds[:8]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(seeds) == [seed for seed in range(STEPS * 4) for _ in range(2)]


def test_turn_level_gae_with_openrlhfs_critic(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    text = train(compile(folder, algorithm={"advantage": "gae"}), folder)
    check_record(folder)
    record = read_run(folder)
    for name in ("warm", "greedy"):
        found = [m for m in record.metrics if m["split"] == f"eval:{name}"]
        assert [(m["iteration"], m["episodes"]) for m in found] == [(3, 3.0)]
    metrics = [m for m in record.metrics if m["split"] == "train"]
    assert all(m["value_grad_norm"] > 0 for m in metrics)
    # The engine's log-probabilities are those of the trained weights, on the same tokens.
    assert all(m["logprob_difference_max"] < 1e-5 for m in metrics)
    assert "eval_greedy_pass1" in text and "eval_warm_pass1" in text


FLAKY = source("seed == 5") + "from gem_openrlhf import GemAgentExecutor, Settings\n"


def flaky(launch: Launch, settings: str = "") -> Launch:
    """Play in an environment that fails with one of the seeds of the second batch."""
    agent = launch.files["agent.py"].replace("turn_tokens=", f"{settings}turn_tokens=")
    tasks = launch.files["train.jsonl"].replace("game:GuessTheNumber-v0-easy", ID)
    files = {**launch.files, "train.jsonl": tasks}
    return with_agent(replace(launch, files=files), FLAKY + agent)


def test_the_asynchronous_trainer_with_failures_and_kl_in_the_reward(
    compile: Compile, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, algorithm={"kl_coef": 0.1}, training={"precision": "bf16"})
    argv = [flag for flag in launch.argv if flag != "--algo.kl.use_loss"]
    # Generation is over before the last step is: there is no evaluation of it.
    argv += ["--train.async_enable", "--algo.kl.estimator", "k1", "--eval.steps", "1"]
    train(flaky(replace(launch, argv=argv), "max_failed_fraction=0.3, "), folder)
    check_record(folder, failed=(0, 2, 0))
    metrics = read_run(folder).metrics
    assert [m["kl"] != 0 for m in metrics if m["split"] == "train"] == [False, True, True]
    evaluated = [m for m in metrics if m["split"] == "eval:warm"]
    assert evaluated
    assert all(m["iteration"] in (1, 2) and m["episodes"] == 3 for m in evaluated)


def test_openrlhfs_own_estimator_without_the_hook(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, training={"precision": "bf16"})
    stock = (
        "from gem_openrlhf import GemAgentExecutor, Settings\n\n\n"
        "class AgentExecutor(GemAgentExecutor):\n"
        "    settings = Settings(prompt_tokens=300, turn_tokens=8)\n"
    )
    launch.argv.extend(["--algo.advantage.estimator", "group_norm"])
    launch.argv.extend(["--algo.advantage.is_correction_level", "token"])
    text = train(with_agent(launch, stock, hook=False), folder)
    assert "vllm_kl" in text and "gem/turns" in text
    assert not folder.joinpath("metrics.jsonl").exists()


def test_too_many_failed_episodes_stop_the_run(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, training={"precision": "bf16"})
    launch.argv.append("--train.async_enable")
    status, text = run(flaky(launch), folder)
    assert status != 0
    assert "2 of 8 episodes of this batch failed" in text
    assert "sandbox gone" in text


def test_a_missing_hook_stops_the_run_with_what_to_do(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, training={"precision": "bf16"})
    status, text = run(with_agent(launch, launch.files["agent.py"], hook=False), folder)
    assert status != 0
    assert "RAY_RUNTIME_ENV_HOOK=gem_openrlhf.worker.runtime_env_hook" in text


@pytest.mark.parametrize("killed", ["ray::RolloutRayActor", "VLLM::EngineCore"])
def test_an_engine_killed_before_a_weight_transfer_stops_the_run(
    compile: Compile, tmp_path: Path, killed: str
) -> None:
    folder = tmp_path / "run"
    launch = compile(folder, training={"precision": "bf16", "iterations": 1000})
    with started(launch, folder) as process:
        until(process, folder, "Global step 1:")
        kill(process, folder, killed, held="ray::PolicyModelActor")
        assert process.wait(TIMEOUT_S) != 0
    said = traced(folder, "a process that the run needs has died", "RolloutRayActor")
    assert said, log(folder)[-4000:]
