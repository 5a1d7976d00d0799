"""Several processes over Gloo train as one does, also where they sample together; so does vLLM.

vLLM and DeepSpeed are in the environment of OpenRLHF.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomllib

from gem_bench.adapters import compile_launch
from gem_bench.audit import audit, judge
from gem_train.experiment.hardware import CPU as ON_CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.record import EpisodeRecord, read_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SERVED, SHARDED, REWARDED = (
    str(Path(__file__).with_name(f"{name}.py")) for name in ("served", "sharded", "rewarded")
)
TRAIN = ("-m", "gem_trl.train")
OPENRLHF = str(ROOT / ".venvs" / "openrlhf" / "bin" / "python")
STARTUP = str(ROOT / "packages" / "gem-cpu" / "src" / "gem_cpu" / "startup")
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    """Greedy games of the tiny model, of one to four turns; 30 episodes divide by 2 and 3."""
    from gem_cpu import tiny_model

    recipe = ROOT / "recipes" / "guess-easy-greedy.toml"
    data = tomllib.loads(recipe.read_text(encoding="utf-8"))
    data["policy"]["model"] = str(tiny_model.ensure())
    data["training"] |= {"tasks": 30, "iterations": 3}
    evaluation = {"name": "odd", "id": data["env"]["id"], "params": {}, "episodes": 5, "every": 2}
    data["eval"] = [{**evaluation, "params": data["env"]["params"], "temperature": 0.0}]
    return data


def run(
    folder: Path,
    spec: dict[str, Any],
    processes: int,
    command: Sequence[str] = TRAIN,
    given: Sequence[str] = ("use_cpu=true",),
    python: str = sys.executable,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launcher = ["-m", "torch.distributed.run", "--master_addr", "127.0.0.1", "--master_port", port]
    several = [*launcher, "--nproc_per_node", str(processes)] if processes > 1 else []
    options = ["--record", str(folder), "gradient_checkpointing=false"]
    return subprocess.run(
        [python, *several, *command, str(path), *options, "save_strategy=no", *given],
        env={
            **os.environ,
            "GEM_RECORD_ROWS": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def alone(spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    done = run(folder, spec, 1)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def shown(episodes: Sequence[EpisodeRecord]) -> list[Any]:
    """What an episode is and what is trained on, less log-probabilities."""
    return [
        (e.trajectory.task, [t.response_ids for t in e.trajectory.turns], e.advantages, e.rows)
        for e in episodes
    ]


def check_equal(alone: Path, other: Path) -> None:
    mine, theirs = read_run(alone), read_run(other)
    assert shown(list(theirs.episodes())) == shown(list(mine.episodes()))
    assert [(m["iteration"], m["split"]) for m in theirs.metrics] == [
        *((0, "eval:odd"), (0, "train"), (1, "train"), (2, "eval:odd"), (2, "train")),
        (3, "eval:odd"),
    ]
    for a, b in zip(mine.metrics, theirs.metrics, strict=True):
        names = ("loss", "grad_norm", "entropy") if a["split"] == "train" else ()
        for name in (*names, "return_mean", "episodes", "failed_episodes"):
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-6)


def test_two_processes_train_as_one_does(
    spec: dict[str, Any], alone: Path, tmp_path: Path, keep: Callable[[str, str], None]
) -> None:
    done = run(tmp_path / "run", spec, 2)
    assert done.returncode == 0, done.stderr[-4000:]
    check_equal(alone, tmp_path / "run")
    keep("trl", "two ranks")


def test_each_process_scores_its_episodes_and_the_statistics_are_of_all(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    for processes in (1, 2):
        done = run(tmp_path / str(processes), spec, processes, [REWARDED])
        assert done.returncode == 0, done.stderr[-4000:]
    check_equal(tmp_path / "1", tmp_path / "2")
    one, two = (read_run(tmp_path / str(processes)) for processes in (1, 2))
    for a, b in zip(one.metrics, two.metrics, strict=True):
        if a["split"] == "train":
            assert a["rewards/brevity/mean"] == b["rewards/brevity/mean"] < 0
    assert all(e.trajectory.turns[-1].info["added/brevity"] < 0 for e in two.episodes())


@pytest.mark.nightly
def test_two_processes_share_the_groups_that_dynamic_sampling_leaves(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    """A process may train on episodes that the other one played."""
    sampled = json.loads(json.dumps(spec))
    sampled["algorithm"] |= {"advantage": "grpo"}
    sampled["optimizer"] |= {"lr": 1e-4}
    sampled["sampling"] = {}
    sampled["training"] |= {"tasks": 6, "group_size": 4, "extra_batches": 2}
    done = run(tmp_path / "run", sampled, 2)
    assert done.returncode == 0, done.stderr[-4000:]
    found = read_run(tmp_path / "run")
    metrics = [line for line in found.metrics if line["split"] == "train"]
    assert sum(line["equal_groups"] for line in metrics) > 0
    assert not judge(list(audit(found)))


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_with_one_server_train_as_one_process_does(
    processes: int, spec: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    """Their episodes end after different numbers of turns; rounds are filled up."""
    done = run(tmp_path / "run", spec, processes, [SERVED])
    assert done.returncode == 0, done.stderr[-4000:]
    check_equal(alone, tmp_path / "run")


# Environment variables with which `accelerate launch` tells a process what its configuration says.
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
FSDP1 = {**FSDP, "FSDP_VERSION": "1", "FSDP_USE_ORIG_PARAMS": "true"}
FSDP2 = {**FSDP, "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}
DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"}
CPU = {"GEM_CPU": "1", "PYTHONPATH": STARTUP, "TORCHDYNAMO_DISABLE": "1"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("held", "python", "environment"),
    [
        ("FullyShardedDataParallel", sys.executable, FSDP1),
        ("FSDPQwen3ForCausalLM", sys.executable, FSDP2),
        *(
            (
                f"DeepSpeedEngine{stage}",
                OPENRLHF,
                {**DEEPSPEED, **CPU, "ACCELERATE_DEEPSPEED_ZERO_STAGE": stage},
            )
            for stage in ("2", "3")
        ),
    ],
    ids=["FSDP1", "FSDP2", "ZeRO-2", "ZeRO-3"],
)
def test_processes_that_share_the_weights_train_as_one_process_does(
    held: str,
    python: str,
    environment: dict[str, str],
    spec: dict[str, Any],
    alone: Path,
    tmp_path: Path,
) -> None:
    """Their episodes end after different numbers of turns, and every forward pass needs all."""
    device = {"ACCELERATE_TORCH_DEVICE": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    given = ["use_cpu=false"]
    done = run(tmp_path / "run", spec, 2, [SHARDED], given, python, **device, **environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"held by {held} in step" in done.stderr
    check_equal(alone, tmp_path / "run")


@pytest.mark.nightly
def test_so_do_two_that_train_an_adapter(spec: dict[str, Any], tmp_path: Path) -> None:
    data = {**spec, "policy": {**spec["policy"], "lora_rank": 4}}
    alone, given = tmp_path / "alone", ["use_cpu=false"]
    assert run(alone, data, 1).returncode == 0
    device = {"ACCELERATE_TORCH_DEVICE": "cpu"}
    done = run(tmp_path / "run", data, 2, [SHARDED], given, **device, **FSDP2)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "held by FSDPPeftModel in step" in done.stderr
    check_equal(alone, tmp_path / "run")


@pytest.mark.nightly
def test_two_that_share_the_weights_go_on_from_their_checkpoint(
    spec: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    whole, again = tmp_path / "whole", tmp_path / "again"
    given = ["use_cpu=false", "save_strategy=steps", "save_steps=1", "save_total_limit=3"]
    two = partial(run, spec=spec, processes=2, command=[SHARDED], given=given)
    environment = {"ACCELERATE_TORCH_DEVICE": "cpu", **FSDP2}
    assert two(whole, **environment).returncode == 0
    shutil.copytree(whole, again)
    # As if the run had been killed in its third iteration.
    shutil.rmtree(again / "checkpoints" / "checkpoint-3")
    done = two(again, **environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (again / "metrics.replaced.jsonl").stat().st_size > 0
    check_equal(alone, again)


def test_vllm_in_the_trainers_process_trains_as_transformers_do(
    spec: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    experiment, python = RunSpec.from_mapping(spec), Path(OPENRLHF)
    launch = compile_launch(
        "trl", experiment, run_dir=tmp_path, hardware=ON_CPU, python=python
    ).launch
    assert "use_vllm=true" in launch.argv
    done = run(tmp_path / "run", spec, 1, TRAIN, launch.argv[6:], OPENRLHF, **launch.env)
    assert done.returncode == 0, done.stderr[-4000:]
    check_equal(alone, tmp_path / "run")


def test_a_server_out_of_step_is_noticed(spec: dict[str, Any], tmp_path: Path) -> None:
    """TRL cuts the answers of a server by position: with other counts they are others'."""
    done = run(tmp_path / "run", spec, 2, [SERVED, "--apart"])
    assert done.returncode != 0
    assert "answered" in done.stderr


def test_too_many_failures_on_one_process_end_all(spec: dict[str, Any], tmp_path: Path) -> None:
    data = {**spec, "policy": {**spec["policy"], "prompt_tokens": 5}, "eval": []}
    done = run(tmp_path / "run", data, 2)
    assert done.returncode != 0
    assert done.stderr.count("30 of 30 episodes of this batch failed") == 2
