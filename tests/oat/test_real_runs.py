"""A few iterations of real oat on CPU for each way of using it; less than a minute each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gem_train.processes import alive
from gem_train.record import RunRecord, read_run

pytestmark = pytest.mark.slow

TIMEOUT_S = 600
CPU = {
    "GEM_CPU": "1",
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
}
TASKS = "gem:game:GuessTheNumber-v0-easy?seed=3&prompt=short&format_error_ends=false"
FLAGS: dict[str, Any] = {
    "gem_tasks": TASKS,
    "gem_seed": 0,
    "rollout_batch_size": 8,
    "train_batch_size": 8,
    "max_train": 16,
    "prompt_max_length": 300,
    "max_model_len": 1200,
    "generate_max_length": 8,
    "eval_generate_max_length": 8,
    "learning_rate": 1e-3,
    "lr_scheduler": "constant",
    "lr_warmup_ratio": 0,
    "gamma": 0.9,
    "gpus": 1,
    "eval_steps": -1,
    "shm_size_mb": 100,
}
SWITCHES = ("--collocate", "--no-bf16", "--no-flash_attn", "--no-use_fused_lm_head")


class Training:
    """A run of `python -m gem_oat`, and its log."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder

    @property
    def log(self) -> str:
        return self.folder.joinpath("log").read_text(encoding="utf-8", errors="replace")

    def last_line(self) -> str:
        """What the launcher said last, when its nodes have had their say."""
        return self.log.strip().splitlines()[-1]

    @property
    def record(self) -> RunRecord:
        return read_run(self.folder / "record")

    def ended(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def until(self, seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not seen():
            assert time.monotonic() < deadline, self.log[-3000:]
            assert self.process.poll() is None, self.log[-3000:]
            time.sleep(0.1)


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Start a run: `start(name, environment, **flags)`; its processes are gone afterwards."""
    from gem_cpu.openrlhf_plugin import startup_folder

    with contextlib.ExitStack() as stack:

        def begin(name: str, environment: dict[str, str] | None = None, **flags: Any) -> Training:
            folder = tmp_path / name
            folder.mkdir()
            own = {
                "pretrain": model,
                "gem_record_dir": folder / "record",
                "save_path": folder / "oat",
            }
            given = {**FLAGS, **own, **flags}
            argv = [f"--{name}={value}" for name, value in given.items()]
            path = [str(startup_folder()), (environment or {}).get("PYTHONPATH", "")]
            env = {**os.environ, **CPU, **(environment or {})}
            env["PYTHONPATH"] = os.pathsep.join(filter(None, path))
            file = stack.enter_context(folder.joinpath("log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "gem_oat", *argv, *SWITCHES],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=env,
                start_new_session=True,
            )
            stack.callback(_end, process)
            return Training(process, folder)

        yield begin


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def updates(training: Training) -> list[dict[str, float]]:
    """Metrics that depend on the updates, an entry an iteration."""
    names = ("loss", "grad_norm", "entropy", "return_mean", "sampled_tokens", "lr")
    train = [m for m in training.record.metrics if m["split"] == "train"]
    return [{name: m[name] for name in names} for m in train]


RANKS = {
    "gem_tasks": "gem:test:OatUneven?seed=0",
    "max_train": 24,
    # Rows of another number and length on every rank, in several passes.
    "gem_context": "concat",
    "gem_forward_tokens": 300,
    "learning_rate": 3e-3,
    "gem_max_failed_fraction": 0.2,
}
UNEVEN = """
import gem
from gem.core import Env
class Uneven(Env):
    def reset(self, seed=None, **options):
        self.seed, self.turn = seed, 0
        return f"task {seed}: " + "say more. " * (seed % 4), {}
    def step(self, action):
        if self.seed == 13:  # the second rank's, in the second iteration
            raise OSError("the sandbox is gone")
        self.turn += 1
        reward = (self.seed % 8) ** 2 / 8 + len(action) / 20
        return f"turn {self.turn}", reward, self.turn > self.seed % 8 // 3, False, {}
    def sample_random_action(self):
        return "x"
gem.register("test:OatUneven", Uneven)
"""
LOCAL = """
from gem_train.imports import after_import
def local(module):
    give = module.give_advantages
    def alone(*args, **kwargs):
        return give(*args, **{**kwargs, "gather": lambda mine: [mine], "rank": 0})
    module.give_advantages = alone
after_import("gem_oat.advantage", local)
"""


def with_code(folder: Path, code: str, devices: int = 1) -> dict[str, str]:
    """An environment in which every Python process runs some code first."""
    folder.mkdir()
    folder.joinpath("sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(folder), "GEM_CPU_DEVICES": str(devices)}


def test_two_ranks_make_the_updates_of_one(
    start: Callable[..., Training], tmp_path: Path, keep: Callable[[str, str], None]
) -> None:
    """Batch statistics and denominators are global; where they are not, it is noticed."""
    one = start("one", with_code(tmp_path / "code1", UNEVEN), **RANKS)
    assert one.ended() == 0, one.log[-3000:]
    two = start("two", with_code(tmp_path / "code2", UNEVEN, 2), gpus=2, **RANKS)
    assert two.ended() == 0, two.log[-3000:]
    wanted, found = updates(one), updates(two)
    assert len(wanted) == len(found) == 3
    assert wanted[0]["grad_norm"] > 0
    for a, b in zip(wanted, found, strict=True):
        assert b == pytest.approx(a, rel=1e-3, abs=1e-6)
    failed = [[m["failed_episodes"] for m in run.record.metrics] for run in (one, two)]
    assert failed == [[0.0, 1.0, 0.0]] * 2
    # Both ranks' episodes are in the record, in the order of one rank.
    seeds = [[e.trajectory.task.seed for e in run.record.episodes()] for run in (one, two)]
    assert seeds[0] == seeds[1]

    broken = start(
        "broken",
        with_code(tmp_path / "code3", UNEVEN + LOCAL, 2),
        gpus=2,
        **(RANKS | {"max_train": 8}),
    )
    assert broken.ended() == 0, broken.log[-3000:]
    different = updates(broken)[0]
    assert different["return_mean"] == wanted[0]["return_mean"]
    assert different["grad_norm"] != pytest.approx(wanted[0]["grad_norm"], rel=1e-2)
    keep("oat", "two ranks")


def test_a_critic_a_penalty_and_evaluations(start: Callable[..., Training]) -> None:
    training = start(
        "gae",
        gem_advantage="gae",
        critic_type="ppo",
        critic_learning_rate=3e-3,
        beta=0.01,
        lam=0.9,
        num_ppo_epochs=2,
        train_batch_size=8,
        num_samples=2,
        max_train=32,
        eval_steps=3,
        gem_eval=f"{TASKS}&n=5#name=warm {TASKS}&n=4#name=greedy&temperature=0",
    )
    assert training.ended() == 0, training.log[-3000:]
    metrics = training.record.metrics
    train = [m for m in metrics if m["split"] == "train"]
    assert [m["iteration"] for m in train] == [0, 1, 2, 3]
    assert train[0]["value_loss"] > train[-1]["value_loss"] > 0
    assert train[-1]["kl"] > 0
    assert max(m["logprob_difference_max"] for m in train) < 1e-4
    assert [m["episodes"] for m in train] == [16.0] * 4
    for name, episodes in (("warm", 5.0), ("greedy", 4.0)):
        evals = [m for m in metrics if m["split"] == f"eval:{name}"]
        assert [m["iteration"] for m in evals] == [0, 3, 4]
        assert {m["episodes"] for m in evals} == {episodes}


CRASHING = """
import os, gem
from gem.core import Env
class Crashing(Env):
    def reset(self, seed=None, **options):
        return "begin", {}
    def step(self, action):
        raise OSError("the sandbox is gone")
    def sample_random_action(self):
        return "x"
gem.register("test:OatCrashing", Crashing)
"""


def test_environments_that_crash_stop_the_run_with_the_cause(
    start: Callable[..., Training], tmp_path: Path
) -> None:
    environment = with_code(tmp_path / "code", CRASHING)
    training = start("crash", environment, gem_tasks="gem:test:OatCrashing?seed=0")
    assert training.ended() == 1
    last = training.last_line()
    assert "8 of 8 episodes of this batch failed" in last
    assert "the sandbox is gone" in last
    assert "without a word" not in last
    assert training.record.metrics == []


def called(process: psutil.Process, *names: str) -> bool:
    """Whether one of these is part of its name; a process that has ended has none."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(name in process.name() for name in names)
    return False


@pytest.mark.parametrize("node", ["actor_0_0", "learner_0_0"])
def test_a_killed_process_ends_the_run_and_all_of_its_processes(
    node: str, start: Callable[..., Training]
) -> None:
    training = start("killed", max_train=80_000)
    first = training.folder / "record" / "metrics.jsonl"
    training.until(lambda: first.exists() and first.read_text().count("train") >= 1)
    below = psutil.Process(training.process.pid).children(recursive=True)
    [shell] = [p for p in below if called(p, "decorate_output") and node in p.cmdline()[3]]
    [victim] = [p for p in shell.children() if called(p, "python", "process_entry")]
    victim.kill()
    assert training.ended() == 1
    assert f"{node}/0 ended" in training.last_line()
    assert not [p for p in below if alive(p)]


ENGINE_GONE = """
from gem_train.imports import after_import
def install(module):
    call, received = module.LLM.collective_rpc, []
    def collective_rpc(self, method, *args, **kwargs):
        received.extend(["weight"] * (method == "update_weight"))
        if len(received) == 40:
            raise RuntimeError("the engine is dead")
        return call(self, method, *args, **kwargs)
    module.LLM.collective_rpc = collective_rpc
after_import("vllm", install)
"""


def test_an_engine_that_cannot_receive_weights_ends_the_run(
    start: Callable[..., Training], tmp_path: Path
) -> None:
    training = start("gone", with_code(tmp_path / "code", ENGINE_GONE))
    assert training.ended() == 1
    assert training.last_line() == "actor 0: RuntimeError: the engine is dead"


def test_a_model_that_does_not_exist_is_named(start: Callable[..., Training]) -> None:
    training = start("missing", pretrain="/no/such/model")
    assert training.ended() == 1
    assert "/no/such/model" in training.last_line()
