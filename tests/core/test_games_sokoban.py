"""Sokoban: the rules against a referee on text, the generator, the solver against brute force."""

from __future__ import annotations

import random
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.envs.games.sokoban import Sokoban
from gem.envs.games.sokoban_rooms import DIRECTIONS, Room, Start, capacity, generate, solve
from gem.errors import ConfigurationError

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

CORRIDOR = """
# # # # # #
# O X P _ #
# # # # # #
"""
YARD = """
# # # # # #
# P _ _ O #
# _ X X _ #
# _ _ O _ #
# _ _ _ _ #
# # # # # #
"""


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def read(board: str) -> tuple[list[list[str]], Start]:
    """Return the symbols of a board, and the start it shows."""
    rows = [line.split(" ") for line in board.strip().split("\n")]
    width = len(rows[0])

    def cells(symbols: str) -> int:
        return sum(
            1 << (r * width + c)
            for r, row in enumerate(rows)
            for c, symbol in enumerate(row)
            if symbol in symbols
        )

    room = Room(width, cells("_OPSX√"), cells("OS√"))
    return rows, Start(room, cells("X√"), cells("PS").bit_length() - 1)


def started(board: str, **parameters: Any) -> Sokoban:
    """Return a game that starts with this board."""
    rows, start = read(board)
    dim = len(rows), len(rows[0])
    env = Sokoban(dim, start.boxes.bit_count(), **parameters)
    env.reset(seed=0)
    env._set_up(start)
    return env


def board_of(observation: str) -> str:
    return "\n".join(line for line in observation.split("\n") if line.startswith("# "))


def referee(board: str, direction: str) -> str | None:
    """Return the board after a move, by the rules as they are told; None if not allowed."""
    rows, _ = read(board)
    down, right = STEPS[direction]
    row, column = next((r, row.index(p)) for r, row in enumerate(rows) for p in "PS" if p in row)

    def leave(symbol: str) -> str:
        return "O" if symbol in "S√" else "_"

    to, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
    if rows[to[0]][to[1]] in "X√":
        if rows[beyond[0]][beyond[1]] not in "_O":
            return None
        rows[beyond[0]][beyond[1]] = "√" if rows[beyond[0]][beyond[1]] == "O" else "X"
        rows[to[0]][to[1]] = leave(rows[to[0]][to[1]])
    if rows[to[0]][to[1]] not in "_O":
        return None
    rows[to[0]][to[1]] = "S" if rows[to[0]][to[1]] == "O" else "P"
    rows[row][column] = leave(rows[row][column])
    return "\n".join(" ".join(symbols) for symbols in rows)


def fewest_moves(board: str) -> int | None:
    """Return the length of a shortest solution by trying everything."""
    distance, queue = {board: 0}, deque([board])
    while queue:
        board = queue.popleft()
        if "X" not in board:
            return distance[board]
        for direction in DIRECTIONS:
            after = referee(board, direction)
            if after is not None and after not in distance:
                distance[after] = distance[board] + 1
                queue.append(after)
    return None


def move(env: Any, direction: str) -> Any:
    return env.step(f"\\boxed{{{direction}}}")


def test_pushing_every_box_onto_a_goal_wins_and_pays_one() -> None:
    env = started(CORRIDOR)
    observation, reward, terminated, truncated, info = move(env, "left")
    assert observation == (
        "Congratulations! You pushed every box onto a goal in 1 turns.\n"
        "# # # # # #\n# √ P _ _ #\n# # # # # #"
    )
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_moves_and_pushes_are_told_and_pay_nothing() -> None:
    env = started(YARD)
    told = [move(env, direction) for direction in ("Down", "RIGHT", "up", "right")]
    assert [step[0].split("\n")[0] for step in told] == [
        "At turn 1, you moved down.",
        "At turn 2, you tried to move right, but there is another box behind the box.",
        "At turn 3, you moved up.",
        "At turn 4, you moved right.",
    ]
    assert [step[4]["invalid_action"] for step in told] == [False, True, False, False]
    assert {step[1] for step in told} == {0.0}
    assert move(env, "down")[0].startswith("At turn 5, you moved down and pushed a box.\n")
    assert move(env, "down")[0].startswith("At turn 6, you moved down and pushed a box.\n")
    assert "but there is a wall behind the box." in move(env, "down")[0]
    move(env, "left")
    assert "but there is a wall." in move(env, "left")[0]


def test_a_goal_under_the_player_stays_visible() -> None:
    env = started("# # # # # #\n# O P X O #\n# # # # # #", max_turns=5)
    assert board_of(move(env, "left")[0]).split("\n")[1] == "# S _ X O #"
    assert board_of(move(env, "right")[0]).split("\n")[1] == "# O P X O #"


def test_the_share_of_boxes_on_goals_is_paid_when_the_turns_run_out() -> None:
    one_home = YARD.replace("# P _ _ O #", "# P _ _ √ #").replace("X X", "X _")
    for board, expected in ((YARD, 0.0), (one_home, 0.5)):
        env = started(board, max_turns=2)
        assert move(env, "down")[1] == 0.0
        observation, reward, terminated, truncated, _ = move(env, "left")
        assert (reward, terminated, truncated) == (expected, False, True)
        assert observation.startswith("At turn 2, you tried to move left, but there is a wall.")


@pytest.mark.parametrize("content", ["north", "u", "up down", "left!", "İ"])
def test_what_is_no_direction_is_a_format_error(content: str) -> None:
    assert move(started(YARD), content)[4]["format_error"]


@given(seed=st.integers(0, 10**6), moves=st.lists(st.sampled_from(DIRECTIONS), max_size=60))
@settings(max_examples=40)
def test_every_move_agrees_with_the_rules(seed: int, moves: list[str]) -> None:
    env = make("game:Sokoban-v0", max_turns=61)
    board = board_of(env.reset(seed=seed)[0])
    for direction in moves:
        observation, _, terminated, _, info = move(env, direction)
        after = referee(board, direction)
        assert info["invalid_action"] == (after is None)
        board = after or board
        assert board_of(observation) == board
        assert terminated == ("X" not in board)
        if terminated:
            break


def test_starts_have_a_goal_for_each_box_and_none_on_a_goal() -> None:
    for suffix, boxes, size in (("-easy", 2, 6), ("", 3, 6), ("-hard", 4, 8)):
        env = make(f"game:Sokoban-v0{suffix}")
        for seed in range(8):
            board = board_of(env.reset(seed=seed)[0])
            assert [len(line.split(" ")) for line in board.split("\n")] == [size] * size
            assert (board.count("X"), board.count("√")) == (boxes, 0)
            assert board.count("O") + board.count("S") == boxes
            assert board.count("P") + board.count("S") == 1
            assert set(board.split("\n")[0] + board.split("\n")[-1]) == {"#", " "}


def test_easy_starts_take_some_pushes_and_leave_some_turns() -> None:
    env = make("game:Sokoban-v0-easy")
    boards = {board_of(env.reset(seed=seed)[0]) for seed in range(12)}
    assert len(boards) == 12
    for board in boards:
        moves = fewest_moves(board)
        assert moves is not None
        assert 3 <= moves <= 15


@pytest.mark.parametrize(
    ("dim", "boxes", "turns"),
    [
        ((3, 5), 1, 1),
        ((5, 3), 1, 9),
        ((5, 5), 3, 7),
        ((6, 9), 2, 30),
        ((9, 6), 6, 100),
        ((12, 12), 10, 28),
    ],
)
def test_rooms_of_any_allowed_size_can_be_won_in_time(
    dim: tuple[int, int], boxes: int, turns: int
) -> None:
    env = Sokoban(dim, boxes, turns)
    assert env.oracle_success == 1.0
    for seed in range(4):
        env.reset(seed=seed)
        done = False
        while not done:
            *_, terminated, truncated, info = env.step(env.oracle_action())
            done = terminated or truncated
        assert info["success"]


def test_generation_neither_shares_state_nor_depends_on_threads() -> None:
    def room(seed: int) -> Start:
        return generate(random.Random(seed), 6, 6, 2, 20)

    serial = [room(seed) for seed in range(60)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(room, range(60))) == serial
    finally:
        sys.setswitchinterval(interval)


@given(cells=st.permutations(range(16)), walls=st.integers(0, 5), boxes=st.integers(1, 2))
@settings(max_examples=30)
def test_the_solver_finds_a_solution_exactly_where_there_is_one(
    cells: list[int], walls: int, boxes: int
) -> None:
    symbols = ["_"] * 16
    order = iter(cells)
    for symbol, count in (("#", walls), ("X", boxes), ("O", boxes), ("P", 1)):
        for _ in range(count):
            symbols[next(order)] = symbol
    border = " ".join("#" * 6)
    inner = ("# " + " ".join(symbols[first : first + 4]) + " #" for first in range(0, 16, 4))
    board = "\n".join([border, *inner, border])
    fewest = fewest_moves(board)
    start = read(board)[1]
    if fewest is None:
        assert solve(start, 1_000, 10**6) is None
        return
    assert solve(start, fewest - 1, 10**6) is None
    shortest = solve(start, fewest, 10**6)
    assert shortest is not None
    assert len(shortest) == fewest
    for direction in solve(start, 1_000, 10**6) or []:
        board = referee(board, direction) or ""
    assert "X" not in board


def test_the_oracle_goes_on_from_wherever_the_player_went() -> None:
    env = make("game:Sokoban-v0-easy", max_turns=40)
    wins = 0
    for seed in range(15):
        env.reset(seed=seed)
        env.oracle_action()
        for _ in range(5):
            step = env.step(env.sample_random_action())
        fewest = fewest_moves(board_of(step[0]))
        done = step[2]
        while not done:
            *_, terminated, truncated, info = env.step(env.oracle_action())
            done = terminated or truncated
            assert info["success"] or not terminated
        won = "X" not in env.render()
        assert won == (fewest is not None and fewest <= 35)
        wins += won
    assert wins > 0


def test_drawn_parameters_belong_together_unless_given() -> None:
    env = make("game:Sokoban-v0-random")
    seen = set()
    for seed in range(8):
        env.reset(seed=seed)
        seen.add((env.dim_room, env.num_boxes, env.max_turns))
    assert seen == {((6, 6), 2, 20), ((8, 8), 5, 50)}
    env = make("game:Sokoban-v0-random", dim_room=(6, 6), max_turns=30)
    env.reset(seed=0)
    drawn = env.dim_room, env.num_boxes, env.max_turns
    assert drawn == ((6, 6), 2, 30)
    # Five boxes do not fit into the smaller room.
    env = Sokoban(None, 5, 50)
    for seed in range(3):
        env.reset(seed=seed)
        assert env.dim_room == (8, 8)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dim_room": 6}, "dim_room must be two integers, rows and columns, got 6"),
        ({"dim_room": (6, 6, 6)}, r"dim_room must be two integers.*got \(6, 6, 6\)"),
        ({"dim_room": (2, 6)}, "each of dim_room must be an integer from 3 to 12, got 2"),
        ({"dim_room": (6, "6")}, "each of dim_room .*got '6'"),
        ({"dim_room": (4, 4)}, r"num_boxes=3 and dim_room=\(4, 4\)"),
        ({"num_boxes": 5}, r"num_boxes must be at most .*num_boxes=5 and dim_room=\(6, 6\)"),
        ({"num_boxes": 0}, "num_boxes must be an integer from 1 to 10, got 0"),
        ({"max_turns": 0}, "max_turns .*got 0"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make("game:Sokoban-v0", **parameters)


def test_too_few_turns_are_admitted_by_the_oracle() -> None:
    assert capacity(6, 6) == 4
    assert Sokoban((6, 6), 4, 10).oracle_success == 1.0
    assert Sokoban((6, 6), 4, 9).oracle_success == 0.0
