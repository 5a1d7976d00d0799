"""Hangman: letters and words, rewards, the words that can be found in time, the oracle."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.envs.games.hangman import Hangman, next_guess, uncovered, winnable
from gem.envs.games.words import word_list, words_of_length
from gem.errors import ConfigurationError


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def started(secret: str, **parameters: Any) -> Hangman:
    """Return a game whose secret is `secret`."""
    env = Hangman(word_length=len(secret), **parameters)
    env.reset(seed=0)
    env.secret = secret
    return env


def guess(env: Hangman, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


def test_a_letter_uncovers_all_its_places() -> None:
    observation, reward, *_ = guess(started("LEVEL"), "e")
    assert observation == (
        "At turn 1, you guessed the letter E, which is in the word 2 time(s).\n"
        "C00 C01 C02 C03 C04\n"
        " _   E   _   E   _\n"
        "Enter your guess."
    )
    assert reward == pytest.approx(0.2)


def test_the_last_letter_wins() -> None:
    env = started("LEVEL")
    rewards = [guess(env, letter)[1] for letter in "EV"]
    observation, reward, terminated, truncated, info = guess(env, "L")
    assert observation == (
        "Congratulations! You found the secret word LEVEL in 3 turns.\n"
        "C00 C01 C02 C03 C04\n"
        " L   E   V   E   L"
    )
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert [*rewards, reward] == pytest.approx([0.2, 0.1, 0.7])


def test_the_whole_word_pays_what_was_still_hidden() -> None:
    env = started("LEVEL")
    guess(env, "E")
    _, reward, terminated, _, info = guess(env, "level")
    assert (reward, terminated, info["success"]) == (pytest.approx(0.8), True, True)
    assert guess(started("LEVEL"), "LEVEL")[1] == pytest.approx(1.0)


@settings(max_examples=40)
@given(st.sampled_from(words_of_length(False, 6)), st.permutations(string.ascii_uppercase))
def test_every_won_game_pays_one_whatever_the_order_of_letters(word: str, letters: Any) -> None:
    env = started(word.upper(), max_turns=26)
    total = 0.0
    for letter in letters:
        _, reward, terminated, _, _ = guess(env, letter)
        total += reward
        if terminated:
            break
    assert terminated
    assert total == pytest.approx(1.0)
    assert env.known == env.secret


@pytest.mark.parametrize("content", ["X", "crane"])
def test_a_wrong_guess_costs_a_turn_and_nothing_else(content: str) -> None:
    env = started("LEVEL")
    observation, reward, terminated, _, info = guess(env, content)
    assert f"{content.upper()}, which is not" in observation
    assert (reward, terminated, info["invalid_action"], env.known) == (0.0, False, False, "_____")


@pytest.mark.parametrize(
    ("content", "text"),
    [("E", "already guessed"), ("crane", "already guessed"), ("abc", "3 letter(s)")],
)
def test_invalid_guesses_cost_a_turn(content: str, text: str) -> None:
    env = started("LEVEL")
    guess(env, "E")
    guess(env, "CRANE")
    observation, reward, terminated, _, info = guess(env, content)
    assert text in observation
    assert (reward, terminated, info["invalid_action"], env.turn) == (0.0, False, True, 3)


@pytest.mark.parametrize("content", ["l e v e l", "L,E,V,E,L", " level "])
def test_separated_letters_are_a_word(content: str) -> None:
    assert guess(started("LEVEL"), content)[4]["success"]


@pytest.mark.parametrize("content", ["", "4", "é", "ß", "a-b", "_"])
def test_what_is_not_made_of_letters_is_a_format_error(content: str) -> None:
    assert guess(started("LEVEL"), content)[4]["format_error"]


def test_the_prompt_has_an_example_of_each_kind_of_guess() -> None:
    observation, _ = make("game:Hangman-v0").reset(seed=0)
    word = winnable(False, 5, 15)[0]
    assert f"\\boxed{{A}} for a letter or \\boxed{{{word}}} for a word" in observation
    assert observation.endswith("C00 C01 C02 C03 C04\n _   _   _   _   _\nEnter your guess.")


@pytest.mark.parametrize(
    ("hardcore", "length", "turns"),
    [(False, 3, 10), (False, 5, 15), (False, 7, 20), (True, 4, 15), (False, 4, 6)],
)
def test_the_oracle_finds_every_word_that_can_be_the_secret(
    hardcore: bool, length: int, turns: int
) -> None:
    for secret in winnable(hardcore, length, turns):
        known, letters, words = "_" * length, "", ()
        for used in range(turns):
            move = next_guess(hardcore, known, letters, words, turns - used)
            if move in secret:
                known = uncovered(secret, known, move)
            if known == secret:
                break
            if len(move) == 1:
                letters = "".join(sorted(letters + move))
            else:
                words = tuple(sorted((*words, move)))
        assert known == secret


def test_only_few_turns_keep_words_from_being_secrets() -> None:
    for hardcore in (False, True):
        for length in {len(word) for word in word_list(hardcore)}:
            words = {word.upper() for word in words_of_length(hardcore, length)}
            assert set(winnable(hardcore, length, 15)) <= words
            assert set(winnable(hardcore, length, 16)) == words
    assert len(winnable(False, 3, 10)) == 232
    assert len(winnable(False, 5, 15)) == len(words_of_length(False, 5))


@pytest.mark.parametrize("hardcore", [False, True])
def test_sixteen_turns_suffice_for_every_word(
    hardcore: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gem.envs.games.hangman._ENOUGH", 17)
    for length in {len(word) for word in word_list(hardcore)}:
        found = winnable.__wrapped__(hardcore, length, 16)
        assert len(found) == len(words_of_length(hardcore, length))


def test_the_oracle_goes_on_from_what_others_did() -> None:
    env = make("game:Hangman-v0-hard")
    for seed in range(20):
        env.reset(seed=seed)
        for _ in range(4):
            env.step(env.sample_random_action())
        done = False
        while not done:
            _, _, done, truncated, info = env.step(env.oracle_action())
            assert not truncated
        assert info["success"]


def test_drawn_parameters_belong_together_unless_given() -> None:
    env = make("game:Hangman-v0-random")
    seen = set()
    for seed in range(60):
        env.reset(seed=seed)
        seen.add((env.word_length, env.max_turns))
        assert len(env.secret) == env.word_length
    assert seen == {(3, 10), (5, 15), (7, 20)}
    env = make("game:Hangman-v0-random", hardcore=None, max_turns=16)
    drawn = set()
    for seed in range(30):
        env.reset(seed=seed)
        drawn.add((env.hardcore, env.max_turns))
    assert drawn == {(False, 16), (True, 16)}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"word_length": 8}, "word_length must be an integer from 3 to 7, got 8"),
        ({"word_length": 13, "hardcore": True}, "word_length must be an integer from 3 to 12"),
        ({"word_length": 8, "hardcore": None}, "word_length must be an integer from 3 to 7"),
        ({"hardcore": 1}, "hardcore must be True or False"),
        ({"max_turns": 0}, "max_turns must be an integer"),
    ],
)
def test_impossible_parameters_name_what_is_allowed(parameters: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Hangman(**parameters)
