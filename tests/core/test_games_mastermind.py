"""Mastermind: pegs, rewards, codes with and without duplicates, the oracle."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gem
from gem.envs.games.mastermind import Mastermind, pegs

CODES = st.integers(1, 6).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(1, 5), min_size=n, max_size=n).map(tuple)] * 2)
)


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def started(code: tuple[int, ...], **parameters: Any) -> Mastermind:
    """Return a game whose secret is `code`."""
    numbers = {"code_length": len(code), "num_numbers": 6, **parameters}
    env = Mastermind(**numbers)
    seed = 0
    while env.reset(seed=seed) and env.code != code:
        seed += 1
    return env


def guess(env: Mastermind, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


@pytest.mark.parametrize(
    ("guessed", "code", "expected"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4), (4, 0)),
        ((1, 2, 3, 4), (4, 3, 2, 1), (0, 4)),
        ((1, 1, 2, 2), (2, 1, 1, 3), (1, 2)),
        ((1, 1, 1, 1), (1, 2, 3, 4), (1, 0)),
        ((2, 1, 1, 1), (1, 2, 3, 4), (0, 2)),
        ((5, 5), (1, 2), (0, 0)),
    ],
)
def test_pegs_by_hand(guessed: Any, code: Any, expected: tuple[int, int]) -> None:
    assert pegs(guessed, code) == expected


@given(CODES)
def test_pegs_agree_with_the_definition_by_multisets(codes: Any) -> None:
    guessed, code = codes
    black = sum(g == c for g, c in zip(guessed, code, strict=True))
    common = sum((Counter(guessed) & Counter(code)).values())
    assert pegs(guessed, code) == (black, common - black) == pegs(code, guessed)


def test_each_further_black_peg_pays_once() -> None:
    env = started((1, 2, 3, 4))
    rewards = [guess(env, g)[1] for g in ("1 2 5 6", "1 5 6 2", "1 2 3 5", "5 6 1 2", "1 2 3 4")]
    assert rewards == [0.5, 0.0, 0.25, 0.0, 0.25]


def test_feedback_and_win() -> None:
    env = started((1, 2, 3, 4))
    assert guess(env, "1 3, 5  6")[0] == (
        "At turn 1, you guessed 1 3 5 6. This guess receives 1 black peg(s) and 1 white peg(s).\n"
        "Enter your guess."
    )
    observation, _, terminated, _, info = guess(env, "1,2,3,4")
    assert observation == "Congratulations! You guessed the correct code 1 2 3 4 in 2 turns."
    assert terminated
    assert info["success"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("1 2 3", "you guessed 3 number(s), but the code has 4"),
        ("1 2 3 7", "outside the range 1 to 6"),
        ("0 1 2 3", "outside the range 1 to 6"),
        ("-1 2 3 4", "outside the range 1 to 6"),
        ("1 2 5 6", "already guessed"),
    ],
)
def test_invalid_guesses_cost_a_turn(content: str, text: str) -> None:
    env = started((1, 2, 3, 4))
    guess(env, "1 2 5 6")
    observation, reward, terminated, _, info = guess(env, content)
    assert text in observation
    assert (reward, terminated, info["invalid_action"], env.turn) == (0.0, False, True, 2)


@pytest.mark.parametrize("content", ["1 2 3 x", "1-2-3-4", "1;2;3;4", ","])
def test_what_is_no_list_of_numbers_is_a_format_error(content: str) -> None:
    assert guess(started((1, 2, 3, 4)), content)[4]["format_error"]


def test_guesses_may_repeat_a_number_where_the_code_may_not() -> None:
    assert not guess(started((1, 2, 3, 4)), "1 1 1 1")[4]["invalid_action"]


def test_codes_longer_than_the_numbers_need_duplicates() -> None:
    env = make("game:Mastermind-v0", code_length=5, num_numbers=2, duplicate_numbers=True)
    observation, _ = env.reset(seed=0)
    assert "Duplicate numbers are allowed" in str(observation)
    assert set(env.code) <= {1, 2}
    assert not env.step(env.sample_random_action())[4]["invalid_action"]


def test_codes_without_duplicates_are_uniform() -> None:
    env = make("game:Mastermind-v0-easy")
    counts: Counter[Any] = Counter()
    for seed in range(6_000):
        env.reset(seed=seed)
        counts[env.code] += 1
    assert set(counts) == set(permutations(range(1, 7), 2))
    # 6,000 draws of p = 1/30: standard deviation 14; five of them.
    assert all(abs(n - 200) < 70 for n in counts.values())


@pytest.mark.parametrize(("suffix", "limit"), [("-easy", 10), ("", 20), ("-hard", 30)])
def test_the_oracle_finds_every_code_in_time(suffix: str, limit: int) -> None:
    env = make(f"game:Mastermind-v0{suffix}")
    env.reset(seed=0)
    assert env.max_turns == limit
    codes = list(env._all_codes())
    groups = [codes]
    # The oracle plays the first code that agrees with the answers: walk all answers at once.
    for _ in range(limit):
        following = []
        for group in groups:
            by_answer: dict[Any, list[Any]] = {}
            for code in group[1:]:
                by_answer.setdefault(pegs(group[0], code), []).append(code)
            following.extend(by_answer.values())
        groups = following
    assert groups == []


def test_drawn_parameters_belong_together_unless_given() -> None:
    env = make("game:Mastermind-v0-random")
    seen = set()
    for seed in range(100):
        env.reset(seed=seed)
        seen.add((env.code_length, env.num_numbers, env.max_turns))
    assert seen == {(2, 4, 10), (4, 6, 20), (4, 8, 30)}
    env = make("game:Mastermind-v0-random", num_numbers=3, max_turns=7)
    for seed in range(20):
        env.reset(seed=seed)
        drawn = env.code_length, env.num_numbers, env.max_turns
        assert drawn == (2, 3, 7)


@pytest.mark.parametrize(("duplicates", "turns"), [(False, 2), (False, 4), (True, 3), (True, 5)])
def test_the_oracle_wins_the_share_of_codes_that_it_says(duplicates: bool, turns: int) -> None:
    env = Mastermind(2, 5, duplicates, turns)
    won = {}
    for seed in range(600):
        env.reset(seed=seed)
        if env.code in won:
            continue
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle_action())
            over = terminated or truncated
        won[env.code] = info["success"]
    assert len(won) == (25 if duplicates else 20)
    assert sum(won.values()) / len(won) == pytest.approx(env.oracle_success)
    assert Mastermind(None, None, max_turns=None).oracle_success == 1.0
    assert Mastermind(20, 99).oracle_success == 0.0
