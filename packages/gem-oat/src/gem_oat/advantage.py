"""From episodes to what the loss needs: rows, and advantages over the turns of all ranks.

Every rank plays its part of a batch. All of them hand their turns to all others, so that each
computes the same table of turns and takes its own advantages out of it: batch statistics are those
of the whole batch, and groups may lie anywhere. The maths is `gem.advantage`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gem.trajectory import TrainingRow
from gem_train import settings
from gem_train.experiment.estimate import PerTurn
from gem_train.packed import PackedRow, PackedTrajectory, Played
from gem_train.record import TrainedRow
from gem_train.rows import PlacedRow

Gather = Callable[[Any], list[Any]]
"""Hands an object to all ranks; returns those of all ranks, in their order."""


class Row(PlacedRow):
    """One training row: a stretch of an episode that is one growing sequence of tokens.

    Tensors have one entry for every token but the first, whose probability nobody asks for.
    `episode` is the number of the episode among those of this rank.
    """

    def __init__(self, place: int, tokens: TrainingRow | PackedRow, episode: int = 0) -> None:
        """Make the tensors of a row; for the arguments see `PlacedRow`."""
        super().__init__(place, tokens, episode)
        logprobs, turns = tokens.logprobs, len(tokens.spans)
        self.ids = torch.tensor(tokens.ids, dtype=torch.int64)
        """Prompt and response, int64 `[tokens]`."""
        self.mask = torch.from_numpy(self.padded(tokens.mask))
        """1 where the policy sampled the token, float32 `[tokens - 1]`."""
        self.sampler = None if logprobs is None else torch.from_numpy(self.padded(logprobs))
        """The engine's log-probabilities, 0 elsewhere, float32 `[tokens - 1]`; None if unknown."""
        self.places = torch.tensor([at for _, at in tokens.states], dtype=torch.int64)
        """Position of the last token before each turn of this row, int64 `[turns of this row]`."""
        self.advantages = torch.zeros(len(self.mask))
        """Of each token's turn, 0 elsewhere, float32 `[tokens - 1]`."""
        self.weights = torch.zeros(len(self.mask))
        """In the loss (`PolicyLoss.weights`), 0 where nothing was sampled, `[tokens - 1]`."""
        self.targets = torch.zeros(turns)
        """Of the critic, for every turn of this row, float32 `[turns of this row]`."""
        self.values = torch.zeros(turns)
        """The critic's, before the first update, `[turns of this row]`; without a critic 0."""
        self.old: Tensor | None = None
        """Log-probabilities before the first update, `[tokens - 1]`; None: the current ones."""


def give_advantages(
    trajectories: Sequence[PackedTrajectory],
    rows: Sequence[Row],
    estimator: Callable[..., tuple[PerTurn, PerTurn]],
    *,
    max_failed_fraction: float,
    gather: Gather = lambda mine: [mine],
    rank: int = 0,
) -> PerTurn:
    """Give each row its advantages; return those of this rank's turns, `[episode][turn]`.

    Args:
        trajectories: The episodes of this rank; `group` is a number within the whole batch.
        rows: Theirs (`placed_rows`), with the critic's values if there is one.
        estimator: `gem_train.experiment.estimate.turn_advantages` with all but episodes and values.
        max_failed_fraction: Share of failed episodes in the whole batch above which this stops.
        gather: Hands an object to all ranks; by default there is one.
        rank: This one's place among them.

    Raises:
        RolloutError: Too many episodes failed, on all ranks together.
    """
    values = [[0.0] * len(trajectory.rewards) for trajectory in trajectories]
    for row in rows:
        for span, value in zip(row.spans, row.values.tolist(), strict=True):
            values[row.episode][span.turn] = value
    parts = gather([(t.head, each) for t, each in zip(trajectories, values, strict=True)])
    batch = [PackedTrajectory.from_bytes(head) for part in parts for head, _ in part]
    settings.check_episodes(batch, max_failed_fraction)
    values = [each for part in parts for _, each in part]
    per_turn, targets = estimator(batch, values=values)
    first = sum(map(len, parts[:rank]))
    for row in rows:
        at = first + row.episode
        row.advantages = torch.from_numpy(row.padded(row.tokens.spread(per_turn[at])))
        row.targets = torch.tensor([targets[at][span.turn] for span in row.spans])
    return per_turn[first : first + len(trajectories)]


def trained_rows(trajectories: Sequence[Played], rows: Sequence[Row]) -> list[list[TrainedRow]]:
    """Read back from the rows what the loss will see, `[episode][row]`."""
    shown: list[list[TrainedRow]] = [[] for _ in trajectories]
    for row in rows:
        rewards = row.tokens.token_rewards(trajectories[row.episode].rewards)
        mask, advantages = row.mask[row.columns].tolist(), row.advantages[row.columns].tolist()
        shown[row.episode].append(row.trained(row.ids, mask, rewards, advantages))
    return shown
