"""FifteenPuzzle: slides, starts that can be won, rewards, the search for a plan."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.envs.games import fifteen_puzzle
from gem.envs.games.fifteen_puzzle import FifteenPuzzle, plan, solvable
from gem.errors import ConfigurationError

OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def at(tiles: tuple[int, ...], **parameters: Any) -> FifteenPuzzle:
    """Return a game with two rows whose board is `tiles`."""
    env = FifteenPuzzle(num_rows=2, **parameters)
    seed = 0
    while env.reset(seed=seed) and tuple(env.tiles) != tiles:
        seed += 1
    return env


def say(env: FifteenPuzzle, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


def after(board: tuple[int, ...], move: str) -> tuple[int, ...] | None:
    """Return the board after a move, by its definition in words; None off the board."""
    rows = int(len(board) ** 0.5)
    row, column = divmod(board.index(0), rows)
    row += {"up": 1, "down": -1}.get(move, 0)
    column += {"left": 1, "right": -1}.get(move, 0)
    if not (0 <= row < rows and 0 <= column < rows):
        return None
    tiles = list(board)
    tile = tiles[row * rows + column]
    tiles[board.index(0)], tiles[row * rows + column] = tile, 0
    return tuple(tiles)


@cache
def distances(rows: int) -> dict[tuple[int, ...], int]:
    """Return the distance of every board that can be solved."""
    goal = (*range(1, rows * rows), 0)
    found = {goal: 0}
    for board in (queue := [goal]):
        for move in OPPOSITE:
            following = after(board, move)
            if following is not None and following not in found:
                found[following] = found[board] + 1
                queue.append(following)
    return found


def test_a_move_is_named_after_the_tile_that_slides() -> None:
    env = at((1, 2, 0, 3))
    assert say(env, "Down")[0] == (
        "At turn 1, you moved tile 1 down.\n__  2\n 1  3\nEnter your move."
    )
    say(env, "UP")
    observation, reward, terminated, truncated, info = say(env, "left")
    assert observation == "Congratulations! You solved the puzzle in 3 turns.\n 1  2\n 3 __"
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_a_move_without_a_tile_costs_a_turn() -> None:
    env = at((1, 2, 0, 3))
    observation, reward, terminated, _, info = say(env, "up")
    assert "there is no tile below the gap" in observation
    assert (reward, terminated, info["invalid_action"], env.turn) == (0.0, False, True, 1)
    assert tuple(env.tiles) == (1, 2, 0, 3)


@pytest.mark.parametrize("content", ["north", "up up", "u", "1", "ＵＰ"])
def test_other_words_are_format_errors(content: str) -> None:
    assert say(at((1, 2, 0, 3)), content)[4]["format_error"]


def test_running_out_of_turns_pays_the_share_of_cells_in_place() -> None:
    env = at((1, 2, 0, 3), max_turns=1)
    # 1 2 / 0 3 has two cells in place, and keeps them when nothing moves.
    assert say(env, "up")[1:4] == (0.5, False, True)


@given(st.integers(0, 2**32), st.sampled_from([3, 4]))
@settings(max_examples=20)
def test_the_board_shown_is_the_board(seed: int, rows: int) -> None:
    env = FifteenPuzzle(num_rows=rows, max_turns=30)
    env.reset(seed=seed)
    for _ in range(20):
        observation, _, terminated, _, _ = env.step(env.sample_random_action())
        shown = observation.splitlines()[1 : 1 + rows]
        assert [line.split() for line in shown] == [
            [str(tile or "__") for tile in env.tiles[row * rows : (row + 1) * rows]]
            for row in range(rows)
        ]
        assert all(len(line) == 3 * rows - 1 for line in shown)
        if terminated:
            break


def test_small_starts_are_uniform_over_all_unsolved_boards() -> None:
    table = distances(2)
    assert (len(table), max(table.values())) == (12, 6)
    env = make("game:FifteenPuzzle-v0-easy")
    counts: Counter[Any] = Counter()
    for seed in range(2_200):
        env.reset(seed=seed)
        counts[tuple(env.tiles)] += 1
    assert set(counts) == {board for board, n in table.items() if n}
    # 2,200 draws of p = 1/11: standard deviation 13.5; five of them.
    assert all(abs(n - 200) < 68 for n in counts.values())


@pytest.mark.parametrize(("turns", "walk"), [(3, 100), (100, 2)])
def test_small_starts_are_within_both_limits(turns: int, walk: int) -> None:
    table = distances(2)
    env = FifteenPuzzle(num_rows=2, max_turns=turns, mc_rand_moves=walk)
    seen = set()
    for seed in range(60):
        env.reset(seed=seed)
        seen.add(table[tuple(env.tiles)])
    assert seen == set(range(1, min(turns, walk) + 1))


def test_larger_starts_are_walks_no_longer_than_the_limit_and_never_solved() -> None:
    table = distances(3)
    for turns, walk in ((20, 100), (100, 20), (12, 12), (1, 1)):
        env = FifteenPuzzle(num_rows=3, max_turns=turns, mc_rand_moves=walk)
        for seed in range(50):
            env.reset(seed=seed)
            assert 1 <= table[tuple(env.tiles)] <= min(turns, walk)


def test_a_walk_that_comes_back_stops_one_move_short() -> None:
    class Circle(random.Random):
        """The gap goes around the last four cells; three rounds restore the board."""

        def random(self) -> float:
            return next(choices)

    choices = itertools.cycle([0.0, 0.5, 0.0, 0.0])
    one_short = fifteen_puzzle._nearby(3, 11, Circle())
    choices = itertools.cycle([0.0, 0.5, 0.0, 0.0])
    assert fifteen_puzzle._nearby(3, 12, Circle()) == one_short
    assert one_short == (1, 2, 3, 4, 5, 6, 7, 0, 8)


def test_solvable_boards_are_those_that_slides_reach() -> None:
    table = distances(2)
    for board in itertools.permutations(range(4)):
        assert solvable(board) == (board in table)
    table = distances(3)
    shuffler = random.Random(0)
    board = list(range(9))
    verdicts = set()
    for _ in range(100):
        shuffler.shuffle(board)
        assert solvable(board) == (tuple(board) in table)
        verdicts.add(solvable(board))
    assert verdicts == {True, False}


def test_pure_random_starts_are_anywhere_but_can_be_solved() -> None:
    env = FifteenPuzzle(num_rows=4, init_algo="pure_random")
    gaps = set()
    for seed in range(100):
        env.reset(seed=seed)
        assert solvable(env.tiles)
        gaps.add(env.gap)
    assert len(gaps) == 16
    env = FifteenPuzzle(num_rows=2, init_algo="pure_random")
    starts = set()
    for seed in range(200):
        env.reset(seed=seed)
        starts.add(tuple(env.tiles))
    assert len(starts) == 11


def test_a_plan_is_found_exactly_when_the_moves_suffice() -> None:
    table = distances(3)
    for board in random.Random(0).sample(sorted(table), 40):
        n = table[board]
        if n == 0:
            continue
        way = plan(board, n)
        at_board, moves = board, []
        while at_board in way:
            move, left = way[at_board]
            moves.append(move)
            assert left == n - len(moves) + 1
            at_board = after(at_board, move)  # type: ignore[assignment]
        assert (table[at_board], len(moves)) == (0, n)
        assert (*range(1, 9), 0) not in [after(b, m) for b, (m, _) in plan(board, n - 1).items()]


def test_the_estimate_of_the_moves_left_is_never_too_high() -> None:
    walking = fifteen_puzzle._walking(3)
    for board, n in random.Random(1).sample(sorted(distances(3).items()), 2_000):
        down, right = fifteen_puzzle._walking_states(board, 3)
        assert walking.left[down] + walking.left[right] <= n
    # The published number of states of the 15-puzzle.
    assert len(fifteen_puzzle._walking(4).left) == 24_964


@pytest.mark.parametrize(
    ("suffix", "seeds"), [("", 60), ("-easy", 60), ("-hard", 15), ("-random", 20)]
)
def test_the_oracle_wins_every_start_in_time(suffix: str, seeds: int) -> None:
    env = make(f"game:FifteenPuzzle-v0{suffix}")
    assert env.oracle_success == 1
    for seed in range(seeds):
        env.reset(seed=seed)
        done = False
        while not done:
            _, _, done, truncated, info = env.step(env.oracle_action())
            assert not truncated
        assert info["success"]


def test_the_oracle_finds_back_after_other_moves() -> None:
    env = FifteenPuzzle(num_rows=3, max_turns=60, mc_rand_moves=20)
    env.reset(seed=0)
    for turn in range(60):
        policy = env.sample_random_action if turn % 4 == 3 and turn < 20 else env.oracle_action
        _, _, terminated, _, info = env.step(policy())
        if terminated:
            break
    assert info["success"]


def test_no_promise_where_starts_may_be_too_far() -> None:
    assert FifteenPuzzle(3, 31, "pure_random").oracle_success == 1
    assert FifteenPuzzle(3, 30, "pure_random").oracle_success == 0
    assert FifteenPuzzle(None, 50, "pure_random").oracle_success == 0
    assert FifteenPuzzle(5, 100).oracle_success == 0


def test_drawn_rows_and_turns_belong_together_unless_given() -> None:
    env = make("game:FifteenPuzzle-v0-random")
    drawn = set()
    for seed in range(50):
        env.reset(seed=seed)
        drawn.add((env.num_rows, env.max_turns))
    assert drawn == {(2, 10), (3, 20), (4, 50)}
    env = make("game:FifteenPuzzle-v0-random", max_turns=7)
    env.reset(seed=0)
    assert env.max_turns == 7


@pytest.mark.parametrize("wrong", [{"num_rows": 1}, {"mc_rand_moves": 0}, {"init_algo": "walk"}])
def test_wrong_parameters_are_named(wrong: dict[str, Any]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(ConfigurationError, match=rf"{name} must be .*{value!r}"):
        FifteenPuzzle(**wrong)
