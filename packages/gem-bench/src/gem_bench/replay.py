"""Replaying the record of a run: what `audit` and `gap` take from it for the reference trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gem.errors import ConfigurationError
from gem.trajectory import Trajectory
from gem_bench.reference import Learner, token_statistics
from gem_bench.rows import Row
from gem_train.batches import chunks
from gem_train.experiment.filtering import filtered
from gem_train.experiment.runspec import RunSpec
from gem_train.record import RunRecord


def experiment(run: RunRecord, lora_init: str | None = None) -> RunSpec:
    """Return the experiment of a run, with the folder of the model that it began with.

    Args:
        run: A record.
        lora_init: Folder of the run's initial adapter (`policy.lora_rank`), if it differs from the
            reference's.

    Raises:
        ConfigurationError: The record has no spec, or has a part that cannot be replayed.
    """
    if "spec" not in run.meta:
        raise ConfigurationError(f"{run.folder} holds no experiment (run.json has no spec)")
    spec = RunSpec.from_mapping(run.meta["spec"])
    if spec.algorithm.estimator.needs_critic or spec.algorithm.kl_coef:
        raise ConfigurationError(
            "a run with a critic or a KL penalty depends on more than its episodes and cannot be "
            "replayed"
        )
    if spec.training.staleness:
        raise ConfigurationError(
            "training.staleness: the episodes were sampled with older weights than those that were "
            f"trained; a replay knows one policy, got {spec.training.staleness}"
        )
    own = run.meta.get("trainer") == "reference"
    adapter = lora_init or spec.policy.lora_init
    if spec.policy.lora_rank and not own and (adapter is None or not Path(adapter).is_dir()):
        raise ConfigurationError(
            "policy.lora_rank: the run began with a random adapter of its trainer's; name the "
            "folder that holds it (lora_init)"
        )
    path = str(run.meta.get("model") or spec.policy.model)
    return replace(spec, policy=replace(spec.policy, model=path, lora_init=adapter))


def batches(run: RunRecord) -> Iterator[tuple[dict[str, Any], list[Trajectory]]]:
    """Yield the metrics and the training episodes of each iteration, in order.

    Raises:
        ConfigurationError: Nothing is recorded, not the first iteration, or an iteration lacks
            episodes.
    """
    metrics = [line for line in run.metrics if line["split"] == "train"]
    if not metrics:
        raise ConfigurationError(f"{run.folder} has no training iteration")
    if (first := metrics[0]["iteration"]) != 0:
        raise ConfigurationError(
            f"{run.folder} begins with iteration {first}, but a replay with the weights before "
            "iteration 0"
        )
    episodes = run.episodes("train")
    waiting = next(episodes, None)
    for line in metrics:
        batch: list[Trajectory] = []
        while waiting is not None and waiting.iteration == line["iteration"]:
            batch.append(waiting.trajectory)
            waiting = next(episodes, None)
        missing = int(line["episodes"]) - sum(episode.valid for episode in batch)
        if missing:
            raise ConfigurationError(
                f"{run.folder} lacks {missing:,} training episodes of iteration "
                f"{line['iteration']}, and a replay needs all: record them with `gem-bench run "
                "--record all`"
            )
        yield line, batch


def trained(spec: RunSpec, episodes: Sequence[Trajectory]) -> list[bool]:
    """Return which episodes of an iteration are trained on."""
    if spec.training.extra_batches is None:
        return [True] * len(episodes)
    return filtered(episodes, spec.training.tasks, spec.algorithm).trained


@torch.no_grad()
def logprobs(learner: Learner, rows: Sequence[Row]) -> Tensor:
    """Return the learner's log-probability of every sampled token, `[sampled tokens of all rows]`.

    In float64, at the sampling temperature, before any token is left out or penalised.
    """
    parts = []
    for chunk in chunks(rows, learner.forward_tokens):
        with learner.autocast():
            logprob, _ = token_statistics(
                learner.policy, chunk, learner.spec.sampling.temperature, learner.chat
            )
        parts.append(logprob.double())
    return torch.cat(parts)


def recorded(rows: Sequence[Row]) -> Tensor | None:
    """Return the sampler's log-probability of every sampled token, in the order of `logprobs`.

    None if an episode has none.
    """
    if any(row.tokens.logprobs is None for row in rows):
        return None
    return torch.tensor([p for row in rows for p in row.drawn], dtype=torch.float64)
