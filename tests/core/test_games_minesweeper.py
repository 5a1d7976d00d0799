"""Minesweeper: mines, openings, flags, rewards, exact risks, boards without a guess."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.envs.games.boards import bits
from gem.envs.games.minesweeper import (
    Minesweeper,
    certain,
    flood,
    grid,
    numbers_beside,
    risks,
)
from gem.errors import ConfigurationError


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def say(env: Minesweeper, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


def at(*rows: str) -> Minesweeper:
    """Return a game with mines where the rows have a `*`."""
    mines = mines_of(*rows)
    env = Minesweeper(len(rows), len(rows[0]), mines.bit_count(), max_turns=100)
    env.reset(seed=0)
    env.mines = mines
    return env


def mines_of(*rows: str) -> int:
    width = len(rows[0]) + 1
    return sum(
        1 << r * width + c
        for r, row in enumerate(rows)
        for c, cell in enumerate(row)
        if cell == "*"
    )


def neighbours(rows: int, cols: int, row: int, column: int) -> set[tuple[int, int]]:
    """Return the neighbours of a cell by their definition."""
    return {
        (r, c)
        for r in range(max(0, row - 1), min(rows, row + 2))
        for c in range(max(0, column - 1), min(cols, column + 2))
        if (r, c) != (row, column)
    }


CORNER = ("*...", "....", "....", "...*")


@pytest.mark.parametrize(("rows", "cols"), [(4, 4), (5, 7), (8, 4)])
def test_neighbours_do_not_reach_around_the_edges(rows: int, cols: int) -> None:
    board = grid(rows, cols)
    for row, column in itertools.product(range(rows), range(cols)):
        around = {divmod(n, cols + 1) for n in bits(board.around[row * (cols + 1) + column])}
        assert around == neighbours(rows, cols, row, column)


def test_the_first_reveal_and_its_neighbours_are_never_mines() -> None:
    env = make("game:Minesweeper-v0-hard")
    for seed in range(40):
        env.reset(seed=seed)
        row, column = env.rng.randrange(8), env.rng.randrange(8)
        observation, *_ = say(env, f"reveal {row} {column}")
        assert env.mines.bit_count() == 12
        assert observation.splitlines()[2 + row].split()[1 + column] == "0"


def test_mines_are_uniform_over_the_cells_that_may_have_one() -> None:
    env = Minesweeper(4, 4, 1)
    counts = dict.fromkeys(range(20), 0)
    for seed in range(1_200):
        env.reset(seed=seed)
        say(env, "reveal 0 0")
        counts[env.mines.bit_length() - 1] += 1
    allowed = [r * 5 + c for r in range(4) for c in range(4) if max(r, c) > 1]
    # 1,200 draws of p = 1/12: standard deviation 9.6; five of them.
    assert all(abs(counts.pop(cell) - 100) < 48 for cell in allowed)
    assert not any(counts.values())


def test_a_zero_opens_its_surroundings_up_to_the_numbers() -> None:
    env = at("*....", ".....", ".....", "..***", "..*..")
    observation, reward, *_ = say(env, "reveal 0 4")
    assert observation == (
        "At turn 1, you revealed 0 4 and opened 12 cell(s).\n"
        "    0  1  2  3  4\n"
        " 0  .  1  0  0  0\n"
        " 1  .  1  0  0  0\n"
        " 2  .  1  2  3  2\n"
        " 3  .  .  .  .  .\n"
        " 4  .  .  .  .  .\n"
        "Enter your move."
    )
    assert reward == pytest.approx(12 / 20)


@given(st.integers(0, 2**32), st.integers(4, 7), st.integers(4, 7), st.floats(0, 0.5))
@settings(max_examples=40)
def test_openings_are_those_of_the_recursive_definition(
    seed: int, rows: int, cols: int, density: float
) -> None:
    rng = random.Random(seed)
    cells = list(itertools.product(range(rows), range(cols)))
    mined = {cell for cell in cells if rng.random() < density}
    flagged = {cell for cell in cells if rng.random() < 0.1}
    free = [cell for cell in cells if cell not in mined | flagged]
    if not free:
        return
    first = rng.choice(free)
    expected = {first}
    for cell in (queue := [first]):
        around = neighbours(rows, cols, *cell)
        if not around & mined:
            queue.extend(fresh := sorted(around - expected - flagged))
            expected.update(fresh)

    def bits(chosen: set[tuple[int, int]]) -> int:
        return sum(1 << r * (cols + 1) + c for r, c in chosen)

    number = first[0] * (cols + 1) + first[1]
    assert flood(grid(rows, cols), bits(mined), bits(flagged), number) == bits(expected)


def test_flags_protect_and_do_not_matter_for_the_win() -> None:
    env = at(*CORNER)
    assert "you marked 0 0" in say(env, "flag 0 0")[0]
    observation, reward, terminated, _, info = say(env, "reveal 0 0")
    assert (reward, terminated, info["invalid_action"]) == (0.0, False, True)
    assert " 0  F  ." in observation
    assert "took the mark from 0 0" in say(env, "FLAG 0,0")[0]
    # No mine is flagged, yet opening all safe cells wins.
    _, reward, terminated, _, info = say(env, "reveal 0 3")
    assert (terminated, info["success"]) == (True, True)
    assert reward == pytest.approx(1.0)


def test_an_opening_passes_over_flagged_cells() -> None:
    env = at(*CORNER)
    say(env, "flag 2 0")
    assert say(env, "reveal 0 3")[1] == pytest.approx(13 / 14)
    say(env, "flag 2 0")
    _, reward, terminated, _, info = say(env, "reveal 2 0")
    assert (reward, terminated, info["success"]) == (pytest.approx(1 / 14), True, True)


def test_revealing_a_mine_loses_and_shows_it() -> None:
    env = at(*CORNER)
    observation, reward, terminated, truncated, info = say(env, "reveal 3 3")
    assert "you revealed 3 3, which is a mine. Game over!" in observation
    assert observation.endswith(" 3  .  .  .  *")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("reveal 4 0", "off the board"),
        ("flag 0 -1", "off the board"),
        ("reveal 1 1", "open already"),
        ("flag 1 1", "open already"),
        ("open 0 1", "not reveal or flag"),
    ],
)
def test_invalid_moves_cost_a_turn(content: str, text: str) -> None:
    env = at(*CORNER)
    say(env, "reveal 1 1")
    observation, reward, terminated, _, info = say(env, content)
    assert text in observation
    assert (reward, terminated, info["invalid_action"], env.turn) == (0.0, False, True, 2)


@pytest.mark.parametrize("content", ["reveal", "reveal 1", "1 1", "reveal 1 1 1", "reveal a b"])
def test_what_is_no_command_with_a_cell_is_a_format_error(content: str) -> None:
    assert say(at(*CORNER), content)[4]["format_error"]


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_risks_are_the_shares_of_all_boards_that_agree_with_the_numbers(seed: int) -> None:
    rng = random.Random(seed)
    rows, cols, num_mines = 4, rng.choice([4, 5]), rng.choice([2, 3, 4])
    board = grid(rows, cols)
    cells = list(bits(board.cells))
    mines = sum(1 << cell for cell in rng.sample(cells, num_mines))
    safe = [cell for cell in cells if not mines >> cell & 1]
    opened = 0
    for cell in rng.sample(safe, rng.randint(1, 8)):
        opened |= flood(board, mines, opened, cell)
    numbers = numbers_beside(board, mines, opened)
    closed = [cell for cell in cells if not opened >> cell & 1]
    boards, mined = 0, dict.fromkeys(closed, 0)
    for placed in itertools.combinations(closed, num_mines):
        all_mines = sum(1 << cell for cell in placed)
        if all((board.around[cell] & all_mines).bit_count() == n for cell, n in numbers.items()):
            boards += 1
            for cell in placed:
                mined[cell] += 1
    found = {}
    for risk, group in risks(board, opened, numbers, num_mines):
        found.update(dict.fromkeys(bits(group), risk))
    assert set(found) == set(closed)
    for cell in closed:
        assert found[cell] == pytest.approx(mined[cell] / boards)
        assert (found[cell] == 0) == (mined[cell] == 0)


@pytest.mark.parametrize("suffix", ["", "-easy", "-hard", "-random"])
def test_the_oracle_wins_the_share_that_it_promises(suffix: str) -> None:
    env = make(f"game:Minesweeper-v0{suffix}")
    wins = 0
    for seed in range(150):
        env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            _, reward, done, truncated, info = env.step(env.oracle_action())
            assert not truncated
            assert not info["invalid_action"]
            total += reward
        wins += info["success"]
        assert info["success"] == (total == pytest.approx(1.0))
    assert 0 < env.oracle_success <= wins / 150 < 1


@pytest.mark.parametrize("suffix", ["", "-easy", "-hard", "-random"])
def test_without_a_guess_logic_alone_wins_every_game(suffix: str) -> None:
    env = make(f"game:Minesweeper-v0{suffix}", no_guess=True)
    assert env.oracle_success == 1
    for seed in range(40):
        env.reset(seed=seed)
        done = False
        while not done:
            _, _, done, truncated, info = env.step(env.oracle_action())
            assert not truncated
        assert info["success"]


def test_a_board_that_needs_a_guess_is_told_from_one_that_does_not() -> None:
    # Behind the wall of mines one of four cells is safe, and no number tells which.
    assert not certain(grid(4, 5), mines_of("...*.", "...**", "...**", "...**"), 0)
    assert certain(grid(4, 4), mines_of(*CORNER), 3)


def test_the_oracle_takes_wrong_flags_away() -> None:
    env = Minesweeper(5, 5, 5, max_turns=80, no_guess=True)
    env.reset(seed=0)
    env.step(env.oracle_action())
    closed = grid(5, 5).cells & ~env.opened
    for cell in bits(closed):
        say(env, f"flag {cell // 6} {cell % 6}")
    assert env.sample_random_action().startswith("\\boxed{flag ")
    done = False
    while not done:
        _, _, done, _, info = env.step(env.oracle_action())
    assert info["success"]


def test_promises_end_where_nothing_was_measured() -> None:
    assert Minesweeper(8, 8, 13).oracle_success == 0
    assert Minesweeper(16, 16, 40, 256, no_guess=True).oracle_success == 0
    assert Minesweeper(8, 8, 10, 53).oracle_success == 0
    assert Minesweeper(8, 8, 10, 54).oracle_success == 0.75


def test_open_parameters_are_drawn_and_given_ones_kept() -> None:
    env = make("game:Minesweeper-v0-random")
    drawn = set()
    for seed in range(60):
        env.reset(seed=seed)
        drawn.add((env.rows, env.cols, env.num_mines, env.max_turns))
    assert drawn == {(n, n, n * n // 5, n * n) for n in range(5, 9)}
    env = make("game:Minesweeper-v0-random", rows=4, num_mines=2)
    env.reset(seed=0)
    assert (env.rows, env.num_mines, env.max_turns) == (4, 2, 4 * env.cols)


def test_mines_that_do_not_fit_are_a_parameter_error() -> None:
    with pytest.raises(
        ConfigurationError, match="num_mines must be an integer from 1 to 16, got 17"
    ):
        Minesweeper(5, 5, 17)
    with pytest.raises(ConfigurationError, match="from 1 to 16"):
        Minesweeper(None, None, 17)
    env = Minesweeper(5, 5, 16)
    env.reset(seed=0)
    _, reward, terminated, *_ = say(env, "reveal 2 2")
    assert (math.isclose(reward, 1.0), terminated) == (True, True)
