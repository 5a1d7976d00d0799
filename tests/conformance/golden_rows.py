"""What level L0 compares trainers with on golden trajectories, and defects that it must notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gem import advantage
from gem.advantage import advantages
from gem.trajectory import TrainingRow, Trajectory, turn_table

GAMMA, LAM = 0.9, 0.8


def critic(episode: int, turn: int) -> float:
    """The value of a state, the same for everyone."""
    return 0.125 * episode - 0.25 * turn


def per_turn(name: str, batch: Sequence[Trajectory]) -> list[Any]:
    """`gem.advantage` on the trajectories: one array `[turns]` each."""
    values = [[critic(e, k) for k in range(len(t.turns))] for e, t in enumerate(batch)]
    table = turn_table(batch, values)
    return table.split(advantages(name, table, gamma=GAMMA, lam=LAM)[0])


def expected(name: str, batch: Sequence[Trajectory]) -> list[list[float]]:
    """The advantages as float32, a list for each row of a valid episode.

    The first belongs to the second token of the prompt, which is the first that is predicted.
    """
    out = []
    for trajectory, split in zip(batch, per_turn(name, batch), strict=True):
        for row in trajectory.training_rows():
            tokens = [0.0] * (len(row.prompt_ids) - 1) + row.spread(split)
            out.append(np.asarray(tokens, np.float32).tolist())
    return out


def same(found: Sequence[list[float]], wanted: Sequence[list[float]]) -> bool:
    """Whether rows agree to the last bit; what lies beyond a row must be 0."""
    return all(
        row[: len(tokens)] == tokens and not any(row[len(tokens) :])
        for row, tokens in zip(found, wanted, strict=True)
    )


def unbiased_deviation(patch: pytest.MonkeyPatch) -> None:
    """The sample's standard deviation instead of the population's."""

    def unbiased(x: Any, valid: Any, all_reduce: Any) -> Any:
        result = np.zeros_like(x)
        result[valid] = (x[valid] - x[valid].mean()) / x[valid].std(ddof=1)
        return result

    patch.setattr(advantage, "_normalise", unbiased)


def shifted_advantages(patch: pytest.MonkeyPatch) -> None:
    """Every advantage at the token after its own."""
    original = TrainingRow.spread

    def shifted(row: TrainingRow, values: Any) -> list[float]:
        return [0.0, *original(row, values)[:-1]]

    patch.setattr(TrainingRow, "spread", shifted)


def rewards_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """All rewards of an episode in its last turn."""

    def last(trajectory: Trajectory) -> list[float]:
        total = sum(turn.reward for turn in trajectory.turns)
        return [0.0] * (len(trajectory.turns) - 1) + [total]

    patch.setattr(Trajectory, "rewards", property(last))


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "unbiased standard deviation": unbiased_deviation,
    "advantages shifted by one token": shifted_advantages,
    "all reward in the last turn": rewards_at_the_end,
}
"""By name; what applies them to whoever calls `gem` from here on."""
