"""Level L0 for oat: golden trajectories become rows on one rank and on several, bit for bit."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

if importlib.util.find_spec("oat") is None:
    pytest.skip("needs the oat environment: make env-oat", allow_module_level=True)

import torch

from gem.trajectory import Trajectory
from gem_oat.advantage import Gather, Row, give_advantages, trained_rows
from gem_train.experiment.estimate import turn_advantages
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.packed import PackedTrajectory
from gem_train.rows import placed_rows
from gem_train.testing.conformance import L0Suite, Rows, critic, difference
from gem_train.testing.golden import golden_batch

RANKS = {1: (0, 8), 2: (0, 4, 8), 3: (0, 2, 3, 8)}
"""Where a batch of eight episodes is cut."""


def on_ranks(batch: list[Trajectory], algorithm: AlgorithmPart, cuts: Sequence[int]) -> Rows:
    """The rows of a batch of which every rank has a part, in order."""
    bounds = list(itertools.pairwise(cuts))
    parts = [batch[a:b] for a, b in bounds]
    rows = [placed_rows(part, Row) for part in parts]
    for (first, _), mine in zip(bounds, rows, strict=True):
        for row in mine:
            values = [critic(first + row.episode, span.turn) for span in row.spans]
            row.values = torch.tensor(values)

    how = {"gamma": algorithm.gamma, "lam": algorithm.lam}

    def give(rank: int, gather: Gather) -> None:
        give_advantages(
            [PackedTrajectory.of(trajectory) for trajectory in parts[rank]],
            rows[rank],
            partial(turn_advantages, algorithm.advantage, shaping=algorithm, **how),
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
    for row in itertools.chain(*rows):
        assert row.advantages.dtype == torch.float32
        assert not row.advantages[: len(row.tokens.prompt_ids) - 1].any()
    return [shown for pair in zip(parts, rows, strict=True) for shown in trained_rows(*pair)]


class _SentError(Exception):
    """A rank has told the others, and would now wait for them."""


class TestOat(L0Suite):
    @pytest.fixture(autouse=True, params=RANKS, ids="{} ranks".format)
    def on(self, request: pytest.FixtureRequest) -> None:
        self.cuts = RANKS[request.param]

    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        return on_ranks(batch, algorithm, self.cuts)


@pytest.mark.parametrize("name", ["rebn", "grpo", "rloo"])
def test_statistics_of_each_rank_alone_are_noticed(name: str) -> None:
    """What a rank makes of its own turns, where it cuts a group in two, is something else."""
    algorithm = AlgorithmPart(advantage=name, gamma=0.9)
    batch = golden_batch()
    alone = on_ranks(batch[:3], algorithm, (0, 3)) + on_ranks(batch[3:], algorithm, (0, 5))
    assert difference(alone, batch, algorithm)
    assert not difference(on_ranks(batch, algorithm, (0, 3, 8)), batch, algorithm)
