"""From episodes to what the loss needs: rows, and advantages over the turns of all ranks.

Every rank plays its part of a batch. All of them hand their turns to all others, so that each
computes the same table of turns and takes its own advantages out of it: batch statistics are those
of the whole batch, and groups may lie anywhere. The maths is `gem.advantage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gem.advantage import TurnTable, advantages
from gem.training.record import TrainedRow
from gem.training.settings import check_failures
from gem.trajectory import Failure, TrainingRow, Trajectory

Gather = Callable[[Any], list[Any]]
"""Hands an object to all ranks; returns those of all ranks, in their order."""


@dataclass
class Row:
    """One training row: a stretch of an episode that is one growing sequence of tokens.

    Tensors have one entry for every token but the first, whose probability nobody asks for.
    """

    episode: int
    """Number of the episode among those of this rank."""
    tokens: TrainingRow
    ids: Tensor
    """Prompt and response, int64 `[tokens]`."""
    mask: Tensor
    """1 where the policy sampled the token, float32 `[tokens - 1]`."""
    advantages: Tensor
    """Of each token's turn, 0 elsewhere, float32 `[tokens - 1]`."""
    sampler: Tensor | None
    """The engine's log-probabilities, 0 elsewhere, float32 `[tokens - 1]`; None if unknown."""
    states: list[tuple[int, int]]
    """`(turn, position of its last prompt token)` for every turn of this row."""
    targets: Tensor
    """Of the critic, for every turn of this row, float32 `[turns of this row]`."""
    values: Tensor | None = None
    """The critic's, before the first update, `[turns of this row]`."""
    old: Tensor | None = None
    """Log-probabilities before the first update, `[tokens - 1]`; None: the current ones."""

    @property
    def sampled(self) -> int:
        """Number of tokens that the loss counts."""
        return int(self.mask.sum())

    def give(self, advantage: Sequence[float], target: Sequence[float]) -> None:
        """Take over the advantage and the critic's target of each turn of the episode."""
        start = len(self.tokens.prompt_ids) - 1
        self.advantages[start:] = _tensor(self.tokens.spread(advantage), np.float32)
        self.targets = _tensor([target[turn] for turn, _ in self.states], np.float32)


def make_rows(trajectories: Iterable[Trajectory]) -> list[Row]:
    """Return the rows of all episodes that count, in the order played."""
    rows = []
    for episode, trajectory in enumerate(trajectories):
        for tokens in trajectory.training_rows():
            before = len(tokens.prompt_ids) - 1
            mask = _tensor([0] * before + tokens.mask, np.float32)
            sampler = None
            if tokens.logprobs is not None:
                sampler = _tensor([0.0] * before + tokens.logprobs, np.float32)
            rows.append(
                Row(
                    episode,
                    tokens,
                    ids=_tensor(tokens.ids, np.int64),
                    mask=mask,
                    advantages=torch.zeros(len(mask)),
                    sampler=sampler,
                    states=tokens.states,
                    targets=torch.zeros(len(tokens.spans)),
                )
            )
    return rows


def _tensor(values: list[Any], dtype: type[np.generic]) -> Tensor:
    """`torch.tensor`, which takes five times as long for a list."""
    return torch.from_numpy(np.array(values, dtype))


@dataclass(frozen=True)
class Turns:
    """What other ranks must know of an episode."""

    rewards: list[float]
    group: int
    failure: Failure | None
    """Why the episode is void; None: it is not."""
    values: list[float] | None
    """The critic's, of each turn."""


def values_by_turn(
    trajectories: Sequence[Trajectory], rows: Sequence[Row]
) -> list[list[float]] | None:
    """Return the critic's values `[episode][turn]`; None if the rows have none."""
    if not any(row.values is not None for row in rows):
        return None
    table = [[0.0] * len(t.turns) for t in trajectories]
    for row in rows:
        if row.values is not None:
            for (turn, _), value in zip(row.states, row.values.tolist(), strict=True):
                table[row.episode][turn] = value
    return table


def give_advantages(
    trajectories: Sequence[Trajectory],
    rows: Sequence[Row],
    name: str,
    *,
    gamma: float,
    lam: float,
    max_failed_fraction: float,
    gather: Gather = lambda mine: [mine],
    rank: int = 0,
) -> list[list[float]]:
    """Give each row its advantages; return those of this rank's turns, `[episode][turn]`.

    Args:
        trajectories: The episodes of this rank; `group` is a number within the whole batch.
        rows: Theirs, from `make_rows`; with the critic's values if `name` is `gae`.
        name: Estimator of `gem.advantage`.
        gamma: Discount per turn.
        lam: GAE's lambda per turn.
        max_failed_fraction: Share of failed episodes in the whole batch above which this stops.
        gather: Hands an object to all ranks; by default there is one.
        rank: This one's place among them.

    Raises:
        RolloutError: Too many episodes failed, on all ranks together.
    """
    values = values_by_turn(trajectories, rows)
    if values is None and name == "gae":
        values = [[0.0] * len(t.turns) for t in trajectories]  # no episode of this rank counts
    mine = [
        Turns(
            trajectory.rewards,
            trajectory.group,
            trajectory.failure,
            None if values is None else values[episode],
        )
        for episode, trajectory in enumerate(trajectories)
    ]
    parts: list[list[Turns]] = gather(mine)
    batch = [turns for part in parts for turns in part]
    failures = [turns.failure for turns in batch]
    valid = [failure is None for failure in failures]
    check_failures(valid, max_failed_fraction, failures)
    table = TurnTable.build(
        [turns.rewards for turns in batch],
        groups=[turns.group for turns in batch],
        valid=valid,
        values=None if values is None else [turns.values or [] for turns in batch],
    )
    per_turn, targets = advantages(name, table, gamma=gamma, lam=lam)
    first = sum(len(part) for part in parts[:rank])
    here = slice(first, first + len(mine))
    advantage, target = table.split(per_turn)[here], table.split(targets)[here]
    for row in rows:
        row.give(advantage[row.episode], target[row.episode])
    return advantage


def trained_rows(trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> list[list[TrainedRow]]:
    """Read back from the rows what the loss will see, `[episode][row]`."""
    shown: list[list[TrainedRow]] = [[] for _ in trajectories]
    for row in rows:
        start = len(row.tokens.prompt_ids)
        ids = row.ids.tolist()
        shown[row.episode].append(
            TrainedRow(
                prompt_ids=ids[:start],
                response_ids=ids[start:],
                mask=[int(m) for m in row.mask[start - 1 :].tolist()],
                rewards=row.tokens.token_rewards(trajectories[row.episode].rewards),
                advantages=row.advantages[start - 1 :].tolist(),
            )
        )
    return shown
