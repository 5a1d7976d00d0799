"""A few iterations of real ROLL and vLLM on CPU for each way of using them; 3 minutes each."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from flaky_game import ID, source
from processes import left_over, marked

from gem_roll.launch import adapter
from gem_train.launch import Launch
from gem_train.record import RunRecord, read_run

pytestmark = pytest.mark.slow

TIMEOUT_S = 600
Compile = Callable[..., Launch]


@pytest.fixture
def compile(imported: Any, compiled: Compile) -> Compile:
    """Compile a small run: `compile(folder, **tables of the RunSpec)`."""
    return partial(compiled, adapter)


def run(launch: Launch, folder: Path) -> tuple[int, str]:
    """Train to the end; return the exit status and the log. Nothing is left running."""
    for name, text in launch.files.items():
        folder.joinpath(name).write_text(text)
    env = {k: v for k, v in os.environ.items() if k not in launch.unset}
    with folder.joinpath("log").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *launch.argv[1:]],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**env, **launch.env, "GEM_TEST_RUN": str(folder)},
            cwd=folder,
            start_new_session=True,
        )
        try:
            status = process.wait(TIMEOUT_S)
            assert left_over(folder) == []
        finally:
            process.kill()
            for pid in marked(f"GEM_TEST_RUN={folder}"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    return status, folder.joinpath("log").read_text(encoding="utf-8", errors="replace")


def train(launch: Launch, folder: Path) -> RunRecord:
    status, text = run(launch, folder)
    assert status == 0, text[-4000:]
    return read_run(folder)


def split(record: RunRecord, name: str = "train") -> list[dict[str, Any]]:
    return [m for m in record.metrics if m["split"] == name]


def changed(launch: Launch, changes: Mapping[str, Any]) -> Launch:
    """Change keys of ROLL's configuration; dots separate tables."""
    tree = yaml.safe_load(launch.files["roll.yaml"])
    for key, value in changes.items():
        *tables, name = key.split(".")
        table = tree
        for each in tables:
            table = table[each]
        table[name] = value
    return replace(launch, files={**launch.files, "roll.yaml": yaml.safe_dump(tree)})


def flaky(launch: Launch, folder: Path, broken: str) -> Launch:
    """Play in an environment that fails with some seeds, registered in every process."""
    path = os.pathsep.join([launch.env["PYTHONPATH"], str(folder)])
    launch = replace(
        launch,
        env={**launch.env, "PYTHONPATH": path},
        # gem-cpu's sitecustomize runs the next one on the path.
        files={**launch.files, "sitecustomize.py": source(f"seed in {broken}")},
    )
    return changed(launch, {"custom_envs.train.env_type": ID})


def test_several_optimiser_steps_two_workers_evaluations_and_failures(
    compile: Compile, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    launch = compile(
        folder,
        algorithm={"minibatches": 2, "epochs": 2, "entropy_coef": 0.01},
        training={"max_failed_fraction": 0.3},
    )
    launch = changed(launch, {"train_env_manager.max_env_num_per_worker": 4})
    record = train(flaky(launch, folder, "{5}"), folder)
    metrics = split(record)
    assert [m["iteration"] for m in metrics] == [0, 1, 2]
    # Seed 5 is of the second batch, and the task of two episodes.
    assert [(m["episodes"], m["failed_episodes"]) for m in metrics] == [(8, 0), (6, 2), (8, 0)]
    assert all(math.isfinite(m["loss"]) and m["grad_norm"] > 0 for m in metrics)
    assert all(m["rollout_s"] > 0 and m["entropy"] > 0 for m in metrics)
    # vLLM's log-probabilities are those of the trained weights, on the same tokens.
    assert all(m["logprob_difference_max"] < 1e-4 for m in metrics)
    episodes = [e for e in record.episodes() if e.split == "train"]
    for k in range(3):
        seeds = [e.trajectory.task.seed for e in episodes if e.iteration == k]
        assert seeds == [4 * k + j for j in range(4) for _ in range(2)]
    for each in episodes:
        sampled = sum(sum(row.mask) for row in each.rows or [])
        assert sampled == (each.trajectory.sampled_tokens if each.trajectory.valid else 0)
    for name in ("warm", "greedy"):
        found = split(record, f"eval:{name}")
        assert [(m["iteration"], m["episodes"]) for m in found] == [(0, 3.0)]
    greedy = [e.trajectory for e in record.episodes() if e.split == "eval:greedy"]
    assert [t.task.seed for t in greedy] == [500_000, 500_001, 500_002]


def test_two_environment_workers_make_the_same_batches_as_one(
    compile: Compile, tmp_path: Path
) -> None:
    """Greedy, so that nothing is random."""
    played = []
    for workers in (1, 2):
        folder = tmp_path / f"run{workers}"
        launch = compile(folder, sampling={"top_k": 1}, training={"iterations": 2}, eval=())
        size = {"train_env_manager.max_env_num_per_worker": 8 // workers}
        record = train(changed(launch, size), folder)
        played.append(
            [
                ([t.response_ids for t in e.trajectory.turns], e.trajectory.task, e.advantages)
                for e in record.episodes()
            ]
        )
    assert len(played[0]) == 16
    assert played[0] == played[1]


def test_an_environment_in_which_all_episodes_fail_stops_the_run(
    compile: Compile, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    status, text = run(flaky(compile(folder, eval=()), folder, "range(100)"), folder)
    assert status != 0
    assert "8 of 8 episodes of this batch failed" in text
    assert "sandbox gone" in text
    assert not split(read_run(folder))


def test_a_batch_that_roll_would_change_is_refused_before_it_is_played(
    compile: Compile, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    launch = changed(compile(folder, eval=()), {"actor_train.infer_batch_size": 3})
    status, text = run(launch, folder)
    assert status != 0
    assert "rollout_batch_size: ROLL would copy or delete episodes" in text
    assert not folder.joinpath("episodes.jsonl").exists()


def test_turn_level_gae_with_rolls_critic_and_a_penalty(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record = train(compile(folder, algorithm={"advantage": "gae", "kl_coef": 0.1}, eval=()), folder)
    metrics = split(record)
    assert len(metrics) == 3
    assert all(m["value_loss"] > 0 and m["value_grad_norm"] > 0 for m in metrics)
    assert [m["kl"] > 1e-9 for m in metrics] == [False, True, True]


def test_rolls_own_pipeline_and_environment_run_with_the_legacy_names(
    compile: Compile, tmp_path: Path
) -> None:
    """ROLL's AgenticPipeline, TrajEnvManager and FrozenLake; of GEM only the names."""
    folder = tmp_path / "run"
    lake = {
        "env_type": "frozen_lake",
        "env_manager_cls": "roll.pipeline.agentic.env_manager.traj_env_manager.TrajEnvManager",
        "max_steps": 2,
        "max_tokens_per_step": 8,
        "use_thread_lock": True,
        "agent_system_template": "Play.",
        "agent_template": "{observation}",
        "env_config": {"size": 4, "is_slippery": False},
    }
    worker = "gem_roll.legacy_worker.LegacyEnvironmentWorker"
    launch = changed(
        compile(folder, training={"iterations": 2}, eval=()),
        {
            "pipeline_cls": "roll.pipeline.agentic.agentic_pipeline.AgenticPipeline",
            "custom_envs.train": lake,
            "train_env_manager.worker_cls": worker,
            "val_env_manager.worker_cls": worker,
        },
    )
    status, text = run(launch, folder)
    assert status == 0, text[-4000:]
    assert "pipeline complete!" in text
    assert "env/train/action_is_valid" in text
