"""Several processes over Gloo train as one does, also where they sample together; so does vLLM."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tomllib

from gem.training.record import EpisodeRecord, read_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SERVED, COLOCATED = (str(Path(__file__).with_name(f"{n}.py")) for n in ("served", "colocated"))
TRAIN = ("-m", "gem_trl.train")
TIMEOUT_S = 600
VLLM = {
    **{"GEM_CPU": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"},
    **{"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"},
}


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
    given: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launcher = ["-m", "torch.distributed.run", "--master_addr", "127.0.0.1", "--master_port", port]
    several = [*launcher, "--nproc_per_node", str(processes)] if processes > 1 else []
    options = ["--record", str(folder), "use_cpu=true", "gradient_checkpointing=false"]
    return subprocess.run(
        [sys.executable, *several, *command, str(path), *options, "save_strategy=no", *given],
        env={
            **os.environ,
            "GEM_RECORD_ROWS": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
            **VLLM,
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


def test_two_processes_train_as_one_does(spec: dict[str, Any], alone: Path, tmp_path: Path) -> None:
    done = run(tmp_path / "run", spec, 2)
    assert done.returncode == 0, done.stderr[-4000:]
    check_equal(alone, tmp_path / "run")


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_with_one_server_train_as_one_process_does(
    processes: int, spec: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    """Their episodes end after different numbers of turns; rounds are filled up."""
    done = run(tmp_path / "run", spec, processes, [SERVED])
    assert done.returncode == 0, done.stderr[-4000:]
    check_equal(alone, tmp_path / "run")


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="no environment has both TRL and vLLM"
)
def test_vllm_in_the_trainers_process_trains_as_transformers_do(
    spec: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    given = ["use_vllm=true", "vllm_gpu_memory_utilization=0.1", "vllm_max_model_length=168"]
    done = run(tmp_path / "run", spec, 1, [COLOCATED], given)
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
