"""The keys of a direct run, `python -m gem_tinker.train key=value ...`, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem.tables import assignments, filled, setting
from gem_train import settings
from gem_train.experiment import tasksets
from gem_train.experiment.filtering import Filtering
from gem_train.experiment.losses import AGGREGATIONS, PolicyLoss, clipped
from gem_train.experiment.mixtures import Tasks, parse_tasks, run_tasks
from gem_train.experiment.schedule import Schedule

SERVERS = ("auto", "hosted", "skyrl_train", "skyrl_jax")
"""Values of `server`; see `gem_tinker.advantage.Objective`."""

LOSSES = ("ppo", "importance_sampling", "cispo")
"""Losses of the Tinker API that take an advantage per token and need nothing else."""

FREE: tuple[str, ...] = ("iterations", "save_every", "base_url", "server", "record", "record_dir")
FREE += ("restarts", "executor", "retries", "sample_retries", "request_timeout_s", "step_timeout_s")
"""Keys that may differ where a run goes on."""

NO_CRITIC = "a Tinker server has no value head for a critic"
NO_MIN_P = "a Tinker server's sampler has no min_p"
TEMPERATURE = "the server's losses take log-probabilities at temperature 1"
UNCLIPPED = "loss_fn=importance_sampling clips nothing"
"""Why settings are refused."""


@dataclass(frozen=True, kw_only=True)
class Config(settings.Settings, Schedule, Filtering):
    """A direct run: `Settings`, which says how episodes are played, and the rest."""

    model: str = setting("base model, by the name the server knows it by", check=filled)
    train: str = setting("task set or mixture, whose `n` is not looked at", check=parse_tasks)
    """`gem:<environment id>?seed=...&<parameter>=<value>`"""
    eval: str = setting("task sets to evaluate on, separated by spaces", "")
    """`gem:...?n=64#name=...&temperature=...`"""
    eval_every: int = setting("iterations between evaluations; also at both ends", 20, least=1)
    iterations: int = setting("batches to train on", 100, least=1)
    tasks: int = setting("different tasks in a batch", 16, least=1)
    """Iteration k plays the seeds `seed + k * tasks` and following."""
    group_size: int = setting("episodes of each task", 8, least=1)
    prompt_tokens: int = setting("most tokens of a fresh prompt", 1024, least=1)
    response_tokens: int = setting("most tokens appended to a fresh prompt", 4096, least=1)
    temperature: float = setting("1, or 0 for greedy: the losses know no other", 1.0, least=0)
    top_p: float = setting("nucleus mass", 1.0, above=0, most=1)
    top_k: int = setting("number of candidates; -1 is all, 1 is greedy", -1, least=1, special=-1)
    lora_rank: int = setting("rank of the adapter", 32, least=1)
    lora_seed: int = setting("seed of the initial adapter", 0)
    init: str | None = setting("`tinker://` path of weights to begin with instead", None)
    """They are of `model` and have `lora_rank`."""
    advantage: str = setting(
        "name of an estimator that needs no critic",
        "rebn",
        check=partial(settings.check_offered, no_critic=NO_CRITIC),
    )
    gamma: float = setting("discount per turn", 1.0, least=0, most=1)
    loss_fn: str = setting("the server's loss; `ppo` is the clipped one", "ppo", choices=LOSSES)
    clip: float = setting("clip range of the probability ratio below 1", 0.2, above=0)
    clip_high: float | None = setting(
        "clip range above 1; by default that of `clip`", None, above=0
    )
    loss_aggregation: str = setting("how losses are added up", "token-mean", choices=AGGREGATIONS)
    epochs: int = setting("passes over a batch", 1, least=1)
    minibatches: int = setting("updates of a pass", 1, least=1)
    lr: float = setting("learning rate", 1e-4, above=0)
    beta1: float = setting("decay of the first moment", 0.9, least=0, below=1)
    beta2: float = setting("decay of the second moment", 0.95, least=0, below=1)
    eps: float = setting("denominator offset", 1e-8, above=0)
    weight_decay: float = setting("decoupled weight decay", 0.0, least=0)
    grad_clip: float = setting("largest gradient norm; 0 does not clip", 0.0, least=0)
    server: str = setting("how the server adds up its loss", "auto", choices=SERVERS)
    """`auto` finds out, with a training client of its own; see `gem_tinker.advantage.Objective`."""
    base_url: str | None = setting("address of the server", None)
    """By default `$TINKER_BASE_URL`, else the hosted service."""
    save_every: int = setting("iterations between checkpoints; 0 saves none", 10, least=0)
    """Also at the end. A run that is started again finds them if it has a `record_dir`."""
    restarts: int = setting("how often a failed training client is replaced", 2, least=0)
    """By one from the last checkpoint, or by a new one that begins again where there is none."""
    sample_retries: int = setting("further attempts at a turn, besides the SDK's own", 3, least=0)
    request_timeout_s: float = setting("longest wait for an answer in seconds", 1800.0, above=0)
    logprob_tolerance: float | None = setting(
        "largest difference of log-probabilities", None, least=0
    )
    """Stop if sampler and trainer disagree by more on a token: stale weights."""

    def check(self, prefix: str = "gem.") -> None:
        """Raise `ConfigurationError` if a value is wrong or values do not fit together."""
        super().check(prefix)
        episodes = self.tasks * self.group_size
        free, begun = self.loss_fn == "importance_sampling", self.init is not None
        found = (
            ("clip", free and self.clip != Config.clip, UNCLIPPED),
            ("clip_high", free and self.clip_high is not None, UNCLIPPED),
            (
                "lora_seed",
                begun and self.lora_seed != Config.lora_seed,
                "init is not drawn from it",
            ),
            ("temperature", self.temperature not in (0, 1), f"{TEMPERATURE}; 0 is greedy"),
            ("minibatches", self.minibatches > episodes, f"a batch has {episodes} episodes"),
            (
                "extra_batches",
                self.extra_batches is not None and self.group_size < 2,
                "the episodes of a task are compared; set group_size to 2 or more",
            ),
        )
        settings.refuse_values(vars(self), found, prefix)
        settings.check_group_size(self.advantage, "group_size", self.group_size)
        least = [source.sampling.min_p for source in self.sources() if source.sampling]
        settings.refuse_values(vars(self), [("eval", any(least), NO_MIN_P)], prefix)

    def clips(self, ratio: NDArray[Any], advantages: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether the server clips the loss of each token, `[tokens]`."""
        if self.loss_fn == "importance_sampling":
            return np.zeros(ratio.shape, np.bool_)
        how = PolicyLoss(loss=self.loss_fn, clip=self.clip, clip_high=self.clip_high)
        found: NDArray[np.bool_] = clipped(ratio, advantages, how)
        return found

    def learning_rate(self, iteration: int, number: int) -> float:
        """Return the learning rate of an update.

        Args:
            iteration: From 0.
            number: Of the update within the iteration, from 0.
        """
        updates = self.epochs * self.minibatches
        return self.lr * self.factor(iteration * updates + number, self.iterations * updates)

    def train_tasks(self) -> Tasks:
        """Return all tasks of the run, `tasks` an iteration, and then those of extra batches."""
        batches = 1 + (self.extra_batches or 0)
        return run_tasks(self.train, batches * self.iterations, self.tasks)

    def sources(self) -> list[tasksets.Source]:
        """Return what is evaluated on.

        Raises:
            ConfigurationError: One is malformed, or two have the same name.
        """
        return tasksets.parse_sources(self.eval.split(), "eval")


def read(arguments: Sequence[str]) -> Config:
    """Read `key=value` arguments; a value is JSON where it is JSON, else text.

    Raises:
        ConfigurationError: An argument is something else, or a value is wrong.
    """
    plain = [argument.removeprefix("gem.") for argument in arguments]
    return Config.from_mapping(assignments(Config, plain), prefix="")
