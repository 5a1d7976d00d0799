"""The keys of a direct run, `python -m gem_tinker.train key=value ...`, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gem.advantage import ADVANTAGES
from gem.errors import ConfigurationError
from gem.rollout import Budget
from gem.tables import setting
from gem.tasks import TaskSet
from gem.training.settings import Settings
from gem.training.tasksets import Source, parse_sources

SERVERS = ("auto", "hosted", "skyrl_train", "skyrl_jax")
"""Values of `server`; see `gem_tinker.advantage.Objective`."""

LOSSES = ("ppo", "importance_sampling", "cispo")
"""Losses of the Tinker API that take an advantage per token and need nothing else."""


@dataclass(frozen=True)
class Config(Settings):
    """A direct run: `Settings`, which says how episodes are played, and the rest."""

    model: str = ""
    """Base model, by the name the server knows it by."""
    train: str = ""
    """Task set, `gem:<environment id>?seed=...&<parameter>=<value>`; `n` is not looked at."""
    eval: str = ""
    """Task sets to evaluate on, separated by spaces: `gem:...?n=64#name=...&temperature=...`."""
    eval_every: int = 20
    """Iterations between evaluations; also before the first and at the end."""
    iterations: int = 100
    """Batches to train on."""
    tasks: int = 16
    """Different tasks in a batch: iteration k plays the seeds `seed + k * tasks` and following."""
    group_size: int = 8
    """Episodes of each task."""
    prompt_tokens: int = 1024
    """Most tokens of a fresh prompt."""
    response_tokens: int = 4096
    """Most tokens appended to a fresh prompt."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy. The servers' losses know temperature 1 only."""
    top_p: float = 1.0
    top_k: int = -1
    lora_rank: int = 32
    lora_seed: int = 0
    """Seed of the initial adapter."""
    init: str | None = None
    """`tinker://` path of weights to begin with instead."""
    advantage: str = "rebn"
    """Estimator of `gem.advantage`; `gae` is refused, a Tinker server has no critic."""
    gamma: float = 1.0
    """Discount per turn."""
    loss_fn: str = "ppo"
    """The server's loss: `ppo` (clipped surrogate), `importance_sampling` or `cispo`."""
    clip: float = 0.2
    """Clip range of the probability ratio."""
    loss_aggregation: str = "token-mean"
    """`token-mean` or `row-mean-token-sum`."""
    epochs: int = 1
    minibatches: int = 1
    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 0.0
    """Largest gradient norm; 0 does not clip."""
    server: str = "auto"
    """How the server adds up its loss: `hosted`, `skyrl_train`, `skyrl_jax`; `auto` finds out."""
    base_url: str | None = None
    """Address of the server; by default `$TINKER_BASE_URL`, else the hosted service."""
    save_every: int = 10
    """Iterations between checkpoints, also at the end; 0 saves none. A run that is started again
    finds them if it has a `record_dir`."""
    restarts: int = 2
    """How often a training client that failed is replaced by one from the last checkpoint, or by a
    new one that begins again where there is none."""
    sample_retries: int = 3
    """Further attempts at a turn whose sampling failed, besides the SDK's own."""
    request_timeout_s: float = setting(
        "longest wait for one answer of the server, in seconds", 1800.0, above=0
    )
    logprob_tolerance: float | None = None
    """Stop if sampler and trainer disagree by more on a token's log-probability: stale weights."""

    def check(self, prefix: str = "gem.") -> None:
        """Raise `ConfigurationError` if a value is wrong or values do not fit together."""
        super().check(prefix)
        for key in ("model", "train"):
            if not getattr(self, key):
                raise ConfigurationError(f"{key} is missing: {key}=<text>")
        for key, choices in (
            ("server", SERVERS),
            ("loss_fn", LOSSES),
            ("advantage", ADVANTAGES),
            ("loss_aggregation", ("token-mean", "row-mean-token-sum")),
        ):
            if getattr(self, key) not in choices:
                raise ConfigurationError(
                    f"{key} must be one of {', '.join(choices)}, got {getattr(self, key)!r}"
                )
        positive = ("iterations", "tasks", "group_size", "prompt_tokens", "response_tokens")
        for key in (*positive, "lora_rank", "epochs", "minibatches", "eval_every"):
            if getattr(self, key) < 1:
                raise ConfigurationError(f"{key} must be at least 1, got {getattr(self, key)}")
        for key in ("save_every", "restarts", "sample_retries", "temperature", "grad_clip"):
            if getattr(self, key) < 0:
                raise ConfigurationError(f"{key} must be at least 0, got {getattr(self, key)}")
        for key in ("lr", "clip", "eps", "top_p"):
            if getattr(self, key) <= 0:
                raise ConfigurationError(f"{key} must be above 0, got {getattr(self, key)}")
        if self.advantage == "gae":
            raise ConfigurationError(
                "advantage=gae needs a critic, and a Tinker server has no value head; choose "
                "rebn, grpo, rloo or reinforce"
            )
        if self.advantage in ("grpo", "rloo") and self.group_size < 2:
            raise ConfigurationError(
                f"group_size: {self.advantage} compares episodes of one task and needs at least "
                f"2, got {self.group_size}"
            )
        if self.temperature not in (0.0, 1.0):
            raise ConfigurationError(
                f"temperature must be 1, or 0 for greedy, got {self.temperature}: the servers' "
                "losses take log-probabilities at temperature 1"
            )
        if self.minibatches > self.tasks * self.group_size:
            raise ConfigurationError(
                f"minibatches: {self.minibatches} of {self.tasks * self.group_size} episodes"
            )
        self.train_tasks()
        self.sources()

    @property
    def budget(self) -> Budget:
        """The limits of an episode."""
        turn = min(self.turn_tokens or self.response_tokens, self.response_tokens)
        return Budget(turn, self.response_tokens, self.prompt_tokens, self.turns)

    def train_tasks(self) -> TaskSet:
        """Return all tasks of the run, `tasks` an iteration."""
        first = TaskSet.parse(self.train)
        return TaskSet(first.env_id, self.iterations * self.tasks, first.seed, first.params)

    def sources(self) -> list[Source]:
        """Return what is evaluated on.

        Raises:
            ConfigurationError: One is malformed, or two have the same name.
        """
        return parse_sources(self.eval.split(), "eval")


def read(arguments: Sequence[str]) -> Config:
    """Read `key=value` arguments; a value is JSON where it is JSON, else text.

    Raises:
        ConfigurationError: An argument is something else, or a value is wrong.
    """
    known = Config.__dataclass_fields__
    table: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        key = key.removeprefix("gem.")
        if not equals:
            raise ConfigurationError(f"arguments are key=value, got {argument!r}")
        if key in table:
            raise ConfigurationError(f"{key} is given twice")
        kind = str(known[key].type) if key in known else ""
        table[key] = text if kind == "str" else _value(text, kind)
    return Config.from_mapping(table)


def _value(text: str, kind: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    # `system_prompt=42` is text; `system_prompt=null` is none.
    return text if kind.startswith("str") and value is not None else value
