"""The keys of `python -m gem_trl.train key=value ...`, and the GRPOConfig that they make."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem.errors import ConfigurationError
from gem.tables import assignments, filled, json_or_text, setting
from gem.tasks import TaskSet
from gem.training.tasksets import Source, parse_sources
from gem_trl.settings import GemSettings

if TYPE_CHECKING:
    from trl import GRPOConfig

PREFIX = "trl."
"""Of the keys that are GRPOConfig's."""
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints, in the record's."""
MOST_EVALUATED = 64
"""Most episodes of an evaluation that a process plays at the same time."""


@dataclass(frozen=True, kw_only=True)
class Config(GemSettings):
    """A run: the settings of the trainer, what it trains on, and values for GRPOConfig."""

    model: str = setting("folder or hub name", check=filled)
    train: str = setting("task set, whose `n` is not looked at", check=TaskSet.parse)
    """`gem:<environment id>?seed=...&<parameter>=<value>`"""
    eval: str = setting("task sets to evaluate on, separated by spaces", "")
    """`gem:...?n=64#name=...&temperature=...`"""
    eval_every: int = setting("iterations between evaluations; also at both ends", 20, least=1)
    iterations: int = setting("batches to train on", 100, least=1)
    tasks: int = setting("different tasks in a batch", 16, least=1)
    """Iteration k plays the seeds `seed + k * tasks` and following."""
    group_size: int = setting("episodes of each task", 8, least=1)
    epochs: int = setting("passes over a batch", 1, least=1)
    minibatches: int = setting("optimiser steps of a pass", 1, least=1)
    forward_rows: int = setting("most episodes of a process in a forward pass", 8, least=1)
    turn_tokens: int = setting("most tokens sampled in one turn", 512, least=1)
    save_every: int = setting("iterations between checkpoints; 0 saves none", 10, least=0)
    """Also at the end. A run that is started again goes on from the last one, if it has a
    `record_dir`."""
    trl: Mapping[str, Any] = setting("values for GRPOConfig", {})

    def check(self, prefix: str = "gem.") -> None:
        """Raise `ConfigurationError` if a value is wrong or values do not fit together."""
        super().check(prefix)
        if self.save_every and self.record_dir is None:
            raise ConfigurationError(
                "save_every: checkpoints are kept in record_dir; set it, or save_every=0"
            )
        self.sources()

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return Path(self.record_dir or ".") / CHECKPOINTS

    @property
    def train_uri(self) -> str:
        """The tasks of the whole run, `tasks` an iteration."""
        tasks = TaskSet.parse(self.train)
        return TaskSet(tasks.env_id, self.iterations * self.tasks, tasks.seed, tasks.params).uri

    def sources(self) -> list[Source]:
        """Return what is evaluated on.

        Raises:
            ConfigurationError: One is malformed, or two have the same name.
        """
        return parse_sources(self.eval.split(), "eval")


def read(arguments: Sequence[str]) -> Config:
    """Read `key=value` arguments, GRPOConfig's as `trl.key=value`; values are JSON or text.

    Raises:
        ConfigurationError: An argument is something else, or a value is wrong.
    """
    theirs: dict[str, Any] = {}
    ours = []
    for argument in arguments:
        key, _, text = argument.removeprefix(PREFIX).partition("=")
        if argument.startswith(PREFIX):
            theirs[key] = json_or_text(text)
        else:
            ours.append(argument)
    return Config.from_mapping({**assignments(Config, ours), "trl": theirs}, prefix="")


def trl_config(config: Config, processes: int) -> GRPOConfig:
    """Return the GRPOConfig of a run.

    Args:
        config: The run.
        processes: Number of processes that train.

    Raises:
        ConfigurationError: The episodes of a batch cannot be divided among processes and
            minibatches, or GRPOConfig does not accept a value.
    """
    from trl import GRPOConfig

    known = {field.name for field in fields(GRPOConfig)}
    decided = _decided(config, processes)
    for key in config.trl:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ConfigurationError(
                f"{PREFIX}{key}: GRPOConfig has no such field"
                + (f"; did you mean {PREFIX}{near[0]}?" if near else "")
            )
        if key in decided:
            raise ConfigurationError(
                f"{PREFIX}{key} follows from the other keys, such as tasks, group_size, "
                "minibatches, turn_tokens and forward_rows; leave it out"
            )
    try:
        return GRPOConfig(**{"report_to": [], **config.trl, **decided})
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"GRPOConfig: {error}") from error


def _decided(config: Config, processes: int) -> dict[str, Any]:
    """Return the fields of GRPOConfig that follow from the keys of a run."""
    episodes = config.tasks * config.group_size
    if episodes % (processes * config.minibatches) or episodes < 2:
        raise ConfigurationError(
            f"tasks * group_size: {episodes} episodes do not divide into {config.minibatches} "
            f"minibatches for {processes} processes; there must be at least 2"
        )
    step = episodes // (processes * config.minibatches)
    forward = next(n for n in range(min(step, config.forward_rows), 0, -1) if step % n == 0)
    steps = config.epochs * config.minibatches
    values: dict[str, Any] = {
        "output_dir": str(config.checkpoints),
        # TRL refuses groups of one. GemGRPOTrainer corrects it once the config has passed.
        "num_generations": config.group_size if config.group_size > 1 else episodes,
        "per_device_train_batch_size": forward,
        "gradient_accumulation_steps": step // forward,
        "steps_per_generation": config.minibatches * step // forward,
        "num_iterations": config.epochs,
        "max_steps": config.iterations * steps,
        "max_completion_length": config.turn_tokens,
        "shuffle_dataset": False,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "save_strategy": "steps" if config.save_every else "no",
        "save_steps": max(config.save_every, 1) * steps,
        "num_generations_eval": 1,
    }
    if sources := config.sources():
        most = max(source.tasks.n for source in sources)
        values |= {
            "eval_strategy": "steps",
            "eval_steps": config.eval_every * steps,
            "eval_on_start": True,
            "per_device_eval_batch_size": min(-(-most // processes), MOST_EVALUATED),
        }
    return values
