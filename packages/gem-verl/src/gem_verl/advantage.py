"""verl's estimator hook: rows become a table of turns, `gem.advantage` does the maths.

Registers `gem_reinforce`, `gem_rebn`, `gem_grpo`, `gem_rloo` and `gem_gae`; discounting is per
turn, with `algorithm.gamma` and `algorithm.lam`. verl passes an estimator rewards, mask and prompt
ids. On verl's own trainers a row is therefore an episode and a turn is a run of ones in the mask;
the trainers of this package know better and say so with `given`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from gem.advantage import ADVANTAGES, Floats, TurnTable, advantages
from gem.errors import ConfigurationError, RolloutError
from gem.training.settings import check_failures
from gem.trajectory import TurnSpan

PREFIX = "gem_"
_PADDING_UID = "pad"  # verl fills batches up with rows whose prompt id begins like this


@dataclass(frozen=True)
class EpisodeRows:
    """One episode of a batch and the rows that it is spread over."""

    group: str
    """verl's prompt id: shared by the episodes of one task."""
    rows: list[tuple[int, list[TurnSpan]]]
    """`(row of the batch, its turns)`, turns in order."""
    rewards: list[float]
    """Reward of each turn."""
    valid: bool = True
    """False: lost to infrastructure."""


@dataclass
class Batch:
    """What a trainer of this package knows about the rows, and gets back."""

    episodes: list[EpisodeRows]
    values: Tensor | None = None
    """Critic's values as verl aligns them: before each response token, `[rows, response]`."""
    scores: Tensor | None = None
    """Environment rewards `[rows, response]`, where verl adds a KL penalty to the rewards."""
    advantages: list[list[float]] | None = None
    """Set by the estimator: `[episode][turn]`."""


_GIVEN: ContextVar[Batch | None] = ContextVar("gem_verl_batch", default=None)


@contextlib.contextmanager
def given(batch: Batch) -> Iterator[None]:
    """Let estimators called inside use `batch` instead of guessing from the mask."""
    token = _GIVEN.set(batch)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def estimate(
    name: str,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Any,
    index: Any,
) -> tuple[Tensor, Tensor]:
    """Return `(advantages[rows, response], returns[rows, response])`.

    Args:
        name: One of `gem.advantage.ADVANTAGES`.
        token_level_rewards: `[rows, response]`.
        response_mask: 1 on sampled tokens, `[rows, response]`.
        config: verl's `algorithm` table.
        index: Prompt id of each row, `[rows]`.

    Raises:
        RolloutError: An agent loop broke, or too few episodes are left to train on.
        ConfigurationError: The estimator needs what this trainer does not provide.
    """
    batch = _GIVEN.get()
    if batch is None:
        batch = Batch(episodes_by_mask(token_level_rewards, response_mask, index))
        check_failures([e.valid for e in batch.episodes])
    values = None
    if name == "gae":
        if batch.values is None:
            raise ConfigurationError(
                "gem_gae needs trainer.v1.trainer_mode=gem_sync and critic.enable=True"
            )
        values = [_turn_values(episode, batch.values) for episode in batch.episodes]
    groups = {group: i for i, group in enumerate(dict.fromkeys(e.group for e in batch.episodes))}
    rewards = [e.rewards for e in batch.episodes]
    if batch.scores is not None:
        penalties = (token_level_rewards - batch.scores).double()
        rewards = [_penalised(episode, penalties) for episode in batch.episodes]
    table = TurnTable.build(
        rewards,
        groups=[groups[e.group] for e in batch.episodes],
        valid=[e.valid for e in batch.episodes],
        values=values,
    )
    per_turn, targets = advantages(
        name,
        table,
        gamma=float(config.gamma),
        lam=float(config.lam),
        scale=bool(config.get("norm_adv_by_std_in_grpo", True)),
    )
    batch.advantages = table.split(per_turn)
    return (
        spread(batch.episodes, table, per_turn, token_level_rewards),
        spread(batch.episodes, table, targets, token_level_rewards),
    )


def episodes_by_mask(rewards: Tensor, mask: Tensor, index: Any) -> list[EpisodeRows]:
    """Find episodes and turns where only the mask is known; verl's padding rows are left out.

    A turn's reward is all reward from its first token to the next turn's. A row without any
    sampled token is a failed episode.

    Raises:
        RolloutError: A reward is NaN: an agent loop broke.
    """
    if not bool(torch.isfinite(rewards).all()):
        raise RolloutError(
            "a row has a reward that is not finite: an agent loop failed, its error is in the log"
        )
    found = []
    for row, uid in enumerate(index):
        if str(uid).startswith(_PADDING_UID):
            continue
        steps = torch.diff(mask[row].long(), prepend=mask.new_zeros(1).long())
        starts = torch.nonzero(steps == 1).flatten().tolist()
        ends = torch.nonzero(steps == -1).flatten().tolist()
        ends += [mask.shape[1]] * (len(starts) - len(ends))
        cuts = [*starts, mask.shape[1]]
        spans = [TurnSpan(k, *pair) for k, pair in enumerate(zip(starts, ends, strict=True))]
        per_token = rewards[row].double()
        per_turn = [float(per_token[a:b].sum()) for a, b in itertools.pairwise(cuts)]
        found.append(EpisodeRows(str(uid), [(row, spans)], per_turn, valid=bool(spans)))
    return found


def spread(episodes: list[EpisodeRows], table: TurnTable, per_turn: Floats, like: Tensor) -> Tensor:
    """Put each turn's value on its sampled tokens, 0 elsewhere, `[rows, response]`."""
    out = np.zeros(like.shape, dtype=np.float64)
    for episode, of_turn in zip(episodes, table.split(per_turn), strict=True):
        for row, spans in episode.rows:
            for span in spans:
                out[row, span.start : span.end] = of_turn[span.turn]
    return torch.from_numpy(out).to(like)


def _penalised(episode: EpisodeRows, penalties: Tensor) -> list[float]:
    """Add to each turn's reward what verl added to its tokens."""
    rewards = list(episode.rewards)
    for row, spans in episode.rows:
        for span in spans:
            rewards[span.turn] += float(penalties[row, span.start : span.end].sum())
    return rewards


def _turn_values(episode: EpisodeRows, values: Tensor) -> list[float]:
    """Read the critic where each turn begins.

    verl shifts values so that entry t is the model's output *before* response token t: at a
    turn's first token it is the output at the last prompt token, when the policy is about to act.
    """
    found = [math.nan] * len(episode.rewards)
    for row, spans in episode.rows:
        for span in spans:
            found[span.turn] = float(values[row, min(span.start, values.shape[1] - 1)])
    return found


def _register(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def estimator(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Any = None,
        index: Any = None,
        **unused: Any,
    ) -> tuple[Tensor, Tensor]:
        return estimate(name, token_level_rewards, response_mask, config, index)

    register_adv_est(PREFIX + name)(estimator)
    return estimator


ESTIMATORS = {PREFIX + name: _register(name) for name in ADVANTAGES}
"""The registered estimators by verl's name (`algorithm.adv_estimator`)."""
