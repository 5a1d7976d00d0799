"""Training rows inside a trainer's tensors: write, read and sum values by turn; check the tokens.

- `turns_by_mask`: the turns of a row whose mask alone is known.
- `write`, `at_turns`, `over_turns`: values of an episode's turns, in rows of tensors
  `[rows, columns]`, torch's or numpy's; `write_all`: those of a batch.
- `split_turns`: a row for each turn of a row.
- `PlacedRow`: a training row in tensors that have a column for every token but the first: column c
  is about token c + 1. Adapters that make such tensors themselves extend it.
- `PlacedEpisode`: an episode and its rows.
- `RowTurns`, `EpisodeTurns`: the same where the trainer keeps the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem.errors import RolloutError
from gem.trajectory import TrainingRow, TurnSpan
from gem_train.packed import PackedRow, Played
from gem_train.record import TrainedRow

T = TypeVar("T")
RowT = TypeVar("RowT", bound="PlacedRow")


class HasTurns(Protocol):
    """A row of tensors and the turns in it: `PlacedRow` or `RowTurns`."""

    @property
    def place(self) -> int:
        """Row of the tensors."""

    @property
    def first(self) -> int:
        """Column of the response's first token, from which spans count."""

    @property
    def spans(self) -> Sequence[TurnSpan]:
        """The turns of this row."""


class HasRows(Protocol):
    """An episode of a batch: `PlacedEpisode` or `EpisodeTurns`."""

    @property
    def rows(self) -> Sequence[HasTurns]:
        """The rows of tensors that it is spread over."""


@dataclass
class RowTurns:
    """The turns of a row whose tokens the trainer keeps."""

    place: int
    """Row of the tensors."""
    spans: list[TurnSpan]
    """The turns of this row, in order."""
    first: int = 0
    """Column of the response's first token; 0 where tensors begin with it."""


@dataclass(frozen=True)
class EpisodeTurns:
    """What estimators need of an episode, and the rows that it is spread over."""

    group: int
    """Number that the episodes of a task share."""
    rows: list[RowTurns]
    """Turns in order."""
    rewards: list[float]
    """Reward of each turn."""
    valid: bool = True
    """False: lost to infrastructure."""
    environment: str = ""
    """Name of its environment in a run of several."""
    agent: str | None = None
    """Whose episode of a match it is."""

    @classmethod
    def of(cls, trajectory: Played, group: int, rows: list[RowTurns]) -> EpisodeTurns:
        """Return the turns of an episode; one that failed has none."""
        rewards, valid = trajectory.rewards, trajectory.valid
        whose = trajectory.environment, trajectory.agent
        return cls(group, rows, rewards if valid else [], valid, *whose)


def write(target: Any, rows: Iterable[HasTurns], per_turn: Sequence[float]) -> None:
    """Put each turn's value on its sampled tokens; all other entries stay.

    Args:
        target: Tensor `[rows, columns]`.
        rows: Of one episode.
        per_turn: A value for each turn of the episode.
    """
    for row in rows:
        for span in row.spans:
            target[row.place, row.first + span.start : row.first + span.end] = per_turn[span.turn]


def write_all(target: T, episodes: Iterable[HasRows], per_turn: Iterable[Sequence[float]]) -> T:
    """Put the values of a batch's turns on their sampled tokens; see `write`.

    Args:
        target: Tensor `[rows, columns]`.
        episodes: The batch.
        per_turn: A value for each turn, `[episode][turn]`.

    Returns:
        The tensor.
    """
    for episode, of_turns in zip(episodes, per_turn, strict=True):
        write(target, episode.rows, of_turns)
    return target


def at_turns(source: Any, rows: Iterable[HasTurns], turns: int) -> list[float]:
    """Read a tensor where each turn begins.

    Of a critic's values this is the one at the last token before the turn: when the policy is about
    to act.

    Args:
        source: Tensor `[rows, columns]`.
        rows: Of one episode.
        turns: Number of its turns; one that is in no row is NaN, which no estimator accepts.
    """
    found = [math.nan] * turns
    last = source.shape[1] - 1  # A turn without tokens may begin where the row ends.
    for row in rows:
        for span in row.spans:
            found[span.turn] = float(source[row.place, min(row.first + span.start, last)])
    return found


def over_turns(source: Any, rows: Iterable[HasTurns], turns: int) -> list[float]:
    """Sum a tensor over the sampled tokens of each turn, in float64.

    Args:
        source: Tensor `[rows, columns]`.
        rows: Of one episode.
        turns: Number of its turns; one that is in no row is 0.
    """
    found = [0.0] * turns
    for row in rows:
        response = np.asarray(source[row.place, row.first :], np.float64)
        for span in row.spans:
            found[span.turn] = float(response[span.start : span.end].sum())
    return found


def turns_by_mask(mask: ArrayLike, rewards: ArrayLike) -> tuple[list[TurnSpan], list[float]]:
    """Find the turns of a row whose mask alone is known: the runs of ones.

    Args:
        mask: 1 on sampled tokens, `[response]`.
        rewards: Of each token, `[response]`.

    Returns:
        The turns, and the reward of each: all from its first token to the next turn's.
    """
    steps = np.diff(np.asarray(mask, np.int64), prepend=0, append=0)
    starts, ends = np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist()
    spans = [TurnSpan(k, *pair) for k, pair in enumerate(zip(starts, ends, strict=True))]
    per_token, cuts = np.asarray(rewards, np.float64), [*starts, len(steps)]
    return spans, [float(per_token[a:b].sum()) for a, b in pairwise(cuts)]


def split_turns(row: TrainingRow) -> list[TrainingRow]:
    """Cut a row into one row per turn; what came before a turn becomes its prompt."""
    parts = []
    for span in row.spans:
        cut = slice(span.start, span.end)
        parts.append(
            TrainingRow(
                prompt_ids=row.prompt_ids + row.response_ids[: span.start],
                response_ids=row.response_ids[cut],
                mask=row.mask[cut],
                logprobs=None if row.logprobs is None else row.logprobs[cut],
                spans=[TurnSpan(span.turn, 0, span.end - span.start)],
            )
        )
    return parts


@dataclass
class PlacedRow:
    """A training row and where the trainer keeps it."""

    place: int
    """Row of the tensors."""
    tokens: TrainingRow | PackedRow
    episode: int = 0
    """Index of the episode in the batch."""

    @property
    def first(self) -> int:
        """Column of the response's first token."""
        return len(self.tokens.prompt_ids) - 1

    @property
    def spans(self) -> list[TurnSpan]:
        """The turns of this row, in order."""
        return self.tokens.spans

    @property
    def columns(self) -> slice:
        """Columns that are about the response."""
        return slice(self.first, self.first + len(self.tokens.response_ids))

    @property
    def turns(self) -> list[int]:
        """The turn of each token that the policy sampled."""
        return [span.turn for span in self.spans for _ in range(span.start, span.end)]

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return int(np.sum(self.tokens.mask))

    def padded(self, values: Sequence[float] | NDArray[Any]) -> NDArray[np.float32]:
        """Return values of the response's tokens with 0 on the prompt's columns, `[tokens - 1]`."""
        return np.concatenate([np.zeros(self.first, np.float32), np.asarray(values, np.float32)])

    def check(self, ids: ArrayLike, mask: ArrayLike, name: str) -> None:
        """Make sure that the trainer holds exactly the tokens that were sampled.

        Args:
            ids: The trainer's tokens of this row, without padding.
            mask: What the loss counts, an entry a column; columns after the row are 0.
            name: What the message calls the row.

        Raises:
            RolloutError: It does not.
        """
        wanted, found, marks = np.asarray(self.tokens.ids), np.asarray(ids), np.asarray(mask)
        spans = [(self.first + span.start, self.first + span.end) for span in self.spans]
        # numpy's cheapest calls for short rows, of which there may be many.
        count = np.count_nonzero
        same = found.shape == wanted.shape and count(found == wanted) == len(wanted)
        same = same and count(marks) == sum(end - start for start, end in spans)
        if not (same and all(count(marks[a:b] == 1) == b - a for a, b in spans)):
            raise RolloutError(f"{name} does not hold the tokens that were sampled")

    def trained(
        self,
        ids: ArrayLike,
        mask: ArrayLike,
        rewards: Sequence[float],
        advantages: Sequence[float],
    ) -> TrainedRow:
        """Return what the trainer trains on, for the record.

        Args:
            ids: The trainer's tokens of this row, without padding.
            mask: What the loss counts, of the response.
            rewards: Of the response's tokens; of a trainer that keeps none, those that its
                advantages were made of: `tokens.token_rewards(trajectory.rewards)`.
            advantages: Of the response's tokens.
        """
        start = len(self.tokens.prompt_ids)
        return TrainedRow(
            prompt_ids=np.asarray(ids)[:start].tolist(),
            response_ids=np.asarray(ids)[start:].tolist(),
            mask=np.asarray(mask, np.int64).tolist(),
            rewards=list(rewards),
            advantages=list(advantages),
        )


def placed_rows(trajectories: Iterable[Played], kind: type[RowT]) -> list[RowT]:
    """Return the rows of a batch in the order played, each at the place of its number.

    Args:
        trajectories: The batch; failed episodes have no rows.
        kind: `PlacedRow`, or a class that extends it by fields with defaults.
    """
    found: list[RowT] = []
    for episode, trajectory in enumerate(trajectories):
        for tokens in trajectory.training_rows():
            found.append(kind(len(found), tokens, episode))
    return found


@dataclass(frozen=True)
class PlacedEpisode:
    """An episode of a batch with its rows; a failed one has none."""

    trajectory: Played
    rows: list[PlacedRow]

    def write(self, target: Any, per_turn: Sequence[float]) -> None:
        """Put each turn's value on its sampled tokens of a tensor; see `write`."""
        write(target, self.rows, per_turn)

    def at_turns(self, source: Any) -> list[float]:
        """Read a tensor where each turn begins; see `at_turns`."""
        return at_turns(source, self.rows, len(self.trajectory.rewards))

    def over_turns(self, source: Any) -> list[float]:
        """Sum a tensor over the sampled tokens of each turn; see `over_turns`."""
        return over_turns(source, self.rows, len(self.trajectory.rewards))
