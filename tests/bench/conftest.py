"""What the tests of gem-bench share: a trainer that only pretends to train, small experiments.

The trainer, installed like a real one, stands for the boundary to real launchers, which the
end-to-end tests start for real.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomllib

from gem.tasks import Task
from gem.trajectory import Trajectory, Turn
from gem_train.experiment.metrics import episode_metrics
from gem_train.experiment.runspec import RunSpec
from gem_train.record import Recorder

# Set before torch is imported: its threads would only get in the way of the other tests' ones.
os.environ.setdefault("OMP_NUM_THREADS", "1")

SPEC = """\
name = "{name}"

[env]
id = "game:GuessTheNumber-v0-easy"

[policy]
model = "some/model"
prompt_tokens = 64
response_tokens = 128
turn_tokens = 16

[algorithm]
advantage = "rebn"
gamma = 0.9

[optimizer]
lr = 1e-3

[training]
iterations = {iterations}
tasks = 2
"""

# The name of the experiment decides what the launcher does.
FAKE_TRAINER = """
import os, pathlib, signal, subprocess, sys, time

from gem_train.launch import Adapter
from gem_train.pairs import COMPUTED, pairs
from gem_train.table import Copied, Departs, Elsewhere, Table, keys

TABLE = Table("fake", {
    **dict.fromkeys(keys(), Elsewhere("fake")),
    "algorithm.gamma": Copied("fake.gamma"),
    "optimizer.lr": (Copied("lr"), Departs(lambda run, value: True, "warm-up of 0 steps")),
    "seed": (Copied("x"), Departs(lambda run, value: True, "fake has no seed", "unmatched")),
})

def compile_spec(run):
    from gem.errors import ConfigurationError, UnsupportedVersionError
    from gem_train.launch import Launch

    spec, run_dir, hardware = run.spec, run.run_dir, run.hardware
    if spec.name == "refused":
        raise ConfigurationError("algorithm.gamma: fake cannot discount")
    if spec.name == "old":
        raise UnsupportedVersionError("fake 0.3 is installed, gem-fake supports >=1")
    every = str(hardware.checkpoint_every or 0)
    iterations = str(spec.training.iterations)
    return Launch(
        argv=["missing-command"] if spec.name == "missing" else
             [sys.executable, __file__, spec.name, str(run_dir), iterations, every],
        env={"FAKE": "a b", "PYTHONUNBUFFERED": "1"},
        unset=["CUDA_VISIBLE_DEVICES"],
        files={"conf/fake.yaml": "lr: 1\\n"},
        state=["left", "left.txt"],
    )

nothing = (pairs(COMPUTED, COMPUTED, "runs", "it computes nothing"),)
adapter = Adapter("fake", ">=1", "fake", TABLE, compile_spec, pairs=nothing)

def main(mode, run_dir, iterations, every):
    from gem_train.record import Recorder

    print("fake trainer starts", os.environ["FAKE"], "CUDA_VISIBLE_DEVICES" in os.environ)
    run_dir = pathlib.Path(run_dir)
    if mode == "orphans":
        # A child in a session of its own, whose parent ends at once: an orphan daemon.
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        code = ("import pathlib, subprocess\\n"
                f"p = subprocess.Popen({sleep!r}, start_new_session=True)\\n"
                f"pathlib.Path({str(run_dir)!r}, 'orphan.pid').write_text(str(p.pid))")
        subprocess.run([sys.executable, "-c", code], start_new_session=True, check=True)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    recorder = Recorder(run_dir)
    saved = run_dir / "left.txt"
    begin = int(saved.read_text()) if saved.exists() else 0
    recorder.rewind(begin)
    LOST = {"failed_episodes": 3, "failed_sandbox": 2, "failed_environment": 1}
    for i in range(begin, int(iterations)):
        recorder.metrics(i, {"success_rate": i / 10, "return_mean": 0.5, "turns_mean": 3.0,
                             "sampled_tokens": 100.0, "episodes": 2.0, "rollout_s": time.time(),
                             **({"grad_norm": 0.0, "return_std": 0.0} if mode == "idle" else {}),
                             **(LOST if mode == "lossy" else {})})
        if int(every) and (i + 1) % int(every) == 0:
            saved.write_text(str(i + 1))
        if begin:
            continue
        if i == 2 and mode == "crash":
            raise RuntimeError("worker 3 died: tensor shapes differ")
        if i == 2 and mode == "disk-full":
            (run_dir / "run.partial").symlink_to("/dev/full")
            raise OSError(28, "No space left on device", "metrics.jsonl")
        if i == 2 and mode == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if i == 2 and mode == "short":
            return
        if i == 2 and mode == "damaged":
            with (run_dir / "metrics.jsonl").open("a") as file:
                file.write('{"iteration": 3}\\n')
        if i == 2 and mode in ("hang", "stubborn"):
            (run_dir / "hanging").write_text(str(os.getpid()))
            time.sleep(600)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.fixture
def fake_site(tmp_path: Path) -> Path:
    """A folder for `sys.path` in which the distribution `gem-fake` is installed."""
    site = tmp_path / "site"
    info = site / "gem_fake-1.2.dist-info"
    info.mkdir(parents=True)
    (site / "fake_trainer.py").write_text(FAKE_TRAINER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gem-fake\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[gem.adapters]\nfake = fake_trainer:adapter\n")
    return site


@pytest.fixture
def fake_installed(fake_site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake trainer, installed in this process."""
    monkeypatch.syspath_prepend(str(fake_site))
    yield fake_site
    sys.modules.pop("fake_trainer", None)


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a RunSpec of the given name and returns its path."""

    def write(name: str = "fine", iterations: int = 6) -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(SPEC.format(name=name, iterations=iterations))
        return path

    return write


@pytest.fixture
def gem_bench(fake_site: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `gem-bench` as a user would, in an empty folder, with the fake trainer installed."""

    def start(*args: object, **options: Any) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(fake_site), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [sys.executable, "-m", "gem_bench", *map(str, args)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    return start


@pytest.fixture
def small_spec() -> RunSpec:
    """A RunSpec with defaults wherever there are any."""
    return RunSpec.from_mapping(tomllib.loads(SPEC.format(name="small", iterations=6)))


@pytest.fixture
def byte_model(tmp_path: Path) -> Path:
    """A folder with the tokenizer of a model that knows bytes and two special tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable}
    vocabulary |= {chr(256 + i): byte for i, byte in enumerate(other)}
    folder = tmp_path / "byte-model"
    folder.mkdir()
    special = [{"id": 256, "content": "<|im_start|>"}, {"id": 257, "content": "<|im_end|>"}]
    tokenizer = {
        "added_tokens": special,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture
def make_run(tmp_path: Path, byte_model: Path, small_spec: RunSpec) -> Callable[..., Path]:
    """Writes the record of a run that gets better, as a trainer would."""

    def write(
        trainer: str = "reference",
        *,
        seed: int = 0,
        iterations: int = 12,
        skill: float = 0.05,
        episodes: int = 8,
        advantage: str = "rebn",
        env: str | None = None,
        secret: str = "7",
        model: Path = byte_model,
        names: Sequence[str] = ("",),
    ) -> Path:
        folder = tmp_path / "runs" / f"{trainer}-{env or ''}{advantage}-{seed}"
        algorithm = dataclasses.replace(small_spec.algorithm, advantage=advantage)
        spec = dataclasses.replace(small_spec, seed=seed, algorithm=algorithm)
        if env is not None:
            spec = dataclasses.replace(spec, env=(dataclasses.replace(spec.env[0], id=env),))
        recorder = Recorder(folder)
        recorder.start(
            {
                "trainer": trainer,
                "status": "finished",
                "spec": spec.to_mapping(),
                "model": str(model),
                "parity": [
                    {"name": "algorithm.gamma", "status": "matched", "how": "gamma"},
                    {"name": "optimizer.eps", "status": "unmatched", "how": f"{trainer} fixes it"},
                ],
                "seconds": {"command": 60.0, "start_up": 5.0},
            }
        )
        rng = random.Random(f"{trainer} {seed} {advantage}")
        for iteration in range(iterations):
            chance = min(0.3 + skill * iteration, 1.0)
            batch = [_episode(i, rng, chance, secret) for i in range(episodes)]
            for i, trajectory in enumerate(batch):
                name = names[i % len(names)]
                trajectory.task = dataclasses.replace(trajectory.task, name=name)
            advantages = [[t.total_reward - 0.5] * len(t.turns) for t in batch]
            recorder.metrics(iteration, {**episode_metrics(batch), "loss": 0.1, "grad_norm": 1.0})
            recorder.episodes(iteration, batch, advantages)
        return folder

    return write


def _episode(index: int, rng: random.Random, chance: float, secret: str) -> Trajectory:
    turns = []
    for k in range(rng.randint(1, 4)):
        action = rng.choice("123456789")
        said = "Guess a number from 1 to 10." if k == 0 else "higher ↑"
        bridge = [] if k == 0 else [10]
        context = [*bridge, 256, *f"user\n{said}".encode(), 257, 10, 256, *b"assistant\n"]
        turns.append(
            Turn(
                observation=said,
                context_ids=context,
                fresh=k == 0,
                response_ids=[*action.encode(), 257],
                logprobs=[-0.7, -0.01],
                text=action,
                reward=0.0,
                terminated=False,
                truncated=False,
                stop_reason="stop",
                info={"success": False, "format_error": False},
            )
        )
    won = rng.random() < chance
    turns[-1] = dataclasses.replace(
        turns[-1], reward=float(won), terminated=True, info={"success": won, "format_error": False}
    )
    return Trajectory(
        task=Task("game:GuessTheNumber-v0-easy", index // 4, {"secret": secret}),
        turns=turns,
        group=index // 4,
        end="terminated",
        final_observation="You won." if won else "You lost.",
    )


@pytest.fixture(scope="session")
def model_folder() -> str:
    """The tiny model, made once per machine."""
    tiny_model = pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")
    return str(tiny_model.ensure())


@pytest.fixture
def make_spec(model_folder: str) -> Callable[..., RunSpec]:
    """A small experiment; keywords are `table__key=value`."""

    def make(**changes: Any) -> RunSpec:
        data: dict[str, Any] = {
            "name": "test",
            "env": {
                "id": "game:GuessTheNumber-v0-easy",
                "params": {"hint": "range", "prompt": "short"},
            },
            "policy": {
                "model": model_folder,
                "prompt_tokens": 64,
                "response_tokens": 160,
                "turn_tokens": 8,
            },
            "algorithm": {"advantage": "rebn", "gamma": 0.9},
            "optimizer": {"lr": 1e-3},
            "training": {"iterations": 2, "tasks": 4, "group_size": 2},
        }
        for name, value in changes.items():
            table, _, key = name.partition("__")
            if key:
                data.setdefault(table, {})[key] = value
            else:
                data[table] = value
        return RunSpec.from_mapping(data)

    return make


@pytest.fixture
def learner_of() -> Callable[..., Any]:
    """Make the reference's learner for a RunSpec, on the CPU."""
    torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
    from gem_bench import reference

    def make(spec: RunSpec, forward_tokens: int = 65_536, **options: bool) -> Any:
        return reference.Learner(spec, torch.device("cpu"), forward_tokens, **options)

    return make
