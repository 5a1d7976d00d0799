"""Trajectories, their training rows and metrics."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gem.contract import scalars, succeeded
from gem.errors import ConfigurationError
from gem.trajectory import Drift, Trajectory, turn_table
from gem_train.experiment.metrics import episode_metrics
from gem_train.record import EPISODES, Recorder
from gem_train.testing.golden import golden_batch, golden_turn_rows


def test_an_append_only_episode_is_one_row() -> None:
    [row] = golden_batch()[0].training_rows()
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
        rows = parts.training_rows()
        if not whole.valid:
            assert rows == whole.training_rows() == []
            continue
        assert len(rows) == len(whole.turns)
        [row] = whole.training_rows()
        spread = [x for r in rows for x in r.spread(range(len(rows)))]
        whole_row = row.spread(range(len(rows)))
        assert spread == [x for x, m in zip(whole_row, row.mask, strict=True) if m]
        last = rows[-1]
        assert last.prompt_ids + last.response_ids == row.prompt_ids + row.response_ids


def test_the_reward_of_an_empty_turn_is_not_lost() -> None:
    trajectory = golden_batch()[4]
    [row] = trajectory.training_rows()
    rewards = row.token_rewards(trajectory.rewards)
    assert sum(rewards) == trajectory.total_reward
    empty = row.spans[1]
    assert empty.start == empty.end
    assert rewards[empty.start] == 0.25
    assert row.mask[empty.start] == 0


def test_an_empty_last_turn_pays_on_the_rows_last_token() -> None:
    trajectory = golden_batch()[4]
    trajectory.turns = trajectory.turns[:2]
    [row] = trajectory.training_rows()
    assert row.token_rewards(trajectory.rewards)[-1] == 0.25
    alone = golden_batch()[4]
    alone.turns = [golden_turn_rows()[4].turns[1]]
    [row] = alone.training_rows()
    assert row.response_ids == row.token_rewards([0.25]) == []
    assert row.reward_left([0.25]) == 0.25


@pytest.mark.parametrize("index", range(8))
def test_what_tokens_are_paid_and_what_is_left_is_the_sum_of_the_rewards(index: int) -> None:
    for trajectory in (golden_batch()[index], golden_turn_rows()[index]):
        paid = 0.0
        for row in trajectory.training_rows():
            left = row.reward_left(trajectory.rewards)
            assert left == 0 or not row.response_ids
            paid += left + sum(row.token_rewards(trajectory.rewards))
        assert paid == pytest.approx(trajectory.total_reward if trajectory.valid else 0.0)


def test_missing_logprobs_make_the_row_have_none() -> None:
    trajectory = golden_batch()[0]
    fields = {**trajectory.turns[1].__dict__, "logprobs": None}
    trajectory.turns[1] = type(trajectory.turns[1])(**fields)
    [row] = trajectory.training_rows()
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


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    trajectory = golden_batch()[0]
    first = replace(
        trajectory.turns[0],
        info={"distance": math.nan, "ratio": -math.inf, "steps": 3},
        logprobs=[-math.inf, *trajectory.turns[0].logprobs[1:]],
    )
    trajectory.turns[0] = first
    Recorder(tmp_path).episodes(0, [trajectory])
    for line in (trajectory.to_json(), (tmp_path / EPISODES).read_text()):
        assert "NaN" not in line and "Infinity" not in line
    read = Trajectory.from_json(trajectory.to_json()).turns[0]
    assert read.info == {"distance": None, "ratio": None, "steps": 3}
    assert read.logprobs is not None and math.isnan(read.logprobs[0])
    assert read.logprobs[1:] == first.logprobs[1:]


def test_records_with_nan_stay_readable_and_unknown_failures_are_refused() -> None:
    trajectory = golden_batch()[7]
    data = trajectory.to_dict()
    data["turns"][0]["info"]["distance"] = math.nan
    assert math.isnan(Trajectory.from_json(json.dumps(data)).turns[0].info["distance"])
    for wrong in ({"kind": "infra"}, {"cause": "else"}, {"cause": "tool", "by": 1}, {}):
        data["failure"] = {"message": "gone", "attempts": 2, **wrong}
        with pytest.raises(ConfigurationError, match="not a recorded trajectory"):
            Trajectory.from_dict(data)


@pytest.mark.parametrize(
    ("reward", "terminated", "info", "won"),
    [
        (1.0, True, {}, True),
        (1.0, False, {}, False),
        (0.0, True, {}, False),
        (-1.0, True, {"success": True}, True),
        (1.0, True, {"success": False}, False),
        (1.0, True, {"success": False, "correct": True}, False),
        (0.0, False, {"correct": True}, True),
        (1.0, True, {"success": None, "correct": None}, True),
    ],
)
def test_success_is_what_the_info_says_or_a_task_that_ended_with_a_reward(
    reward: float, terminated: bool, info: dict[str, Any], won: bool
) -> None:
    assert succeeded(reward, terminated, info) is won
    trajectory = golden_batch()[0]
    trajectory.turns[-1] = replace(
        trajectory.turns[-1], reward=reward, terminated=terminated, truncated=False, info=info
    )
    assert trajectory.success is won
    assert episode_metrics([trajectory])["success_rate"] == won


def test_records_of_other_types_are_refused() -> None:
    data = golden_batch()[0].to_dict()
    for seed in (3.7, "3", None):
        with pytest.raises(ConfigurationError, match="not a recorded trajectory"):
            Trajectory.from_dict({**data, "task": {**data["task"], "seed": seed}})
    for turns in ([3], ["turn"], None):
        with pytest.raises(ConfigurationError, match="not a recorded trajectory"):
            Trajectory.from_dict({**data, "turns": turns})


def test_an_integer_that_json_readers_refuse_is_left_out_of_infos() -> None:
    assert scalars({"large": 10**5000, "small": -(2**64), "text": "x"}) == {
        "small": -(2**64),
        "text": "x",
    }


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
    cut = [e for e in batch[:7] if e.length_stops or e.end == "token_budget"]
    assert m["overlong_rate"] == len(cut) / 7 > 0
    assert m["length_stop_rate"] == pytest.approx(3 / 18)
    assert m["drift_rate"] == pytest.approx(1 / 7)
    assert m["sampled_tokens"] == sum(len(t.response_ids) for e in batch[:7] for t in e.turns)
    lost = episode_metrics(batch[7:])
    assert lost == {
        "episodes": 0, "failed_episodes": 1, "failed_rate": 1, "failed_environment": 1,
        "failed_tool": 0, "failed_grader": 0, "failed_sandbox": 0, "failed_engine": 0,
        "failed_template": 0, "failed_budget": 0, "turns_total": 0, "sampled_tokens": 0,
    }  # fmt: skip


def test_the_turns_of_a_trajectory_are_plain_json() -> None:
    data: dict[str, Any] = json.loads(golden_batch()[0].to_json())
    assert data["turns"][0]["response_ids"] == [10, 11, 2]
