"""Rollouts: play episodes between environments and a sampler; text becomes tokens here, once.

Adapters call `play` or `play_batch`; neither imports a trainer.
"""

from gem.rollout.collect import BatchSampler, play_batch, together
from gem.rollout.context import Context, make_context
from gem.rollout.match import play_match, play_tasks
from gem.rollout.play import Budget, Episode, Request, Sample, Sampler, check_logprobs, play
from gem.rollout.prompting import Prompting
from gem.rollout.tokens import ChatFormat
from gem.rollout.transcript import TokenTranscript

__all__ = [
    "BatchSampler",
    "Budget",
    "ChatFormat",
    "Context",
    "Episode",
    "Prompting",
    "Request",
    "Sample",
    "Sampler",
    "TokenTranscript",
    "check_logprobs",
    "make_context",
    "play",
    "play_batch",
    "play_match",
    "play_tasks",
    "together",
]
