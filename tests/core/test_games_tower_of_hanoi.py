"""TowerofHanoi: rules, rewards, the shortest way from every position."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import gem
from gem.envs.games.tower_of_hanoi import TowerofHanoi, next_move


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def started(**parameters: Any) -> TowerofHanoi:
    env = TowerofHanoi(**parameters)
    env.reset(seed=0)
    return env


def say(env: TowerofHanoi, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


def test_a_move_carries_the_top_disk_and_shows_the_pegs_from_bottom_to_top() -> None:
    env = started(num_disks=3)
    assert say(env, "A C")[0] == (
        "At turn 1, you moved disk 1 from A to C.\nA: [3, 2]\nB: []\nC: [1]\nEnter your move."
    )


@pytest.mark.parametrize("content", ["AC", "a c", "A,C", " a , C ", "aC"])
def test_separators_and_case_do_not_matter(content: str) -> None:
    assert say(env := started(), content)[4]["invalid_action"] is False
    assert env.pegs == [[3, 2], [], [1]]


@pytest.mark.parametrize("content", ["A", "A D", "A B C", "1 2", "A-B", "A to B", "A\x00B"])
def test_what_does_not_name_two_pegs_is_a_format_error(content: str) -> None:
    assert say(started(), content)[4]["format_error"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("B A", "there is no disk on B"),
        ("A C", "disk 2 may not lie on the smaller disk 1"),
        ("A A", "these are the same peg"),
    ],
)
def test_illegal_moves_cost_a_turn_and_change_nothing(content: str, text: str) -> None:
    env = started()
    say(env, "A C")
    observation, reward, terminated, truncated, info = say(env, content)
    assert text in observation
    assert (reward, terminated, truncated, info["invalid_action"]) == (0.0, False, False, True)
    assert (env.pegs, env.turn) == ([[3, 2], [], [1]], 2)


def test_the_win_pays_one_and_running_out_of_turns_the_share_of_disks_on_c() -> None:
    env = started(num_disks=2, max_turns=3)
    assert [say(env, move)[1:4] for move in ("A B", "A C", "B C")] == [
        (0.0, False, False),
        (0.0, False, False),
        (1.0, True, False),
    ]
    env = started(num_disks=3, max_turns=2)
    say(env, "A C")
    assert say(env, "A A")[1:4] == (pytest.approx(1 / 3), False, True)


@pytest.mark.parametrize("disks", [1, 2, 3, 4])
def test_the_oracle_takes_the_shortest_way_from_every_position(disks: int) -> None:
    positions = list(product(range(3), repeat=disks))

    def pegs_of(position: tuple[int, ...]) -> list[list[int]]:
        # The smallest disk is the first of a position.
        return [[d + 1 for d in reversed(range(disks)) if position[d] == p] for p in range(3)]

    def after(position: tuple[int, ...], source: int, destination: int) -> tuple[int, ...] | None:
        tops = [pegs[-1] if pegs else disks + 1 for pegs in pegs_of(position)]
        if tops[source] >= tops[destination]:
            return None
        moved = tops[source] - 1
        return (*position[:moved], destination, *position[moved + 1 :])

    # Moves can be taken back, so distances from the goal are distances to it.
    distance = {(2,) * disks: 0}
    for position in (queue := [(2,) * disks]):
        for move in product(range(3), repeat=2):
            following = after(position, *move)
            if following is not None and following not in distance:
                distance[following] = distance[position] + 1
                queue.append(following)
    assert len(distance) == len(positions)
    assert distance[(0,) * disks] == 2**disks - 1
    for position in positions:
        if distance[position]:
            following = after(position, *next_move(pegs_of(position)))
            assert following is not None
            assert distance[following] == distance[position] - 1


@pytest.mark.parametrize(
    ("suffix", "disks", "turns"), [("", 4, 20), ("-easy", 3, 10), ("-hard", 5, 35)]
)
def test_every_fixed_id_can_be_won_in_time(suffix: str, disks: int, turns: int) -> None:
    env = make(f"game:TowerofHanoi-v0{suffix}")
    env.reset(seed=0)
    assert (env.num_disks, env.max_turns) == (disks, turns)
    done = False
    while not done:
        _, _, done, truncated, info = env.step(env.oracle_action())
        assert not truncated
    assert info["success"]
    assert env.turn == 2**disks - 1


def test_drawn_disks_and_turns_belong_together_unless_given() -> None:
    env = make("game:TowerofHanoi-v0-random")
    drawn = set()
    for seed in range(50):
        env.reset(seed=seed)
        drawn.add((env.num_disks, env.max_turns))
    assert drawn == {(3, 10), (4, 20), (5, 35)}
    env = make("game:TowerofHanoi-v0-random", num_disks=7)
    env.reset(seed=0)
    assert env.max_turns == 2**7 + 4


def test_the_oracle_promises_only_what_the_turns_allow() -> None:
    assert TowerofHanoi(3, 7).oracle_success == 1
    assert TowerofHanoi(3, 6).oracle_success == 0
    assert TowerofHanoi(None, 15).oracle_success == pytest.approx(2 / 3)
    assert TowerofHanoi(None, None).oracle_success == 1


def test_random_actions_are_legal() -> None:
    env = started(num_disks=3, max_turns=300)
    done = False
    while not done:
        *_, terminated, truncated, info = env.step(env.sample_random_action())
        done = terminated or truncated
        assert not info["invalid_action"]
