"""Trajectories, their training rows and metrics."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem.metrics import episode_metrics
from gem.testing.golden import golden_batch, golden_turn_rows
from gem.trajectory import Drift, Trajectory, turn_table


def test_an_append_only_episode_is_one_row() -> None:
    [row] = golden_batch()[0].sequences()
    assert row.prompt_ids == [3, 4, 5, 1]
    assert row.response_ids == [10, 11, 2, 3, 4, 5, 1, 12, 13, 14, 2, 3, 4, 5, 1, 15, 2]
    assert row.mask == [1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert [(s.turn, s.start, s.end) for s in row.spans] == [(0, 0, 3), (1, 7, 11), (2, 15, 17)]
    assert row.logprobs is not None
    assert row.logprobs[:4] == [-0.25, -0.375, -0.5, 0.0]
    assert row.token_rewards([0.5, 0.25, 1.0]) == [
        0, 0, 0.5, 0, 0, 0, 0, 0, 0, 0, 0.25, 0, 0, 0, 0, 0, 1.0,
    ]  # fmt: skip
    assert row.spread([1.0, 2.0, 3.0]) == [
        1, 1, 1, 0, 0, 0, 0, 2, 2, 2, 2, 0, 0, 0, 0, 3, 3,
    ]  # fmt: skip


def test_one_prompt_per_turn_is_one_row_per_turn() -> None:
    for whole, parts in zip(golden_batch(), golden_turn_rows(), strict=True):
        rows = parts.sequences()
        assert len(rows) == len(whole.turns)
        [row] = whole.sequences()
        spread = [x for r in rows for x in r.spread(range(len(rows)))]
        whole_row = row.spread(range(len(rows)))
        assert spread == [x for x, m in zip(whole_row, row.mask, strict=True) if m]
        last = rows[-1]
        assert last.prompt_ids + last.response_ids == row.prompt_ids + row.response_ids


def test_the_reward_of_an_empty_turn_is_not_lost() -> None:
    trajectory = golden_batch()[4]
    [row] = trajectory.sequences()
    rewards = row.token_rewards(trajectory.rewards)
    assert sum(rewards) == trajectory.total_reward
    empty = row.spans[1]
    assert empty.start == empty.end
    assert rewards[empty.start] == 0.25
    assert row.mask[empty.start] == 0


def test_an_empty_last_turn_pays_on_the_rows_last_token() -> None:
    trajectory = golden_batch()[4]
    trajectory.turns = trajectory.turns[:2]
    [row] = trajectory.sequences()
    assert row.token_rewards(trajectory.rewards)[-1] == 0.25
    alone = golden_batch()[4]
    alone.turns = [golden_turn_rows()[4].turns[1]]
    [row] = alone.sequences()
    assert row.response_ids == row.token_rewards([0.25]) == []


def test_missing_logprobs_make_the_row_have_none() -> None:
    trajectory = golden_batch()[0]
    fields = {**trajectory.turns[1].__dict__, "logprobs": None}
    trajectory.turns[1] = type(trajectory.turns[1])(**fields)
    [row] = trajectory.sequences()
    assert row.logprobs is None


@pytest.mark.parametrize("index", range(8))
def test_json_lines_read_back(index: int) -> None:
    trajectory = golden_batch()[index]
    trajectory.drift = [Drift("tokens", 1, 7)]
    trajectory.final_observation = "so long\u2028 \ud800 ü"
    line = trajectory.to_json()
    assert "\n" not in line
    line.encode("utf-8")
    assert Trajectory.from_json(line) == trajectory


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", '{"task": 3}'])
def test_other_text_is_refused(line: str) -> None:
    with pytest.raises(ConfigurationError, match="not a recorded trajectory"):
        Trajectory.from_json(line)


def test_the_turn_table_marks_failed_episodes() -> None:
    batch = golden_batch()
    table = turn_table(batch)
    assert table.lengths.tolist() == [3, 2, 1, 3, 3, 2, 4, 2]
    assert table.valid.tolist() == [True] * 18 + [False] * 2
    assert table.split(table.reward) == [t.rewards for t in batch]
    assert sorted(set(table.group.tolist())) == [0, 1, 2, 3]


def test_metrics_count_failures_and_leave_them_out() -> None:
    batch = golden_batch()
    batch[0].drift = [Drift("text", 0, 1)]
    m = episode_metrics(batch)
    assert (m["episodes"], m["failed_episodes"]) == (7, 1)
    assert m["success_rate"] == pytest.approx(3 / 7)
    totals = [1.0, 0.15, 1.0, 0.625, 1.75, 0.0, 0.0]
    assert m["return_mean"] == pytest.approx(sum(totals) / 7)
    mean = sum(totals) / 7
    assert m["return_std"] == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in totals) / 7))
    assert (m["turns_total"], m["turns_mean"]) == (18, 18 / 7)
    assert m["truncated_rate"] == pytest.approx(3 / 7)
    assert m["length_stop_rate"] == pytest.approx(3 / 18)
    assert m["drift_rate"] == pytest.approx(1 / 7)
    assert m["sampled_tokens"] == sum(len(t.response_ids) for e in batch[:7] for t in e.turns)
    lost = episode_metrics(batch[7:])
    assert lost == {
        "episodes": 0, "failed_episodes": 1, "turns_total": 0, "sampled_tokens": 0,
    }  # fmt: skip


def test_the_turns_of_a_trajectory_are_plain_json() -> None:
    data: dict[str, Any] = json.loads(golden_batch()[0].to_json())
    assert data["turns"][0]["response_ids"] == [10, 11, 2]
