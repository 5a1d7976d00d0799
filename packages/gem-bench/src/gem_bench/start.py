"""Measures the policy that an experiment begins with: does it leave room to learn?"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from transformers import AutoTokenizer

from gem_bench.compare import estimate
from gem_bench.models import load_pretrained, resolved
from gem_bench.reference import Learner, rollout
from gem_bench.stats import Estimate, over_tasks
from gem_train.experiment.mixtures import Mixture
from gem_train.experiment.runspec import RunSpec

_AT_ONCE = 128


@dataclass(frozen=True)
class Start:
    """What a model can do before training."""

    name: str
    """Of the experiment."""
    model: str
    """Folder or hub name."""
    parameters: int
    success: Estimate
    """Of sampled episodes, over tasks."""
    format_errors: float
    """Share of episodes with a format error."""
    making_s: float
    """CPU seconds of this process until the model was there; next to nothing if it was cached."""


def measure(spec: RunSpec, *, episodes: int = 256) -> Start:
    """Make the model of a spec if it is gem-cpu's, and play the spec's first tasks with it.

    Args:
        spec: The experiment.
        episodes: Number of tasks, each played once.

    Raises:
        ConfigurationError: The model cannot be made or loaded.
        RolloutError: Too many episodes failed.
    """
    began = time.process_time()
    spec = resolved(spec)
    making_s = time.process_time() - began
    learner = Learner(spec, torch.device("cpu"), 65_536)
    tokenizer = load_pretrained(AutoTokenizer, spec.policy.model)
    chat = spec.policy.chat_format(tokenizer)
    tasks = list(Mixture(spec.env, episodes, episodes))
    played = []
    for number, first in enumerate(range(0, episodes, _AT_ONCE)):
        part = tasks[first : first + _AT_ONCE]
        played += rollout(learner, chat, part, 1, spec.sampling, (number, 0))[0]
    valid = [episode for episode in played if episode.valid]
    return Start(
        spec.name,
        spec.policy.model,
        sum(each.numel() for each in learner.policy.parameters()),
        over_tasks([[float(episode.success)] for episode in valid]),
        sum(episode.format_error for episode in valid) / len(valid),
        making_s,
    )


def as_text(found: Start) -> str:
    """Render for a terminal."""
    return (
        f"{found.name}: start success {estimate(found.success)}, format errors "
        f"{found.format_errors:.2f}, {found.parameters:,} parameters, made in "
        f"{found.making_s:.0f} CPU s: {found.model}"
    )
