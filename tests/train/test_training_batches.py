"""How a batch is cut into optimiser steps and forward passes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem_train.batches import chunks, minibatches


@dataclass(frozen=True)
class Row:
    episode: int
    ids: tuple[int, ...]


ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), max_size=25).map(
    lambda rows: [Row(episode, (0,) * length) for episode, length in sorted(rows)]
)


@given(ROWS, st.integers(1, 12))
def test_minibatches_are_runs_of_whole_consecutive_episodes(rows: list[Row], parts: int) -> None:
    found = minibatches(rows, parts)
    assert len(found) == parts
    assert [row for part in found for row in part] == rows
    owners = [{row.episode for row in part} for part in found]
    assert sum(map(len, owners)) == len({row.episode for row in rows})  # none is cut
    sizes = [len(each) for each in owners]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("episodes", "sizes"), [(4, [1, 1, 2]), (6, [2, 2, 2]), (2, [0, 1, 1])])
def test_where_minibatches_are_cut(episodes: int, sizes: list[int]) -> None:
    rows = [Row(3 * i, (0,)) for i in range(episodes)]  # episodes that count need not be all
    assert [len(part) for part in minibatches(rows, 3)] == sizes


def test_a_group_may_fall_into_two_minibatches() -> None:
    found = minibatches([Row(i, (0,)) for i in range(8)], 3)  # groups of four: 0-3 and 4-7
    assert [[row.episode for row in part] for part in found] == [[0, 1], [2, 3, 4], [5, 6, 7]]


@given(ROWS, st.integers(1, 120))
def test_chunks_hold_at_most_so_many_tokens_and_as_many_as_fit(rows: list[Row], most: int) -> None:
    found = list(chunks(rows, most))
    assert [row for chunk in found for row in chunk] == rows

    def size(chunk: list[Row]) -> int:
        return len(chunk) * max(len(row.ids) for row in chunk)

    assert all(len(chunk) == 1 or size(chunk) <= most for chunk in found)
    for chunk, after in pairwise(found):
        assert size([*chunk, after[0]]) > most
