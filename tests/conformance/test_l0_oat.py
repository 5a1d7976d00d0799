"""Level L0 for oat: golden trajectories become rows on one rank and on several, bit for bit."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from golden_rows import DEFECTS, GAMMA, LAM, critic, expected, same

if importlib.util.find_spec("oat") is None:
    pytest.skip("needs the oat environment: make env-oat", allow_module_level=True)

import torch

from gem.advantage import ADVANTAGES
from gem.testing.golden import golden_batch, golden_turn_rows
from gem.trajectory import Trajectory
from gem_oat import advantage as ours
from gem_oat.advantage import Row, give_advantages, make_rows

RANKS = {1: (0, 8), 2: (0, 4, 8), 3: (0, 2, 3, 8)}
"""Where a batch of eight episodes is cut."""


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


def given(rows: list[Row]) -> list[list[float]]:
    return [row.advantages.tolist() for row in rows]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("batch", [golden_batch, golden_turn_rows])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_oat_gets_gems_advantages(
    name: str, batch: Callable[[], list[Trajectory]], ranks: int
) -> None:
    wanted = expected(name, batch())
    assert any(any(row) for row in wanted)
    rows = on_ranks(batch(), name, RANKS[ranks], GAMMA)
    assert all(row.advantages.dtype == torch.float32 for row in rows)
    assert same(given(rows), wanted)


@pytest.mark.parametrize("broken", DEFECTS)
def test_a_defect_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected("rebn", golden_batch())
    DEFECTS[broken](monkeypatch)
    assert not same(given(on_ranks(golden_batch(), "rebn", RANKS[2], GAMMA)), wanted)


def test_another_discount_is_noticed() -> None:
    wanted = expected("rebn", golden_batch())
    assert not same(given(on_ranks(golden_batch(), "rebn", RANKS[2], 1.0)), wanted)


@pytest.mark.parametrize("name", ["rebn", "grpo", "rloo"])
def test_statistics_of_each_rank_alone_are_noticed(name: str) -> None:
    """What a rank makes of its own turns, where it cuts a group in two, is something else."""
    wanted = expected(name, golden_batch())
    alone = []
    for first, end in ((0, 3), (3, 8)):
        part = golden_batch()[first:end]
        rows = make_rows(part)
        give_advantages(part, rows, name, gamma=GAMMA, lam=LAM, max_failed_fraction=1.0)
        alone += rows
    assert not same(given(alone), wanted)
    assert same(given(on_ranks(golden_batch(), name, (0, 3, 8), GAMMA)), wanted)
