"""GuessTheNumber: hints, rewards, drawn parameters, texts."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

import gem
from gem.envs.games.guess_the_number import GuessTheNumber


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def started(target: int, **parameters: Any) -> GuessTheNumber:
    """Return a game whose secret is `target`."""
    env = GuessTheNumber(**{"min_number": 1, "max_number": 10, "max_turns": 4, **parameters})
    seed = 0
    while env.reset(seed=seed) and env.target != target:
        seed += 1
    return env


def guess(env: GuessTheNumber, number: object) -> Any:
    return env.step(f"\\boxed{{{number}}}")


def test_hints_lead_to_the_number() -> None:
    env = started(7)
    observation, reward, *_ = guess(env, 3)
    assert observation == (
        "At turn 1, you guessed 3, and the target number is higher than 3.\nEnter your guess."
    )
    assert reward == 0.0
    assert "the target number is lower than 9." in guess(env, 9)[0]
    assert guess(env, 7) == (
        "Congratulations! You guessed the correct number 7 in 3 turns.",
        1.0,
        True,
        False,
        {"success": True, "format_error": False, "invalid_action": False},
    )


def test_the_range_hint_restates_what_is_possible_whatever_the_guess() -> None:
    env = started(7, hint="range", max_turns=9)
    assert "still possible" in env.reset(seed=env.episode_key[0])[0]
    for number, expected in [(3, "4 and 10"), (9, "4 and 8"), (1, "4 and 8"), (9, "4 and 8")]:
        assert f"It is between {expected}.\n" in guess(env, number)[0]
    assert "It is between 4 and 8.\n" in guess(env, 99)[0]


def test_out_of_range_and_repeated_guesses_cost_a_turn() -> None:
    env = started(7)
    guess(env, 3)
    for number, text in [(0, "outside the range"), (11, "outside the range"), (3, "already")]:
        observation, reward, terminated, _, info = guess(env, number)
        assert text in observation
        assert (reward, terminated, info["invalid_action"]) == (0.0, False, True)
    assert env.turn == 4


@pytest.mark.parametrize("content", ["7", " 7 ", "+7", "007"])
def test_spellings_of_a_number(content: str) -> None:
    assert guess(started(7), content)[4]["success"]


def test_zero_and_negative_numbers_are_numbers() -> None:
    assert guess(started(0, min_number=-3, max_number=3), 0)[4]["success"]
    assert guess(started(-2, min_number=-3, max_number=3), "-2")[4]["success"]


@pytest.mark.parametrize("content", ["7.0", "seven", "7 8", "٧", "²", "0x7", "1_0", "--7"])
def test_what_is_no_integer_is_a_format_error(content: str) -> None:
    assert guess(started(7), content)[4]["format_error"]


@pytest.mark.parametrize(
    ("soft", "number", "expected"),
    [(False, 8, 0.0), (True, 8, 1 - 1 / 9), (True, 10, 1 - 3 / 9), (True, 3, 0.0), (True, 11, 0.0)],
)
def test_a_near_miss_on_the_last_turn_pays_only_when_asked_for(
    soft: bool, number: int, expected: float
) -> None:
    env = started(7, max_turns=2, soft_reward=soft)
    assert guess(env, 3)[1] == 0.0
    _, reward, terminated, truncated, _ = guess(env, number)
    assert reward == pytest.approx(expected)
    assert (terminated, truncated) == (False, True)


def test_secrets_are_uniform() -> None:
    env = make("game:GuessTheNumber-v0-easy")
    counts: Counter[int] = Counter()
    for seed in range(5_000):
        env.reset(seed=seed)
        counts[env.target] += 1
    assert set(counts) == set(range(1, 11))
    # 5,000 draws of p = 0.1: standard deviation 21; five of them.
    assert all(abs(n - 500) < 106 for n in counts.values())


def test_every_secret_of_every_fixed_id_is_found_in_time() -> None:
    for suffix in ("", "-easy", "-hard"):
        env = make(f"game:GuessTheNumber-v0{suffix}")
        found = set()
        seed = 0
        env.reset(seed=seed)
        size = env.max_number - env.min_number + 1
        while len(found) < size:
            done = False
            while not done:
                _, _, terminated, truncated, info = env.step(env.oracle_action())
                done = terminated or truncated
            assert info["success"]
            found.add(env.target)
            seed += 1
            env.reset(seed=seed)


def test_open_parameters_are_drawn_and_given_ones_kept() -> None:
    env = make("game:GuessTheNumber-v0-random")
    seen = set()
    for seed in range(300):
        env.reset(seed=seed)
        low, high = env.min_number, env.max_number
        assert 1 <= low <= 10
        assert 5 <= high - low <= 50
        assert env.max_turns == math.ceil(math.sqrt(high - low)) + 1
        # Bisection must always suffice.
        assert 2**env.max_turns > high - low + 1
        seen.add((low, high))
    assert len(seen) > 100
    env = make("game:GuessTheNumber-v0-random", max_number=4, max_turns=2)
    for seed in range(50):
        env.reset(seed=seed)
        assert env.max_number == 4
        assert env.min_number < 4
        assert env.max_turns == 2


def test_short_texts_say_the_same_in_fewer_words() -> None:
    env = started(7, prompt="short", hint="range", max_turns=9)
    observation, _ = env.reset(seed=env.episode_key[0])
    assert observation == (
        "Guess a number between 1 and 10 within 9 turns. Answer in \\boxed{}.\nEnter your guess."
    )
    told = [guess(env, number)[0].splitlines()[0] for number in (3, 9, 3, 0)]
    assert told == [
        "Turn 1: higher than 3. It is between 4 and 10.",
        "Turn 2: lower than 9. It is between 4 and 8.",
        "Turn 3: already guessed. It is between 4 and 8.",
        "Turn 4: outside the range. It is between 4 and 8.",
    ]
    full = started(7, hint="range", max_turns=9)
    for _ in range(3):
        action = full.oracle_action()
        assert len(env.step(action)[0]) <= len(full.step(action)[0])


def test_hints_never_contradict_each_other() -> None:
    env = make("game:GuessTheNumber-v0-hard", hint="range")
    for seed in range(100):
        env.reset(seed=seed)
        ranges = [(1, 50)]
        done = False
        while not done:
            _, _, terminated, truncated, _ = env.step(env.sample_random_action())
            done = terminated or truncated
            ranges.append((env.low, env.high))
            target = env.target
            assert ranges[-1][0] <= target <= ranges[-1][1]
        assert all(a <= c and d <= b for (a, b), (c, d) in pairwise(ranges))


@pytest.mark.parametrize(("numbers", "turns"), [(20, 4), (20, 5), (10, 3), (2, 1), (100, None)])
def test_the_oracle_wins_the_share_of_starts_that_it_says(numbers: int, turns: int | None) -> None:
    env = GuessTheNumber(1, numbers, turns)
    won = {}
    for seed in range(40 * numbers):
        env.reset(seed=seed)
        if env.target in won:
            continue
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle_action())
            over = terminated or truncated
        won[env.target] = info["success"]
    assert len(won) == numbers
    assert sum(won.values()) / numbers == pytest.approx(env.oracle_success)
    assert GuessTheNumber(None, None, None).oracle_success == 1.0
    assert GuessTheNumber(None, None, 6).oracle_success == 1.0
    assert GuessTheNumber(None, None, 5).oracle_success == 31 / 51
