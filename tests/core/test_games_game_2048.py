"""Game2048: slides and merges, tiles that appear, rewards, ends, what can be reached."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.envs.games.game_2048 import DIRECTIONS, Board, Game2048, best_move, slide
from gem.errors import ConfigurationError

TILES = st.sampled_from([0, 0, 2, 2, 4, 8, 16])
BOARDS = st.integers(2, 5).flatmap(
    lambda n: st.tuples(*[st.tuples(*[TILES] * n)] * n)  # type: ignore[arg-type]
)


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def at(board: Board, **parameters: Any) -> Game2048:
    """Return a game that goes on from `board`, whose largest tile counts as the first."""
    env = Game2048(**{"board_size": len(board), **parameters})
    env.reset(seed=0)
    env.board = board
    env._first = env.best = max(map(max, board))
    return env


def say(env: Game2048, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


def total(board: Board) -> int:
    return sum(map(sum, board))


@pytest.mark.parametrize(
    ("row", "moved"),
    [
        ((2, 2, 0, 0), (4, 0, 0, 0)),
        ((2, 0, 0, 2), (4, 0, 0, 0)),
        ((2, 2, 2, 0), (4, 2, 0, 0)),
        ((2, 2, 2, 2), (4, 4, 0, 0)),
        ((4, 2, 2, 0), (4, 4, 0, 0)),
        ((2, 2, 4, 8), (4, 4, 8, 0)),
        ((0, 0, 0, 2), (2, 0, 0, 0)),
        ((2, 4, 2, 4), (2, 4, 2, 4)),
    ],
)
def test_merges_by_hand_in_every_direction(row: Any, moved: Any) -> None:
    free = ((0,) * 4,) * 3
    assert slide((row, *free), "left") == (moved, *free)
    assert slide((row[::-1], *free), "right") == (moved[::-1], *free)
    assert slide(tuple((tile, 0, 0, 0) for tile in row), "up") == tuple((t, 0, 0, 0) for t in moved)
    downwards = tuple((tile, 0, 0, 0) for tile in row[::-1])
    assert slide(downwards, "down") == tuple((tile, 0, 0, 0) for tile in moved[::-1])


@given(BOARDS, st.sampled_from(DIRECTIONS))
@settings(max_examples=100)
def test_slides_keep_the_sum_and_leave_no_gap(board: Board, direction: str) -> None:
    moved = slide(board, direction)
    assert total(moved) == total(board)
    lines = moved if direction in ("left", "right") else tuple(zip(*moved, strict=True))
    for line in lines:
        packed = [bool(tile) for tile in line]
        assert packed == sorted(packed, reverse=direction in ("left", "up"))


def test_one_tile_a_turn_appears_and_one_in_ten_is_a_four() -> None:
    env = make("game:Game2048-v0")
    counts: Counter[int] = Counter()
    for seed in range(60):
        env.reset(seed=seed)
        assert sorted(sum(env.board, ()))[-3] == 0
        for _ in range(60):
            action = env.sample_random_action()
            expected = total(env.board)
            if env.step(action)[2]:
                break
            counts[total(env.board) - expected] += 1
    assert set(counts) == {2, 4}
    n = counts.total()
    # Standard deviation of the number of fours: sqrt(0.09 n); five of them.
    assert abs(counts[4] - n / 10) < 5 * math.sqrt(0.09 * n)


def test_the_board_is_shown_in_columns_of_four() -> None:
    env = at(((0, 0, 2, 2), (0,) * 4, (0,) * 4, (128, 0, 0, 1024)))
    lines = env.render().splitlines()
    assert lines[2:] == [
        "Current board:",
        "   .    .    2    2",
        "   .    .    .    .",
        "   .    .    .    .",
        " 128    .    . 1024",
    ]
    observation = say(env, "LEFT")[0]
    assert observation.startswith("At turn 1, you moved left.\nCurrent board:\n   4    ")
    assert observation.endswith("\nEnter your move.")


def test_a_direction_in_which_nothing_moves_costs_a_turn_and_adds_no_tile() -> None:
    board = ((2, 0), (4, 0))
    env = at(board, target_tile=32)
    observation, reward, terminated, _, info = say(env, "up")
    assert "nothing moved" in observation
    assert (reward, terminated, info["invalid_action"], env.board) == (0.0, False, True, board)


@pytest.mark.parametrize("content", ["north", "up down", "u", "4"])
def test_other_words_are_format_errors(content: str) -> None:
    assert say(at(((2, 0), (4, 0)), target_tile=32), content)[4]["format_error"]


def test_every_doubling_of_the_largest_tile_pays_the_same_share() -> None:
    env = at(((4, 4), (0, 0)), target_tile=32)
    # From 4 to 32 there are three doublings.
    assert say(env, "left")[1] == pytest.approx(1 / 3)
    env.board = ((16, 16), (0, 0))
    observation, reward, terminated, truncated, info = say(env, "left")
    assert reward == pytest.approx(2 / 3)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert observation.startswith("Congratulations! You reached 32 in 2 turns.")
    env = at(((4, 4), (0, 0)), target_tile=8)
    env.board = ((16, 16), (0, 0))
    # Beyond the target nothing more is paid.
    assert say(env, "left")[1] == pytest.approx(1.0)


def test_without_a_legal_move_the_game_is_lost() -> None:
    env = at(((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 8), (0, 16, 32, 64)))
    observation, _, terminated, truncated, info = say(env, "left")
    assert "Game over! No more moves possible." in observation
    assert (terminated, truncated, info["success"]) == (True, False, False)
    assert env.request not in observation


def test_a_won_game_pays_one_in_total() -> None:
    env = make("game:Game2048-v0-random")
    wins = 0
    for seed in range(12):
        env.reset(seed=seed)
        rewards, done = [], False
        while not done:
            _, reward, terminated, truncated, info = env.step(env.oracle_action())
            rewards.append(reward)
            done = terminated or truncated
        wins += info["success"]
        assert not info["success"] or sum(rewards) == pytest.approx(1.0)
    assert wins >= 9


def test_the_oracle_reaches_64_in_time_far_more_often_than_random_play() -> None:
    env = make("game:Game2048-v0-easy")
    assert env.oracle_success == 0.9
    rates = []
    for policy in (env.oracle_action, env.sample_random_action):
        wins = 0
        for seed in range(25):
            env.reset(seed=seed)
            done = False
            while not done:
                _, _, terminated, truncated, info = env.step(policy())
                done = terminated or truncated
            wins += info["success"]
        rates.append(wins / 25)
    assert rates[0] >= 0.9
    assert rates[1] <= 0.6


@given(BOARDS)
@settings(max_examples=30)
def test_the_oracle_moves_legally_wherever_a_move_is_legal(board: Board) -> None:
    legal = [direction for direction in DIRECTIONS if slide(board, direction) != board]
    assert best_move(board) in (legal or DIRECTIONS)


def test_no_tile_grows_faster_than_the_bound_that_rules_out_the_hard_targets() -> None:
    env = make("game:Game2048-v0-hard")
    assert env.oracle_success == 0
    assert make("game:Game2048-v0-extreme-hard").oracle_success == 0
    for seed in range(3):
        env.reset(seed=seed)
        done = False
        while not done:
            _, _, terminated, truncated, info = env.step(env.oracle_action())
            done = terminated or truncated
            assert env.best <= 4 * (env.turn + 1)
        assert not info["success"]
        assert env.best >= 32
    # The limits of the two ids.
    assert 4 * (50 + 1) < 512
    assert 4 * (100 + 1) < 2048


def test_drawn_targets_and_turns_belong_together_unless_given() -> None:
    env = make("game:Game2048-v0-random")
    drawn = set()
    for seed in range(50):
        env.reset(seed=seed)
        drawn.add((env.target_tile, env.max_turns))
    assert drawn == {(16, 20), (32, 30), (64, 50)}
    env = make("game:Game2048-v0-random", max_turns=7, board_size=2)
    drawn = set()
    for seed in range(30):
        env.reset(seed=seed)
        drawn.add((env.target_tile, env.max_turns))
    # 64 does not fit on four cells.
    assert drawn == {(16, 7), (32, 7)}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"target_tile": 100}, "target_tile must be one of 8, 16, .* got 100"),
        ({"target_tile": 64, "board_size": 2}, "target_tile must be at most 32 .* got 64"),
        ({"board_size": 1}, "board_size must be an integer from 2 to 8, got 1"),
    ],
)
def test_wrong_parameters_are_named(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Game2048(**wrong)
