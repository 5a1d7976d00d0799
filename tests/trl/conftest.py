"""What the tests of gem-trl share: a trainer on a tiny model, and an engine that follows a script.

The real engine is exercised by test_real_runs.py and test_processes.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gem import Env, register
from gem.core import Step

os.environ["HF_HUB_OFFLINE"] = "1"

# Everything here needs the development environment.
if importlib.util.find_spec("trl") is None:
    collect_ignore_glob = ["test_*.py"]


MEETING: dict[int, threading.Barrier] = {}
"""Where environments wait for each other, by their number."""


class Scripted(Env):
    """Rewards 0.25 a turn; `end` ends it with reward 1, `crash` raises.

    With the parameter `doomed`, episodes of seeds below it crash whatever is said, or with `exits`
    call `sys.exit(0)`. With `together`, a step waits until so many environments step at the same
    time.
    """

    def __init__(self, doomed: int = 0, together: int = 1, exits: bool = False) -> None:
        super().__init__()
        self.doomed = doomed
        self.exits = exits
        self.together = together

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.fails = (seed or 0) < self.doomed
        return f"start {seed}", {}

    def step(self, action: str) -> Step:
        if self.together > 1:
            MEETING.setdefault(self.together, threading.Barrier(self.together)).wait(timeout=60)
        if self.fails and self.exits:
            sys.exit(0)
        if action == "crash" or self.fails:
            raise OSError("sandbox gone")
        done = action == "end"
        return f"you said {action}", 1.0 if done else 0.25, done, False, {"success": done}


register("test:Scripted-v0", Scripted)

Script = Callable[[int, int], str]
"""What is answered, by the turn and the seed of the episode."""


class Engine:
    """Stands in for `_generate_single_turn`: answers as the script says, remembers the prompts."""

    def __init__(self, tokenizer: Any, script: Script) -> None:
        self.tokenizer = tokenizer
        self.script = script
        self.rounds: list[list[list[int]]] = []

    def __call__(
        self,
        prompt_ids: list[list[int]],
        *,
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
    ) -> tuple[list[list[int]], None]:
        self.rounds.append(prompt_ids)
        prompts = [self.tokenizer.decode(ids) for ids in prompt_ids]
        seeds = [int(re.findall(r"start (\d+)", prompt)[0]) for prompt in prompts]
        turns = [prompt.count("assistant") - 1 for prompt in prompts]
        texts = [self.script(turn, seed) for turn, seed in zip(turns, seeds, strict=True)]
        return [[*self.tokenizer.encode(t), self.tokenizer.eos_token_id] for t in texts], None


@pytest.fixture
def make_args(tmp_path: Path) -> Callable[..., Any]:
    """Make a GRPOConfig for batches of 8 episodes: `make_args(**fields)`."""
    from trl import GRPOConfig

    def make(**fields: Any) -> Any:
        values = {
            "output_dir": str(tmp_path / "checkpoints"),
            "per_device_train_batch_size": 8,
            "num_generations": 2,
            "num_generations_eval": 1,
            "max_steps": 2,
            "max_completion_length": 16,
            "learning_rate": 1e-3,
            "bf16": False,
            "use_cpu": True,
            "gradient_checkpointing": False,
            "shuffle_dataset": False,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
        }
        return GRPOConfig(**{**values, **fields})

    return make


@pytest.fixture
def make_trainer(model: Path, make_args: Callable[..., Any]) -> Callable[..., Any]:
    """Make a trainer: `make_trainer(uri=..., evals=[...], script=..., args={...}, **settings)`.

    Without a script the model is sampled from. `columns` are added to the dataset.
    """

    def make(
        uri: str = "gem:test:Scripted-v0?n=64",
        evals: Sequence[str] = (),
        script: Script | None = None,
        args: dict[str, Any] | None = None,
        reward_funcs: Any = None,
        columns: dict[str, list[Any]] | None = None,
        **settings: Any,
    ) -> Any:
        from gem_trl import GemGRPOTrainer, GemSettings, eval_datasets, task_dataset

        given = {"prompt_tokens": 128, "response_tokens": 512, "turns": 3} | settings
        dataset = task_dataset(uri)
        for name, values in (columns or {}).items():
            dataset = dataset.add_column(name, values)
        trainer = GemGRPOTrainer(
            model=str(model),
            args=make_args(**(args or {})),
            train_dataset=dataset,
            reward_funcs=reward_funcs,
            eval_dataset=eval_datasets(*evals) or None,
            gem=GemSettings(**given),
        )
        if script is not None:
            trainer._generate_single_turn = Engine(trainer.processing_class, script)
        return trainer

    return make
