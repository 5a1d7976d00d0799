"""Rows in a trainer's tensors: values by turn written, read and summed; tokens checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gem.errors import RolloutError
from gem.trajectory import Trajectory
from gem_train.rows import PlacedEpisode, PlacedRow, placed_rows, split_turns, write_all
from gem_train.testing.golden import golden_batch, golden_turn_rows

EPISODES = [t for t in (*golden_batch(), *golden_turn_rows()) if t.valid]


def placed(trajectory: Trajectory, first: int = 1) -> tuple[PlacedEpisode, Any]:
    """The rows of an episode from row `first` on, and a tensor that has room for them."""
    rows = [PlacedRow(first + i, row) for i, row in enumerate(trajectory.training_rows())]
    width = max((len(row.tokens.ids) for row in rows), default=2) + 2
    return PlacedEpisode(trajectory, rows), np.full((first + len(rows) + 1, width), np.nan)


@pytest.mark.parametrize("trajectory", EPISODES, ids=lambda t: str(t.task.seed))
def test_what_is_written_by_turn_is_on_the_sampled_tokens(trajectory: Trajectory) -> None:
    episode, tensor = placed(trajectory)
    values = [float(10 + k) for k in range(len(trajectory.turns))]
    episode.write(tensor, values)
    for row in episode.rows:
        # Column c is about token c + 1.
        seen = dict(zip(range(1, tensor.shape[1] + 1), tensor[row.place], strict=True))
        start = len(row.tokens.prompt_ids)
        for position in range(len(row.tokens.ids)):
            turn = [s.turn for s in row.tokens.spans if s.start <= position - start < s.end]
            if turn:
                assert seen[position] == values[turn[0]]
            elif position > 0:
                assert np.isnan(seen[position])
        assert np.isnan(tensor[row.place, : start - 1]).all()
        assert np.isnan(tensor[row.place, len(row.tokens.ids) - 1 :]).all()
    assert np.isnan(tensor[0]).all()


def test_the_values_of_a_batch_are_written_as_those_of_its_episodes() -> None:
    batch = golden_turn_rows()
    rows = placed_rows(batch, PlacedRow)
    episodes = [
        PlacedEpisode(trajectory, [row for row in rows if row.episode == number])
        for number, trajectory in enumerate(batch)
    ]
    per_turn = [[100.0 * e + k for k in range(len(t.turns))] for e, t in enumerate(batch, 1)]
    shape = len(rows), max(len(row.tokens.ids) for row in rows)
    wanted = np.zeros(shape)
    for episode, of_turns in zip(episodes, per_turn, strict=True):
        episode.write(wanted, of_turns)
    assert len({*wanted.flat}) > len(batch)
    assert np.array_equal(write_all(np.zeros(shape), episodes, per_turn), wanted)


@pytest.mark.parametrize("trajectory", EPISODES, ids=lambda t: str(t.task.seed))
def test_turns_are_read_at_their_first_token_and_summed_over_all(trajectory: Trajectory) -> None:
    episode, tensor = placed(trajectory)
    tensor[:] = np.arange(tensor.size).reshape(tensor.shape)
    at, over = episode.at_turns(tensor), episode.over_turns(tensor)
    for row in episode.rows:
        for (turn, before), span in zip(row.tokens.states, row.tokens.spans, strict=True):
            # The value at the last token before the turn stands in the column of the next one.
            assert at[turn] == tensor[row.place, before]
            columns = range(before, before + span.end - span.start)
            assert over[turn] == sum(tensor[row.place, c] for c in columns)


def test_other_tokens_or_another_mask_are_noticed() -> None:
    [row] = placed(golden_batch()[0])[0].rows
    ids, mask = row.tokens.ids, [0] * row.columns.start + row.tokens.mask + [0, 0]
    row.check(ids, mask, "row 1")
    for bad_ids, bad_mask in (
        ([*ids[:-1], ids[-1] + 1], mask),
        ([*ids, 0], mask),
        (ids, [1, *mask[1:]]),
        (ids, [*mask[:-1], 1]),
        (ids, mask[1:]),
        (ids, [2 * counted for counted in mask]),
    ):
        with pytest.raises(RolloutError, match="row 1 does not hold the tokens"):
            row.check(bad_ids, bad_mask, "row 1")


@pytest.mark.parametrize("trajectory", EPISODES, ids=lambda t: str(t.task.seed))
def test_a_row_is_cut_into_a_row_per_turn(trajectory: Trajectory) -> None:
    for row in trajectory.training_rows():
        parts = split_turns(row)
        assert [part.spans[0].turn for part in parts] == [span.turn for span in row.spans]
        for part, span in zip(parts, row.spans, strict=True):
            [own] = part.spans
            assert (own.start, own.end) == (0, len(part.response_ids))
            assert part.ids == row.ids[: len(row.prompt_ids) + span.end]
            assert part.mask == [1] * len(part.response_ids)
            if row.logprobs is None:
                assert part.logprobs is None
            else:
                assert part.logprobs == row.logprobs[span.start : span.end]


def test_a_failed_episode_has_no_rows() -> None:
    [failed] = [t for t in golden_batch() if not t.valid]
    episode, tensor = placed(failed)
    episode.write(tensor, [1.0] * len(failed.turns))
    assert np.isnan(tensor).all() and episode.rows == []
    assert episode.over_turns(tensor) == [0.0] * len(failed.turns)
    # No estimator takes NaN for the value of a turn that counts.
    assert np.isnan(episode.at_turns(tensor)).all()
