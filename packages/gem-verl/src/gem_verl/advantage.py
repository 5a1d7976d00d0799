"""verl's estimator hook: the advantage of every turn, computed by `gem.advantage`.

Registers `gem_<name>` for every name of `gem.estimators`; discounting is per turn, with
`algorithm.gamma` and `algorithm.lam`. verl passes an estimator rewards, mask and
prompt ids. On verl's own trainers a row is therefore an episode and a turn is a run of ones in the
mask; the trainers of this package know better and say so with `given`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from gem.errors import ConfigurationError, RolloutError
from gem.estimators import estimator, estimator_names
from gem_train.experiment.estimate import PerTurn, Shaping, turn_advantages
from gem_train.rows import EpisodeTurns, RowTurns, at_turns, over_turns, turns_by_mask, write_all
from gem_train.settings import check_failures
from gem_verl.settings import PREFIX

_PADDING_UID = "pad"  # verl fills batches up with rows whose prompt id begins like this


@dataclass
class Batch:
    """What a trainer of this package knows about the rows, and gets back."""

    episodes: list[EpisodeTurns]
    """Of a group are those of verl's prompt id; rows are those of its tensors."""
    values: Tensor | None = None
    """Critic's values as verl aligns them, `[rows, response]`: entry t is the model's output before
    response token t, so that at a turn's first token the policy is about to act."""
    scores: Tensor | None = None
    """Environment rewards `[rows, response]`, where verl adds a KL penalty to the rewards."""
    advantages: PerTurn | None = None
    """Set by the estimator: `[episode][turn]`."""
    state: dict[str, float] = field(default_factory=dict)
    """Of an estimator that keeps one, such as `gem_rae`; brought up to date by the estimator."""
    shaping: Shaping = field(default_factory=Shaping)
    """Of rewards and advantages."""


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
    config: Any = None,
    index: Any = None,
    **unused: Any,
) -> tuple[Tensor, Tensor]:
    """Return `(advantages[rows, response], returns[rows, response])`.

    Args:
        name: Name of an estimator; see `gem.estimators`.
        token_level_rewards: `[rows, response]`.
        response_mask: 1 on sampled tokens, `[rows, response]`.
        config: verl's `algorithm` table.
        index: Prompt id of each row, `[rows]`.
        **unused: What verl's own estimators are given besides.

    Raises:
        RolloutError: An agent loop broke, or too few episodes are left to train on.
        ConfigurationError: The estimator needs what this trainer does not provide.
    """
    batch = _GIVEN.get()
    if batch is None:
        batch = Batch(episodes_by_mask(token_level_rewards, response_mask, index))
        check_failures([episode.valid for episode in batch.episodes])
    episodes, added, values = batch.episodes, None, None
    if estimator(name).needs_critic:
        if batch.values is None:
            raise ConfigurationError(
                f"gem_{name} needs trainer_mode=gem_sync and critic.enable=True"
            )
        values = [at_turns(batch.values, e.rows, len(e.rewards)) for e in episodes]
    if batch.scores is not None:
        penalties = token_level_rewards - batch.scores
        added = [over_turns(penalties, e.rows, len(e.rewards)) for e in episodes]
    group_std = bool(config.get("norm_adv_by_std_in_grpo", True))
    batch.advantages, targets = turn_advantages(
        name,
        episodes,
        replace(batch.shaping, group_std=group_std),
        gamma=float(config.gamma),
        lam=float(config.lam),
        added=added,
        values=values,
        state=batch.state,
    )
    advantages = write_all(torch.zeros_like(token_level_rewards), episodes, batch.advantages)
    return advantages, write_all(torch.zeros_like(token_level_rewards), episodes, targets)


def episodes_by_mask(rewards: Tensor, mask: Tensor, index: Any) -> list[EpisodeTurns]:
    """Find episodes and turns where only the mask is known; verl's padding rows are left out.

    A row without any sampled token is a failed episode.

    Raises:
        RolloutError: A reward is NaN: an agent loop broke.
    """
    if not bool(torch.isfinite(rewards).all()):
        raise RolloutError("an agent loop failed: a reward is not finite; the log has its error")
    found = []
    groups: dict[str, int] = {}
    for row, uid in enumerate(map(str, index)):
        if uid.startswith(_PADDING_UID):
            continue
        spans, per_turn = turns_by_mask(mask[row], rewards[row])
        group = groups.setdefault(uid, len(groups))
        found.append(EpisodeTurns(group, [RowTurns(row, spans)], per_turn, valid=bool(spans)))
    return found


ESTIMATORS = {
    PREFIX + name: register_adv_est(PREFIX + name)(partial(estimate, name))
    for name in estimator_names()
}
"""The registered estimators by verl's name (`algorithm.adv_estimator`)."""
