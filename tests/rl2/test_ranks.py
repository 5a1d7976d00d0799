"""Real RL2 with two ranks and two engines on the CPU; about three minutes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rl2_runs import split, train, with_env_file
from safetensors.torch import load_file

from gem_rl2.launch import adapter
from gem_train.experiment.hardware import Hardware, LearnerPart
from gem_train.launch import Launch
from gem_train.record import RunRecord

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

UNEVEN = """
from gem import register
from gem.core import Env
from gem_rl2.env import generate


class Uneven(Env):
    def __init__(self, prompt=None, format_error_ends=None):
        super().__init__()

    def reset(self, seed=None, **options):
        self.seed, self.turn = seed, 0
        return f"task {seed}: " + "say more. " * (seed % 4), {}

    def step(self, action):
        if self.seed == 13:  # in the second iteration
            raise OSError("the sandbox is gone")
        self.turn += 1
        reward = (self.seed % 8) ** 2 / 8 + len(action) / 20
        return f"turn {self.turn}", reward, self.turn > self.seed % 8 // 3, False, {}

    def sample_random_action(self):
        return "x"


register("test:Uneven-v0", Uneven)
"""
TABLES: dict[str, Any] = {
    # Rows of other numbers and lengths, several an episode.
    "policy": {"context": "concat"},
    "sampling": {"top_k": 1},
    # For the penalty RL2 computes log-probabilities, which are compared with the engines'.
    "algorithm": {"kl_coef": 0.01},
    # Where a gradient is nearly 0, AdamW would make much of its rounding.
    "optimizer": {"lr": 3e-3, "eps": 1e-3, "grad_clip": 0.05},
    "training": {"tasks": 8, "group_size": 1, "max_failed_fraction": 0.2},
    "eval": [],
}


def trained(compiled: Callable[..., Launch], folder: Path, ranks: int, *keys: str) -> RunRecord:
    hardware = Hardware(device="cpu", gpus_per_node=ranks, learner=LearnerPart(checkpointing=False))
    launch = compiled(adapter, folder, hardware, **TABLES)
    tasks = launch.files["train.jsonl"].replace("game:GuessTheNumber-v0-easy", "test:Uneven-v0")
    launch = replace(launch, files={**launch.files, "train.jsonl": tasks})
    return train(with_env_file(launch, folder, UNEVEN, *keys), folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    [file] = folder.glob("model/**/*.safetensors")
    return load_file(file)


def test_two_ranks_make_the_updates_of_one(
    compiled: Callable[..., Launch], tmp_path: Path, keep: Callable[[str, str], None]
) -> None:
    """Both have a part of the weights and of the rows, and an engine."""
    folders = [tmp_path / "one", tmp_path / "two"]
    wanted, found = (
        split(trained(compiled, folder, ranks)) for ranks, folder in enumerate(folders, 1)
    )
    assert [m["failed_episodes"] for m in found] == [0, 1, 0]
    assert all(m["logprob_difference_max"] < 1e-5 for m in found)
    assert max(m["grad_norm"] for m in wanted) > 0.05  # clipped
    names = ("return_mean", "sampled_tokens", "loss", "entropy", "kl", "grad_norm")
    for a, b in zip(wanted, found, strict=True):
        assert [b[n] for n in names] == pytest.approx([a[n] for n in names], rel=1e-4, abs=1e-6)
    ours, theirs = map(weights, folders)
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=1e-5)
    keep("rl2", "two ranks")
