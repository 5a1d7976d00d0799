"""Training rows inside a trainer's tensors: write, read and sum values by turn; check the tokens.

Tensors are `[rows, columns]`, torch's or numpy's, with a column for every token but the first:
column c is about token c + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gem.errors import RolloutError
from gem.training.record import TrainedRow
from gem.trajectory import TrainingRow, Trajectory


@dataclass(frozen=True)
class PlacedRow:
    """A training row and where the trainer keeps it."""

    place: int
    """Row of the tensors."""
    tokens: TrainingRow

    @property
    def columns(self) -> slice:
        """Columns that are about the response."""
        first = len(self.tokens.prompt_ids) - 1
        return slice(first, first + len(self.tokens.response_ids))

    def write(self, target: Any, per_turn: Sequence[float]) -> None:
        """Put each turn's value on its sampled tokens, and 0 on the response's other tokens.

        Args:
            target: Tensor `[rows, columns]`.
            per_turn: One value for each turn of the whole episode.
        """
        values = self.tokens.spread(per_turn)
        target[self.place, self.columns] = getattr(target, "new_tensor", np.asarray)(values)

    def check(self, ids: Sequence[int], mask: Sequence[int], name: str) -> None:
        """Make sure that the trainer holds exactly the tokens that were sampled.

        Args:
            ids: The trainer's tokens of this row, without padding.
            mask: What the loss counts, an entry a column; columns after the row are 0.
            name: What the message calls the row.

        Raises:
            RolloutError: It does not.
        """
        wanted = [0] * self.columns.start + self.tokens.mask
        wanted += [0] * (len(mask) - len(wanted))
        if list(ids) != self.tokens.ids or list(mask) != wanted:
            raise RolloutError(f"{name} does not hold the tokens that were sampled")

    def trained(
        self,
        ids: Sequence[int],
        mask: Sequence[float],
        rewards: Sequence[float],
        advantages: Sequence[float],
    ) -> TrainedRow:
        """Return what the trainer trains on, for the record.

        Args:
            ids: The trainer's tokens of this row, without padding.
            mask: What the loss counts, of the response.
            rewards: Of the response's tokens.
            advantages: Of the response's tokens.
        """
        start = len(self.tokens.prompt_ids)
        return TrainedRow(
            prompt_ids=list(ids[:start]),
            response_ids=list(ids[start:]),
            mask=[int(m) for m in mask],
            rewards=list(rewards),
            advantages=list(advantages),
        )


@dataclass(frozen=True)
class PlacedEpisode:
    """An episode of a batch with its rows; a failed one has none."""

    trajectory: Trajectory
    rows: list[PlacedRow]

    def write(self, target: Any, per_turn: Sequence[float]) -> None:
        """Put each turn's value on its sampled tokens of a tensor `[rows, columns]`."""
        for row in self.rows:
            row.write(target, per_turn)

    def at_turns(self, source: Any) -> list[float]:
        """Read a tensor `[rows, columns]` where each turn begins.

        Of a critic's values this is the one at the last token before the turn: when the policy is
        about to act.
        """
        found = [0.0] * len(self.trajectory.turns)
        last = source.shape[1] - 1  # A turn without tokens may begin where the row ends.
        for row in self.rows:
            for span in row.tokens.spans:
                column = min(row.columns.start + span.start, last)
                found[span.turn] = float(source[row.place, column])
        return found

    def over_turns(self, source: Any) -> list[float]:
        """Sum a tensor `[rows, columns]` over the sampled tokens of each turn, in float64."""
        found = [0.0] * len(self.trajectory.turns)
        for row in self.rows:
            response = np.asarray(source[row.place, row.columns], np.float64)
            for span in row.tokens.spans:
                found[span.turn] = float(response[span.start : span.end].sum())
        return found
