"""Wordle: marks, rewards, the word list, the oracle."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gem
from gem.envs.games.wordle import Wordle, mark, splitting_guess, words

PAIRS = st.integers(1, 7).flatmap(
    lambda n: st.tuples(*[st.text("ABC", min_size=n, max_size=n)] * 2)
)


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def started(secret: str, **parameters: Any) -> Wordle:
    """Return a game whose secret is `secret`."""
    env = Wordle(word_length=len(secret), **parameters)
    seed = 0
    while env.reset(seed=seed) and env.secret != secret:
        seed += 1
    return env


def guess(env: Wordle, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


@pytest.mark.parametrize(
    ("guessed", "secret", "expected"),
    [
        ("CRANE", "CRANE", "GGGGG"),
        ("SPEED", "ABIDE", "XXYXY"),
        ("SPEED", "ERASE", "YXYYX"),
        ("SPEED", "STEAL", "GXGXX"),
        ("SPEED", "CREPE", "XYGYX"),
        ("AAB", "BAC", "XGY"),
        ("ALLOY", "LLAMA", "YGYXX"),
    ],
)
def test_marks_by_hand(guessed: str, secret: str, expected: str) -> None:
    assert mark(guessed, secret) == expected


@given(PAIRS)
def test_each_letter_is_marked_as_often_as_both_words_have_it(pair: tuple[str, str]) -> None:
    guessed, secret = pair
    marks = mark(guessed, secret)
    for g, s, m in zip(guessed, secret, marks, strict=True):
        assert (m == "G") == (g == s)
    marked = Counter(g for g, m in zip(guessed, marks, strict=True) if m != "X")
    assert marked == Counter(guessed) & Counter(secret)


def test_every_position_pays_once_when_it_turns_green() -> None:
    env = started("CAT")
    rewards = [guess(env, g)[1] for g in ("COB", "CAB", "BAT", "CAT")]
    assert rewards == pytest.approx([1 / 6, 1 / 6, 1 / 6, 0.5])
    env = started("CAT")
    assert guess(env, "CAT")[1] == pytest.approx(1.0)


def test_feedback_shows_the_word_above_its_marks() -> None:
    env = started("CAT")
    assert guess(env, "tab")[0] == (
        "At turn 1, you guessed TAB.\nFeedback:\nTAB\nYGX\nEnter your guess."
    )
    assert guess(env, "c a, t")[0] == "Congratulations! You guessed the secret word CAT in 2 turns."


@pytest.mark.parametrize(("content", "text"), [("cats", "4 letter(s)"), ("cob", "already guessed")])
def test_invalid_guesses_cost_a_turn(content: str, text: str) -> None:
    env = started("CAT")
    guess(env, "COB")
    observation, reward, terminated, _, info = guess(env, content)
    assert text in observation
    assert (reward, terminated, info["invalid_action"], env.turn) == (0.0, False, True, 2)


@pytest.mark.parametrize("content", ["c4t", "123", "c-a-t", "çat", "ßA"])
def test_what_is_not_made_of_letters_is_a_format_error(content: str) -> None:
    assert guess(started("CAT"), content)[4]["format_error"]


def test_a_guess_must_be_a_word_only_when_asked_for() -> None:
    assert not guess(started("CAT"), "zzz")[4]["invalid_action"]
    env = started("CAT", require_word=True)
    observation, *_, info = guess(env, "zzz")
    assert "not in the word list" in observation
    assert info["invalid_action"]
    assert not guess(env, "dog")[4]["invalid_action"]


def test_a_small_vocabulary_is_listed_and_all_of_it_comes_up() -> None:
    env = make("game:Wordle-v0", word_length=3, vocabulary=8)
    observation, _ = env.reset(seed=0)
    assert f"The secret is one of these words: {', '.join(words(3, 8))}.\n" in observation
    assert len(words(3, 8)) == 8
    assert set(words(3, 8)) < set(words(3))
    seen = set()
    for seed in range(100):
        env.reset(seed=seed)
        seen.add(env.secret)
    assert seen == set(words(3, 8))
    assert "one of these" not in make("game:Wordle-v0").reset(seed=0)[0]


def test_with_a_small_vocabulary_random_guesses_and_required_ones_are_of_it() -> None:
    env = make("game:Wordle-v0", word_length=3, vocabulary=8, require_word=True)
    env.reset(seed=0)
    drawn = {env.sample_random_action()[7:-1] for _ in range(100)}
    assert drawn == set(words(3, 8))
    outside = next(word for word in words(3) if word not in words(3, 8))
    assert guess(env, outside)[4]["invalid_action"]


@pytest.mark.parametrize("require_word", [False, True])
def test_the_oracle_needs_few_guesses_in_a_small_vocabulary(require_word: bool) -> None:
    env = Wordle(word_length=3, vocabulary=8, max_turns=4, require_word=require_word)
    for seed in range(50):
        env.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle_action())
            over = terminated or truncated
        assert info["success"]


@pytest.mark.parametrize(("length", "vocabulary"), [(3, 276), (3, 1), (None, 276), (4, 922)])
def test_a_vocabulary_that_the_list_does_not_have_is_refused(
    length: int | None, vocabulary: int
) -> None:
    with pytest.raises(gem.errors.ConfigurationError, match="vocabulary"):
        make("game:Wordle-v0", word_length=length, vocabulary=vocabulary)


def test_the_word_list_is_what_its_readme_says() -> None:
    listed = files("gem").joinpath("data/words.txt").read_text(encoding="ascii").split()
    assert listed == sorted(set(listed), key=lambda word: (len(word), word))
    assert all(word.isalpha() and word.islower() and 3 <= len(word) <= 7 for word in listed)
    readme = files("gem").joinpath("data/README.md").read_text(encoding="utf-8")
    assert f"{len(listed):,} common English words" in readme
    licence = files("gem").joinpath("data/LICENSE-SCOWL.txt").read_text(encoding="utf-8")
    assert "Kevin Atkinson" in licence
    assert "Permission to use, copy, modify, distribute" in licence
    assert {n: len(words(n)) for n in (3, 4, 5)} == {3: 275, 4: 921, 5: 1364}


@pytest.mark.parametrize("require_word", [False, True])
@pytest.mark.parametrize(("length", "limit"), [(3, 15), (4, 20), (5, 15), (6, 30), (7, 35)])
def test_the_oracle_finds_every_word_in_time(length: int, limit: int, require_word: bool) -> None:
    # Words with the same feedback so far get the same guess: walk all of them at once.
    groups = [list(words(length))]
    for _ in range(limit):
        following = []
        for group in groups:
            guessed = splitting_guess(group, words(length) if require_word else None)
            if require_word:
                assert guessed in words(length)
            by_marks: dict[str, list[str]] = {}
            for word in group:
                by_marks.setdefault(mark(guessed, word), []).append(word)
            by_marks.pop("G" * length, None)
            following.extend(by_marks.values())
        groups = following
    assert groups == []


def test_families_of_words_are_split_instead_of_tried_one_by_one() -> None:
    family = [w for w in words(3) if w[1:] == "AT"]
    assert len(family) >= 9
    guessed = splitting_guess(family, None)
    groups = Counter(mark(guessed, word) for word in family)
    assert max(groups.values()) <= len(family) - 3


def test_drawn_parameters_belong_together_unless_given() -> None:
    env = make("game:Wordle-v0-random")
    seen = set()
    for seed in range(100):
        env.reset(seed=seed)
        seen.add((env.word_length, env.max_turns))
        assert len(env.secret) == env.word_length
    assert seen == {(3, 15), (4, 20), (5, 25)}
    env = make("game:Wordle-v0-random", max_turns=6)
    env.reset(seed=0)
    assert env.max_turns == 6


@pytest.mark.parametrize("require_word", [False, True])
@pytest.mark.parametrize("turns", [2, 3])
def test_the_oracle_wins_the_share_of_words_that_it_says(turns: int, require_word: bool) -> None:
    env = Wordle(4, turns, require_word=require_word, vocabulary=30)
    won = {}
    for seed in range(600):
        env.reset(seed=seed)
        if env.secret in won:
            continue
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.oracle_action())
            over = terminated or truncated
        won[env.secret] = info["success"]
    assert len(won) == 30
    assert sum(won.values()) / 30 == pytest.approx(env.oracle_success)
    assert Wordle().oracle_success == Wordle(None, None).oracle_success == 1.0
    assert Wordle(3, 3).oracle_success < 0.5
