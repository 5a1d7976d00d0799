"""Advantages over all ranks: the same numbers however a batch is divided."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from gem.advantage import gae
from gem.errors import RolloutError
from gem.estimators import BUILT_IN
from gem.trajectory import Failure, Trajectory, turn_table
from gem_oat.advantage import Gather, Row, give_advantages, trained_rows
from gem_train.experiment.estimate import turn_advantages
from gem_train.packed import PackedTrajectory
from gem_train.rows import placed_rows
from gem_train.testing.golden import golden_batch, golden_turn_rows

GAMMA, LAM = 0.9, 0.8


def critic(episode: int, turn: int) -> float:
    return 0.125 * episode - 0.25 * turn


def divided(batch: Sequence[Trajectory], name: str, cuts: Sequence[int]) -> list[Row]:
    """Rows of a batch that lies on several ranks, `cuts` its boundaries; numbered as a whole."""
    bounds = list(itertools.pairwise(cuts))
    parts = [list(batch[a:b]) for a, b in bounds]
    rows = [placed_rows(part, Row) for part in parts]
    if name == "gae":
        for (first, _), part in zip(bounds, rows, strict=True):
            for row in part:
                values = [critic(first + row.episode, span.turn) for span in row.spans]
                row.values = torch.tensor(values)
    sent: list[Any] = []

    def note(mine: Any) -> list[Any]:
        sent.append(mine)
        raise StopIteration

    for part, mine in zip(parts, rows, strict=True):
        with pytest.raises(StopIteration):
            given(part, mine, name, note, 0)
    for rank, (part, mine) in enumerate(zip(parts, rows, strict=True)):
        given(part, mine, name, lambda _: list(sent), rank)
    for (first, _), part in zip(bounds, rows, strict=True):
        for row in part:
            row.episode += first
    return [row for part in rows for row in part]


def given(
    batch: Sequence[Trajectory], rows: Sequence[Row], name: str, gather: Gather, rank: int
) -> None:
    give_advantages(
        [PackedTrajectory.of(trajectory) for trajectory in batch],
        rows,
        partial(turn_advantages, name, gamma=GAMMA, lam=LAM),
        max_failed_fraction=0.5,
        gather=gather,
        rank=rank,
    )


@pytest.mark.parametrize("cuts", [(0, 8), (0, 4, 8), (0, 3, 8), (0, 1, 2, 5, 8), (0, 7, 8)])
@pytest.mark.parametrize("name", [n for n, each in BUILT_IN.items() if not each.keeps_state])
def test_a_batch_has_the_same_advantages_on_any_number_of_ranks(
    name: str, cuts: tuple[int, ...]
) -> None:
    whole, parts = divided(golden_batch(), name, (0, 8)), divided(golden_batch(), name, cuts)
    assert len(whole) == len(parts)
    for a, b in zip(whole, parts, strict=True):
        assert a.episode == b.episode
        assert torch.equal(a.advantages, b.advantages)
        assert torch.equal(a.targets, b.targets)


def test_statistics_of_a_rank_alone_would_be_others() -> None:
    whole = divided(golden_batch(), "rebn", (0, 8))
    alone = placed_rows(golden_batch()[:4], Row)
    given(golden_batch()[:4], alone, "rebn", lambda mine: [mine], 0)
    assert not torch.equal(whole[0].advantages, alone[0].advantages)


@pytest.mark.parametrize("batch", [golden_batch, golden_turn_rows])
def test_the_critics_targets_are_gems(batch: Any) -> None:
    episodes = batch()
    values = [[critic(e, k) for k in range(len(t.turns))] for e, t in enumerate(episodes)]
    table = turn_table(episodes, values)
    _, targets = gae(table, GAMMA, LAM)
    split = table.split(targets)
    for row in divided(episodes, "gae", (0, 5, 8)):
        wanted = [split[row.episode][span.turn] for span in row.spans]
        assert row.targets.tolist() == torch.tensor(wanted).float().tolist()


def test_a_state_is_the_last_token_before_its_turn() -> None:
    for row in placed_rows(golden_batch(), Row):
        for position, span in zip(row.places, row.spans, strict=True):
            if span.end > span.start:
                assert row.mask[position] == 1  # the next token is the turn's first
                assert position == 0 or row.mask[position - 1] == 0
                first = row.tokens.response_ids[span.start]
                assert row.ids[position + 1] == first


def test_failed_episodes_have_no_rows() -> None:
    batch = golden_batch()
    assert {row.episode for row in placed_rows(batch, Row)} == {
        e for e, trajectory in enumerate(batch) if trajectory.valid
    }


def test_failures_on_any_rank_stop_all_of_them_with_the_reason() -> None:
    batch = golden_batch()
    failed = replace(batch[0], failure=Failure("environment", "the sandbox burns", 2))
    void = PackedTrajectory.of(failed)
    with pytest.raises(RolloutError, match="2 of 2 episodes .* environment 2 .the sandbox burns"):
        rebn = partial(turn_advantages, "rebn", gamma=1, lam=1)
        give_advantages([void, void], [], rebn, max_failed_fraction=0.1)


def test_a_rank_without_a_valid_episode_takes_part() -> None:
    batch = golden_batch()
    [failed] = [i for i, t in enumerate(batch) if not t.valid]
    assert failed == 7
    rows = divided(batch, "gae", (0, 7, 8))
    assert {row.episode for row in rows} == set(range(7))


def test_what_is_shown_is_read_from_the_tensors() -> None:
    batch = golden_batch()
    rows = divided(batch, "rebn", (0, 8))
    rows[0].advantages += 1.0
    rows[1].ids[0] = 99
    shown = trained_rows(batch, rows)
    assert shown[0][0].advantages == rows[0].advantages[len(shown[0][0].prompt_ids) - 1 :].tolist()
    assert shown[1][0].prompt_ids[0] == 99
    assert shown[7] == []
