"""What the adapter's tests share: a configuration of the trainer, and a small experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gem_cpu.tiny_model import ensure
from gem_train.experiment.runspec import RunSpec


@pytest.fixture(scope="session")
def model() -> str:
    """Folder of a model, whose tokenizer has a chat format."""
    return str(ensure())


@pytest.fixture
def config(model: str, tmp_path: Path) -> dict[str, Any]:
    """The trainer's configuration."""
    gem = {"max_failed_fraction": 0.5, "record_dir": str(tmp_path / "record")}
    return {"model": model, "gem": gem}


@pytest.fixture
def spec(model: str) -> RunSpec:
    """A small experiment with an evaluation."""
    game = {"id": "game:GuessTheNumber-v0-easy", "params": {"hint": "range", "prompt": "short"}}
    tokens = {"prompt_tokens": 40, "response_tokens": 64, "turn_tokens": 4}
    return RunSpec.from_mapping(
        {
            "name": "small",
            "env": game,
            "policy": {"model": model, **tokens},
            "algorithm": {"advantage": "reinforce", "gamma": 0.9},
            "optimizer": {"lr": 0.01},
            "training": {"iterations": 3, "tasks": 4, "group_size": 2},
            "eval": [{"name": "same", **game, "episodes": 4, "every": 2}],
        }
    )
