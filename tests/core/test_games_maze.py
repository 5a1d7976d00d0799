"""Maze: one way between any two cells, starts that can be won, rewards, the board."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gem
from gem.envs.games.maze import Maze, carved, distances
from gem.errors import ConfigurationError

OFFSETS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def say(env: Maze, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_a_maze_is_a_tree_of_neighbouring_cells(size: int, seed: int) -> None:
    ways = carved(Random(seed), size)
    edges = {
        frozenset((cell, after)) for cell, moves in enumerate(ways) for after in moves.values()
    }
    # Connected, with one edge less than cells: exactly one way from any cell to any other.
    assert len(edges) == size * size - 1
    assert len(distances(ways, 0)) == size * size
    for cell, moves in enumerate(ways):
        for move, after in moves.items():
            down, right = OFFSETS[move]
            assert divmod(after, size) == (cell // size + down, cell % size + right)
            assert cell in ways[after].values()


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_the_oracle_takes_the_only_way(size: int, seed: int) -> None:
    env = Maze(size=size, max_turns=size * size, seed=seed)
    env.reset()
    left = distances(env.ways, env.goal)
    steps = left[env.player]
    assert 2 * steps >= max(left)
    assert steps > 0
    for turn in range(1, steps + 1):
        _, reward, terminated, _, info = env.step(env.oracle_action())
        assert terminated == info["success"] == (turn == steps)
    assert reward == 1.0


@pytest.mark.parametrize("suffix", ["", "-easy", "-hard", "-random"])
def test_the_turns_of_every_id_suffice_for_any_way(suffix: str) -> None:
    env: Any = gem.make(f"game:Maze-v0{suffix}")
    assert env.oracle_success == 1.0
    for seed in range(40):
        env.reset(seed=seed)
        assert env.max_turns >= env.size**2 - 1 >= max(distances(env.ways, env.player))


def test_too_few_turns_promise_nothing() -> None:
    assert Maze(size=5, max_turns=23).oracle_success == 0.0
    assert Maze(size=5, max_turns=24).oracle_success == 1.0


def test_a_wall_costs_the_turn_and_says_so() -> None:
    env = Maze(seed=0)
    env.reset()
    before = env.player
    [wall, *_] = [move for move in OFFSETS if move not in env.ways[env.player]]
    observation, reward, terminated, truncated, info = say(env, wall)
    assert "but there is a wall" in str(observation)
    assert (reward, terminated, truncated, info["invalid_action"]) == (0.0, False, False, True)
    assert (env.player, env.turn) == (before, 1)


def test_when_turns_run_out_the_share_of_the_way_pays() -> None:
    for seed in range(20):
        env = Maze(size=6, max_turns=4, seed=seed)
        env.reset()
        first = distances(env.ways, env.goal)[env.player]
        if first <= 4:
            continue
        for _ in range(4):
            _, reward, terminated, truncated, _ = env.step(env.oracle_action())
        assert (terminated, truncated) == (False, True)
        assert reward == pytest.approx(4 / first)


def test_who_is_as_far_as_at_the_start_gets_nothing() -> None:
    env = Maze(size=4, max_turns=1, seed=3)
    env.reset()
    [wall, *_] = [move for move in OFFSETS if move not in env.ways[env.player]]
    assert say(env, wall)[1] == 0.0


def test_the_board_shows_walls_player_and_goal() -> None:
    env = Maze(size=2, max_turns=9, seed=0)
    env.reset(seed=0)
    lines = env._board().splitlines()
    assert len(lines) == 5 and {len(line) for line in lines} == {9}
    for cell, moves in enumerate(env.ways):
        row, column = divmod(cell, 2)
        middle = lines[2 * row + 1][4 * column + 2]
        assert middle == ("P" if cell == env.player else "G" if cell == env.goal else " ")
        assert (lines[2 * row + 1][4 * column + 4] == " ") == ("right" in moves)
        assert (lines[2 * row + 2][4 * column + 2] == " ") == ("down" in moves)
    env.step(env.oracle_action())
    assert env._board().count("P") == 1


@pytest.mark.parametrize("wrong", [{"size": 1}, {"size": 21}, {"max_turns": 0}, {"size": "3"}])
def test_a_parameter_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Maze(**wrong)
