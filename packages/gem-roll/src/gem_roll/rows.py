"""Rows of ROLL's batch: made of episodes, read as episodes again, and given GEM's advantages.

ROLL's tensors are `[rows, sequence_length]`, padded on the right, and a row is an episode. What the
loss takes (`response_mask[:, 1:]`, `advantages`, `values`) is about the token after its column. The
whole episode travels in the row's `non_tensor_batch[EPISODE]`. In ROLL's driver the batch of all
workers is in one piece, so the statistics of an estimator are over all turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gem.errors import RolloutError
from gem.estimators import estimator
from gem.trajectory import TrainingRow, Trajectory
from gem_roll.settings import GemSettings
from gem_train.experiment.agreement import Agreement
from gem_train.experiment.estimate import PerTurn, turn_advantages
from gem_train.packed import PackedTrajectory
from gem_train.record import TrainedRow
from gem_train.rows import PlacedEpisode, PlacedRow, write_all
from gem_train.settings import check_episodes

EPISODE, SLOT = "gem_episode", "env_ids"
"""Columns without tensors: the episode's bytes (`gem_train.packed`), the slot that played it."""


def columns(trajectory: Trajectory, length: int, pad_id: int, stop_id: int) -> dict[str, Tensor]:
    """Return ROLL's tensors of an episode, each `[1, length]`, `infer_logprobs` `[1, length - 1]`.

    A failed episode, or one without a sampled token, becomes a row without a trained token.

    Args:
        trajectory: The episode, of at most `length` tokens.
        length: ROLL's `sequence_length`.
        pad_id: Token of the padding.
        stop_id: Any token, for the row of a failed episode.
    """
    [row] = trajectory.training_rows() or [TrainingRow([stop_id], [stop_id], [0], [0.0], [])]
    prompt, mask, ids = len(row.prompt_ids), row.mask, row.ids
    logprobs = row.logprobs or [0.0] * len(mask)
    n = len(ids)
    ends = [0.0] * (n - 1) + [trajectory.total_reward if trajectory.valid else 0.0]

    def padded(values: list[Any], dtype: torch.dtype, fill: int = 0) -> Tensor:
        return torch.tensor([values + [fill] * (length - n)], dtype=dtype)

    return {
        "input_ids": padded(ids, torch.long, pad_id),
        "attention_mask": padded([1] * n, torch.long),
        "position_ids": padded(list(range(n)), torch.long),
        "response_mask": padded([0] * prompt + mask, torch.bool),
        "prompt_mask": padded([1] * prompt + [0] * (n - prompt), torch.bool),
        "scores": padded(ends, torch.float32),
        "infer_logprobs": padded([0.0] * prompt + logprobs, torch.float32)[:, 1:],
    }


def read(data: Any) -> list[PlacedEpisode]:
    """Return the episodes of a batch in the order of tasks and slots, whatever ROLL's is.

    Args:
        data: ROLL's `DataProto`.

    Raises:
        RolloutError: A row does not hold the tokens that were sampled.
    """
    found: list[tuple[int, int, PlacedEpisode]] = []
    others = data.non_tensor_batch
    for place, (packed, slot) in enumerate(zip(others[EPISODE], others[SLOT], strict=True)):
        trajectory = PackedTrajectory.from_bytes(packed)
        rows = [PlacedRow(place, row) for row in trajectory.training_rows()]
        for row in rows:
            mask = data.batch["response_mask"][place, 1:]
            row.check(_ids(data, row), mask, f"row {place} of ROLL's batch")
        found.append((trajectory.group, int(slot), PlacedEpisode(trajectory, rows)))
    return [episode for _, _, episode in sorted(found, key=lambda each: each[:2])]


def trained_rows(data: Any, episode: PlacedEpisode) -> list[TrainedRow]:
    """Read back what ROLL trains on; it keeps the episode's return, but no reward of a turn."""
    mask, advantages = data.batch["response_mask"][:, 1:].long(), data.batch["advantages"]
    found = []
    for row in episode.rows:
        place, at = row.place, row.columns
        rewards = row.tokens.token_rewards(episode.trajectory.rewards)
        values = mask[place, at], rewards, advantages[place, at].tolist()
        found.append(row.trained(_ids(data, row), *values))
    return found


def _ids(data: Any, row: PlacedRow) -> Tensor:
    ids: Tensor = data.batch["input_ids"][row.place]
    return ids[data.batch["attention_mask"][row.place].bool()]


def compute(
    settings: GemSettings, data: Any, episodes: Sequence[PlacedEpisode], gamma: float, lam: float
) -> PerTurn:
    """Set `advantages`, `raw_advantages` and `returns` of a batch, `[rows, sequence_length - 1]`.

    All tokens of a turn get its advantage, and a critic its target. Elsewhere they are 0: ROLL's
    mean over tokens sums the loss without its mask.

    Args:
        settings: Of the training environments.
        data: ROLL's `DataProto`.
        episodes: Of `read`.
        gamma: Discount per turn.
        lam: GAE's lambda per turn.

    Returns:
        The advantages, `[episode][turn]`.

    Raises:
        RolloutError: Too many episodes failed, or no token was sampled.
    """
    trajectories = [episode.trajectory for episode in episodes]
    check_episodes(trajectories, settings.max_failed_fraction)
    mask = data.batch["response_mask"][:, 1:]
    if not mask.any():
        raise RolloutError("no token of this batch was sampled: there is nothing to train on")
    name = settings.advantage
    values = (
        [e.at_turns(data.batch["values"]) for e in episodes]
        if estimator(name).needs_critic
        else None
    )
    per_turn, targets = turn_advantages(
        name, trajectories, settings, gamma=gamma, lam=lam, values=values
    )
    advantages = write_all(torch.zeros(mask.shape), episodes, per_turn)
    data.batch["advantages"] = advantages
    data.batch["raw_advantages"] = advantages.clone()
    data.batch["returns"] = write_all(torch.zeros(mask.shape), episodes, targets)
    data.batch["token_level_rewards"] = data.batch["token_level_rewards"].float() * mask
    return per_turn


def engine_metrics(data: Any) -> dict[str, float]:
    """Return how far the trainer's log-probabilities are from the engine's.

    Args:
        data: ROLL's `DataProto`, for which ROLL has computed its own before the update, as it does
            for several optimiser steps in a batch.
    """
    trainer, engine = data.batch["old_log_probs"].float(), data.batch["infer_logprobs"].float()
    return Agreement.of(trainer, engine, data.batch["response_mask"][:, 1:]).metrics()
