"""Sudoku: the rules, boards with one solution (counted by other means), the oracle."""

from __future__ import annotations

import random
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.envs.games.sudoku import Sudoku, emptied, full_grid, solved
from gem.errors import ConfigurationError

SOLUTION = [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def started() -> Sudoku:
    """Return a game on a 4x4 board with 4 empty cells."""
    env = Sudoku(4, 20, 4)
    env.reset(seed=0)
    env._set_up(SOLUTION, [0 if cell in (1, 8, 9, 15) else n for cell, n in enumerate(SOLUTION)])
    return env


def units(scale: int) -> list[list[int]]:
    side = int(scale**0.5)
    rows = [[r * scale + c for c in range(scale)] for r in range(scale)]
    columns = [[r * scale + c for r in range(scale)] for c in range(scale)]
    boxes = [
        [(top + r) * scale + left + c for r in range(side) for c in range(side)]
        for top in range(0, scale, side)
        for left in range(0, scale, side)
    ]
    return rows + columns + boxes


def is_complete(grid: list[int], scale: int) -> bool:
    numbers = set(range(1, scale + 1))
    return all({grid[cell] for cell in unit} == numbers for unit in units(scale))


def all_4x4() -> set[tuple[int, ...]]:
    rows = list(permutations(range(1, 5)))
    return {
        tuple(a + b + c + d)
        for a, b, c, d in product(rows, repeat=4)
        if len(set(a[:2] + b[:2])) == len(set(a[2:] + b[2:])) == 4
        and len(set(c[:2] + d[:2])) == len(set(c[2:] + d[2:])) == 4
        and all(len(set(column)) == 4 for column in zip(a, b, c, d, strict=True))
    }


ALL = sorted(all_4x4())


def completions(grid: list[int], scale: int, peers: list[set[int]]) -> int:
    """Count the completions of a grid by plain back-tracking, at the tightest cell first."""
    options = {
        cell: set(range(1, scale + 1)) - {grid[p] for p in peers[cell]}
        for cell, number in enumerate(grid)
        if not number
    }
    if not options:
        return 1
    cell = min(options, key=lambda c: len(options[c]))
    count = 0
    for number in options[cell]:
        grid[cell] = number
        count += completions(grid, scale, peers)
        grid[cell] = 0
    return count


def move(env: Any, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


def test_the_board_has_headers_and_lines_between_the_boxes() -> None:
    assert move(started(), "1 1 1")[0].endswith(
        "\n   C1 C2   C3 C4\n"
        "R1  1  . |  3  4\n"
        "R2  3  4 |  1  2\n"
        "   - - - - - -\n"
        "R3  .  . |  4  3\n"
        "R4  4  3 |  2  .\n"
        "Enter your move."
    )
    observation, _ = started().reset()
    assert "each of the 4 boxes of 2x2 cells" in observation
    env = make("game:Sudoku-v0-hard")
    observation, _ = env.reset(seed=0)
    assert "each of the 9 boxes of 3x3 cells" in observation
    *_, header, line = [t for t in observation.split("\n") if t.startswith(("   C", "   -"))]
    assert header == line == "   - - - - - - - - - - - - - - - -"
    assert "\n   C1 C2 C3   C4 C5 C6   C7 C8 C9\n" in observation


def test_right_numbers_pay_their_share_and_the_last_one_wins() -> None:
    env = started()
    steps = [move(env, content) for content in ("1 2 2", "3, 1, 2", "3  2\t1", "4,4 1")]
    assert [step[1] for step in steps] == [0.25] * 4
    assert [step[2] for step in steps] == [False, False, False, True]
    assert steps[0][0].startswith("At turn 1, you put 2 in R1 C2, which is correct.\n")
    assert "R1  1  2 |  3  4\n" in steps[0][0]
    assert steps[-1][0].startswith("Congratulations! You completed the Sudoku in 4 turns.\n")
    assert "." not in steps[-1][0].split("\n", 1)[1]
    assert steps[-1][4]["success"]


@pytest.mark.parametrize(
    ("content", "text", "invalid"),
    [
        ("0 1 1", "but rows, columns and numbers go from 1 to 4.", True),
        ("1 5 1", "but rows, columns and numbers go from 1 to 4.", True),
        ("1 2 -2", "but rows, columns and numbers go from 1 to 4.", True),
        ("1 1 1", "which is already filled.", True),
        ("1 2 3", "but there is a 3 in that row already.", False),
        ("3 1 1", "but there is a 1 in that column already.", False),
        ("4 4 4", "but there is a 4 in that row already.", False),
        ("3 2 2", "but there is a 2 in that column already.", False),
    ],
)
def test_other_numbers_cost_a_turn_and_change_nothing(
    content: str, text: str, invalid: bool
) -> None:
    env = started()
    if content == "3 2 2":
        move(env, "1 2 2")
    before = list(env.cells)
    observation, reward, terminated, truncated, info = move(env, content)
    assert text in observation
    assert (reward, terminated, truncated, info["invalid_action"]) == (0.0, False, False, invalid)
    assert env.cells == before


def test_a_number_that_breaks_no_rule_can_still_be_wrong() -> None:
    env = make("game:Sudoku-v0-hard")
    for seed in range(20):
        env.reset(seed=seed)
        for cell in range(81):
            row, column = divmod(cell, 9)
            for number in range(1, 10):
                seen = any(
                    cell in unit and number in [env.cells[c] for c in unit] for unit in units(9)
                )
                if env.cells[cell] or seen or number == env.solution[cell]:
                    continue
                observation, reward, *_ = move(env, f"{row + 1} {column + 1} {number}")
                assert "which is not part of the solution." in observation
                assert reward == 0.0
                return
    raise AssertionError("no such board")


@pytest.mark.parametrize("content", ["1 2", "1 2 3 4", "1 2 x", "1;2;3", "R1 C2 3", ""])
def test_what_is_no_triple_of_numbers_is_a_format_error(content: str) -> None:
    assert move(started(), content)[4]["format_error"]


def test_all_288_small_grids_and_nothing_else_are_drawn() -> None:
    rng = random.Random(0)
    drawn = {tuple(full_grid(rng, 4)) for _ in range(5_000)}
    assert len(ALL) == 288
    assert sorted(drawn) == ALL


@given(seed=st.integers(0, 10**9), max_empty=st.integers(1, 16))
@settings(max_examples=50)
def test_small_boards_have_exactly_one_solution(seed: int, max_empty: int) -> None:
    rng = random.Random(seed)
    solution = full_grid(rng, 4)
    board = emptied(rng, solution, max_empty)
    assert 1 <= board.count(0) <= max_empty
    matching = [
        grid
        for grid in ALL
        if all(number in (0, full) for number, full in zip(board, grid, strict=True))
    ]
    assert matching == [tuple(solution)]
    assert solved(board, 4) == solution


@pytest.mark.parametrize("max_empty", [20, 50, 81])
def test_large_boards_have_exactly_one_solution(max_empty: int) -> None:
    peers = [set().union(*(u for u in units(9) if cell in u)) - {cell} for cell in range(81)]
    for seed in range(3):
        rng = random.Random(seed)
        solution = full_grid(rng, 9)
        assert is_complete(solution, 9)
        board = emptied(rng, solution, max_empty)
        assert min(max_empty, 54) * 4 // 5 <= board.count(0) <= max_empty
        assert completions(list(board), 9, peers) == 1
        assert solved(board, 9) == solution


def test_contradictions_have_no_solution() -> None:
    with pytest.raises(ValueError, match="no solution"):
        solved([1, 2, 3, 0] + [0] * 3 + [4] + [0] * 8, 4)


def test_the_oracle_reads_the_board_and_not_the_solution() -> None:
    env = make("game:Sudoku-v0-hard")
    env.reset(seed=3)
    expected = list(env.solution)
    turns = env.num_empty
    for turn in range(turns):
        env.solution = [0] * 81
        row, column, number = map(int, env.oracle_action()[7:-1].split())
        assert number == expected[(row - 1) * 9 + column - 1]
        env.solution = expected
        step = env.step(f"\\boxed{{{row} {column} {number}}}")
        assert step[2] == (turn == turns - 1)


def test_the_number_of_empty_cells_is_reported() -> None:
    env = make("game:Sudoku-v0-hard")
    observation, _ = env.reset(seed=1)
    assert 40 <= env.num_empty <= 50
    assert env.num_empty == sum(
        line.count(" .") for line in observation.split("\n") if "R" in line[:1]
    )
    assert f"{env.num_empty} of {env.num_empty} cells to fill" in env.render()


def test_drawn_parameters_belong_together_unless_given() -> None:
    env = make("game:Sudoku-v0-random")
    seen = set()
    for seed in range(20):
        env.reset(seed=seed)
        seen.add((env.scale, env.max_empty, env.max_turns))
    assert seen == {(4, 10, 15), (9, 50, 50)}
    # 30 cells cannot be emptied on the small board.
    env = make("game:Sudoku-v0-random", max_empty=30)
    for seed in range(5):
        env.reset(seed=seed)
        assert (env.scale, env.max_empty, env.max_turns) == (9, 30, 50)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"scale": 6}, "scale must be one of 4, 9, got 6"),
        ({"scale": 4}, "max_empty must be at most scale .*max_empty=50 and scale=4"),
        ({"max_empty": 82}, "max_empty must be an integer from 1 to 81, got 82"),
        ({"max_empty": 0}, "max_empty .*got 0"),
        ({"max_turns": 1.5}, "max_turns .*got 1.5"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make("game:Sudoku-v0", **parameters)


def test_too_few_turns_are_admitted_by_the_oracle() -> None:
    assert make("game:Sudoku-v0-hard").oracle_success == 1.0
    assert make("game:Sudoku-v0-hard", max_turns=49).oracle_success == 0.0
