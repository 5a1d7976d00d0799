"""From episodes to what the loss needs: rows, and advantages over the turns of all ranks.

Every rank plays its part of a batch. All of them hand their turns to all others, so that each
computes the same table of turns and takes its own advantages out of it: batch statistics are those
of the whole batch, and groups may lie anywhere. The maths is `gem.advantage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gem.packed import PackedRow, Played
from gem.training import estimate, settings
from gem.training.record import TrainedRow
from gem.training.rows import PlacedRow, placed_rows
from gem.trajectory import Failure, TrainingRow

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
        self.targets = torch.zeros(turns)
        """Of the critic, for every turn of this row, float32 `[turns of this row]`."""
        self.values = torch.zeros(turns)
        """The critic's, before the first update, `[turns of this row]`; without a critic 0."""
        self.old: Tensor | None = None
        """Log-probabilities before the first update, `[tokens - 1]`; None: the current ones."""

    def give(self, advantage: Sequence[float], target: Sequence[float]) -> None:
        """Take over the advantage and the critic's target of each turn of the episode."""
        self.advantages = torch.from_numpy(self.padded(self.tokens.spread(advantage)))
        self.targets = torch.tensor([target[span.turn] for span in self.spans])


def make_rows(trajectories: Iterable[Played]) -> list[Row]:
    """Return the rows of all episodes that count, in the order played."""
    return placed_rows(trajectories, Row)


@dataclass(frozen=True)
class Turns:
    """What other ranks must know of an episode."""

    rewards: list[float]
    group: int
    failure: Failure | None
    """Why the episode is void; None: it is not."""
    values: list[float]
    """The critic's, of each turn; without a critic 0."""

    @property
    def valid(self) -> bool:
        """Whether the episode is not void."""
        return self.failure is None


def give_advantages(
    trajectories: Sequence[Played],
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
    mine = [Turns(t.rewards, t.group, t.failure, [0.0] * len(t.rewards)) for t in trajectories]
    for row in rows:
        for span, value in zip(row.spans, row.values.tolist(), strict=True):
            mine[row.episode].values[span.turn] = value
    parts: list[list[Turns]] = gather(mine)
    batch = [turns for part in parts for turns in part]
    settings.check_episodes(batch, max_failed_fraction)
    values = [turns.values for turns in batch]
    per_turn, targets = estimate.turn_advantages(name, batch, gamma=gamma, lam=lam, values=values)
    first = sum(len(part) for part in parts[:rank])
    for row in rows:
        row.give(per_turn[first + row.episode], targets[first + row.episode])
    return per_turn[first : first + len(mine)]


def trained_rows(trajectories: Sequence[Played], rows: Sequence[Row]) -> list[list[TrainedRow]]:
    """Read back from the rows what the loss will see, `[episode][row]`."""
    shown: list[list[TrainedRow]] = [[] for _ in trajectories]
    for row in rows:
        rewards = row.tokens.token_rewards(trajectories[row.episode].rewards)
        mask, advantages = row.mask[row.columns].tolist(), row.advantages[row.columns].tolist()
        shown[row.episode].append(row.trained(row.ids, mask, rewards, advantages))
    return shown
