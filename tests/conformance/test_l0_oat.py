"""Level L0 for oat: golden trajectories become rows on one rank and on several, bit for bit."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("oat") is None:
    pytest.skip("needs the oat environment: make env-oat", allow_module_level=True)

import torch

from gem import advantage
from gem.advantage import ADVANTAGES, advantages
from gem.testing.golden import golden_batch, golden_turn_rows
from gem.trajectory import Sequence as TokenRow
from gem.trajectory import Trajectory, turn_table
from gem_oat import advantage as ours
from gem_oat.advantage import Row, give_advantages, make_rows

GAMMA, LAM = 0.9, 0.8
RANKS = {1: (0, 8), 2: (0, 4, 8), 3: (0, 2, 3, 8)}
"""Where a batch of eight episodes is cut."""


def critic(episode: int, turn: int) -> float:
    return 0.125 * episode - 0.25 * turn


def on_ranks(batch: list[Trajectory], name: str, cuts: Sequence[int], gamma: float) -> list[Row]:
    """The rows of a batch of which every rank has a part, in order."""
    bounds = list(itertools.pairwise(cuts))
    parts = [batch[a:b] for a, b in bounds]
    rows = [make_rows(part) for part in parts]
    for (first, _), mine in zip(bounds, rows, strict=True):
        for row in mine:
            values = [critic(first + row.episode, turn) for turn, _ in row.states]
            row.values = torch.tensor(values) if name == "gae" else None

    def give(rank: int, gather: ours.Gather) -> None:
        give_advantages(
            parts[rank],
            rows[rank],
            name,
            gamma=gamma,
            lam=LAM,
            max_failed_fraction=1.0,
            gather=gather,
            rank=rank,
        )

    sent: list[Any] = []

    def send(mine: Any) -> list[Any]:
        sent.append(mine)
        raise _SentError

    for rank in range(len(parts)):
        with pytest.raises(_SentError):
            give(rank, send)
    for rank in range(len(parts)):
        give(rank, lambda mine: sent)
    return [row for mine in rows for row in mine]


class _SentError(Exception):
    """A rank has told the others, and would now wait for them."""


def expected(batch: list[Trajectory], name: str) -> list[list[float]]:
    """`gem.advantage` on the trajectories, spread by their own rows, as float32."""
    values = [[critic(e, k) for k in range(len(t.turns))] for e, t in enumerate(batch)]
    per_turn, _ = advantages(name, turn_table(batch, values), gamma=GAMMA, lam=LAM)
    out = []
    for trajectory, split in zip(batch, turn_table(batch).split(per_turn), strict=True):
        for row in trajectory.sequences() if trajectory.valid else []:
            tokens = [0.0] * (len(row.prompt_ids) - 1) + row.spread(split)
            out.append(np.asarray(tokens, np.float32).tolist())
    return out


def same(rows: list[Row], wanted: list[list[float]]) -> bool:
    return [row.advantages.tolist() for row in rows] == wanted


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("batch", [golden_batch, golden_turn_rows])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_oat_gets_gems_advantages(
    name: str, batch: Callable[[], list[Trajectory]], ranks: int
) -> None:
    wanted = expected(batch(), name)
    assert any(any(row) for row in wanted)
    rows = on_ranks(batch(), name, RANKS[ranks], GAMMA)
    assert all(row.advantages.dtype == torch.float32 for row in rows)
    assert same(rows, wanted)


def _ddof(patch: pytest.MonkeyPatch) -> float:
    def unbiased(x: Any, valid: Any, all_reduce: Any) -> Any:
        result = np.zeros_like(x)
        result[valid] = (x[valid] - x[valid].mean()) / x[valid].std(ddof=1)
        return result

    patch.setattr(advantage, "_normalise", unbiased)
    return GAMMA


def _shift(patch: pytest.MonkeyPatch) -> float:
    original = TokenRow.spread

    def shifted(row: TokenRow, per_turn: Any) -> list[float]:
        return [0.0, *original(row, per_turn)[:-1]]

    patch.setattr(TokenRow, "spread", shifted)
    return GAMMA


def _last_turn(patch: pytest.MonkeyPatch) -> float:
    def last(trajectory: Trajectory) -> list[float]:
        total = sum(turn.reward for turn in trajectory.turns)
        return [0.0] * (len(trajectory.turns) - 1) + [total]

    patch.setattr(Trajectory, "rewards", property(last))
    return GAMMA


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], float]] = {
    "gamma": lambda patch: 1.0,
    "unbiased standard deviation": _ddof,
    "advantages shifted by one token": _shift,
    "all reward in the last turn": _last_turn,
}


@pytest.mark.parametrize("broken", BREAKS)
def test_the_comparison_notices(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected(golden_batch(), "rebn")
    gamma = BREAKS[broken](monkeypatch)
    assert not same(on_ranks(golden_batch(), "rebn", RANKS[2], gamma), wanted)


@pytest.mark.parametrize("name", ["rebn", "grpo", "rloo"])
def test_statistics_of_each_rank_alone_are_noticed(name: str) -> None:
    """What a rank makes of its own turns, where it cuts a group in two, is something else."""
    wanted = expected(golden_batch(), name)
    alone = []
    for first, end in ((0, 3), (3, 8)):
        part = golden_batch()[first:end]
        rows = make_rows(part)
        give_advantages(part, rows, name, gamma=GAMMA, lam=LAM, max_failed_fraction=1.0)
        alone += rows
    assert not same(alone, wanted)
    assert same(on_ranks(golden_batch(), name, (0, 3, 8), GAMMA), wanted)
