"""Crosswords: clues with one answer, layouts that hold, letters, rewards, the oracle."""

from __future__ import annotations

import random
import re
from collections import Counter
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.envs.games.crosswords import (
    Crosswords,
    Slot,
    answers,
    clue_book,
    crossings,
    drawn_puzzle,
    drawn_words,
    fits,
)
from gem.envs.games.words import word_list
from gem.errors import ConfigurationError

IDS = [f"game:Crosswords-v0{suffix}" for suffix in ("", "-easy", "-hard", "-random")]
SEEDS = st.integers(0, 2**32)


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def put(env: Any, content: object) -> Any:
    return env.step(f"\\boxed{{{content}}}")


def grid_of(observation: str) -> list[list[str]]:
    """Read the board back."""
    rows = [line[4:] for line in observation.split("\n") if re.match(r"R\d\d ", line)]
    return [row.split() for row in rows]


def test_every_word_has_several_clues_and_there_are_many_words() -> None:
    easy, hard = clue_book(False), clue_book(True)
    assert len(easy) + len(hard) >= 1000
    assert not set(easy) & set(hard)
    assert all(len(set(clues)) >= 4 for book in (easy, hard) for clues in book.values())
    assert {len(word) for word in easy} == {3, 4, 5, 6, 7}
    assert {len(word) for word in hard} == {3, 4, 5, 6, 7, 8}


def test_easy_words_are_common_and_hard_ones_are_not() -> None:
    common = {word.upper() for word in word_list(False)}
    assert set(clue_book(False)) <= common
    assert not set(clue_book(True)) & common
    assert set(clue_book(True)) <= {word.upper() for word in word_list(True)}


def test_no_clue_fits_two_words_of_the_same_length() -> None:
    seen = Counter(
        (clue.lower(), len(word))
        for hardcore in (False, True)
        for word, clues in clue_book(hardcore).items()
        for clue in clues
    )
    assert max(seen.values()) == 1


@pytest.mark.parametrize("hardcore", [False, True])
def test_no_clue_has_its_word_in_it(hardcore: bool) -> None:
    for word, clues in clue_book(hardcore).items():
        for clue in clues:
            assert not re.search(rf"\b{word}", clue, re.IGNORECASE), (word, clue)
            assert re.fullmatch(r"[ -~]{10,72}", clue)


def test_the_clues_are_light_and_their_licence_is_shipped() -> None:
    data = files("gem").joinpath("data")
    sizes = [len(data.joinpath(n).read_bytes()) for n in ("clues.tsv", "clues_hard.tsv")]
    assert sum(sizes) < 400_000
    assert "WordNet 3.0 Copyright" in data.joinpath("LICENSE-WORDNET.txt").read_text()
    readme = data.joinpath("README.md").read_text(encoding="utf-8")
    assert f"{len(clue_book(False)):,} common words" in readme
    assert f"{len(clue_book(True))} rarer words" in readme


@settings(max_examples=60)
@given(SEEDS, st.booleans(), st.integers(1, 10), st.integers(0, 60))
def test_every_word_asked_for_has_a_place_and_touches_no_other(
    seed: int, hardcore: bool, num_words: int, spare: int
) -> None:
    cells = 3 * num_words + spare
    slots, size = drawn_puzzle(random.Random(seed), hardcore, num_words, cells)
    assert len({slot.word for slot in slots}) == len(slots) == num_words
    grid: dict[Any, str] = {}
    for slot in slots:
        for cell, letter in slot.cells():
            assert grid.setdefault(cell, letter) == letter
            assert min(cell) >= 0 and max(cell) < size
    assert len(grid) <= cells
    # Whatever stands side by side is a word: all runs of the grid are the slots, and nothing else.
    runs = set()
    for across in (True, False):
        lines = range(size)
        for line in lines:
            text = "".join(grid.get((line, i) if across else (i, line), " ") for i in lines)
            runs |= {
                (m[0], *((line, m.start()) if across else (m.start(), line)), across)
                for m in re.finditer(r"\w\w+", text)
            }
    assert runs == {tuple(slot) for slot in slots}


@settings(max_examples=60)
@given(SEEDS, st.booleans(), st.integers(1, 10), st.integers(0, 50))
def test_words_are_drawn_within_their_letters(
    seed: int, hardcore: bool, num_words: int, spare: int
) -> None:
    words = drawn_words(random.Random(seed), hardcore, num_words, 3 * num_words + spare)
    assert len(set(words)) == num_words
    assert sum(map(len, words)) <= 3 * num_words + spare


def test_most_words_cross_another_one() -> None:
    crossing = 0
    for seed in range(100):
        slots, _ = drawn_puzzle(random.Random(seed), False, 3, 30)
        crossing += len({cell for slot in slots for cell, _ in slot.cells()}) < sum(
            len(slot.word) for slot in slots
        )
    assert crossing >= 90


def test_crossings_by_hand() -> None:
    slot = Slot("CAT", 2, 3, True)
    assert list(crossings("TAR", [slot])) == [Slot("TAR", 1, 4, False), Slot("TAR", 2, 5, False)]
    down = Slot("CAT", 2, 3, False)
    assert list(crossings("SO", [down])) == []
    assert list(crossings("AS", [down])) == [Slot("AS", 3, 3, True)]


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        (Slot("TAR", 1, 4, False), True),
        (Slot("TAR", 2, 4, False), False),
        (Slot("AS", 2, 6, True), False),
        (Slot("AS", 2, 7, True), True),
        (Slot("AS", 3, 2, True), False),
        (Slot("AS", 0, 3, False), False),
        (Slot("OX", 4, 0, True), True),
        (Slot("OX", 4, 8, True), False),
        (Slot("OX", -1, 0, False), False),
    ],
)
def test_words_cross_in_a_letter_and_otherwise_keep_apart(slot: Slot, expected: bool) -> None:
    grid = dict(Slot("CAT", 2, 3, True).cells())
    assert fits(slot, grid, 9) is expected


@pytest.mark.parametrize("env_id", IDS)
def test_the_oracle_solves_every_puzzle_from_its_clues_within_the_turns(env_id: str) -> None:
    env = make(env_id)
    for seed in range(30):
        env.reset(seed=seed)
        assert env.num_cells <= env.max_turns
        total, done = 0.0, False
        while not done:
            _, reward, done, truncated, info = env.step(env.oracle_action())
            assert not truncated
            assert reward > 0
            total += reward
        assert info["success"]
        assert total == pytest.approx(1.0)
        assert env.turn == env.num_cells


def test_the_board_shows_the_cells_and_the_clues_where_each_word_begins() -> None:
    env = make("game:Crosswords-v0-easy")
    observation, _ = env.reset(seed=1)
    grid = grid_of(observation)
    assert len(grid) == env.size == round(1.5 * len(env.slots[0].word))
    shown = {(r, c): cell for r, row in enumerate(grid) for c, cell in enumerate(row)}
    assert {cell for cell, mark in shown.items() if mark == "_"} == set(env.left)
    assert set(shown.values()) == {"_", "."}
    listed = re.findall(
        r"^(\d+)\. (.+) \((across|down)\): (\d) letters, from row (\d+) column (\d+)$",
        observation,
        re.MULTILINE,
    )
    assert [int(number) for number, *_ in listed] == [1, 2, 3]
    for (_, clue, direction, length, row, col), slot in zip(listed, env.slots, strict=True):
        assert answers(False)[clue, int(length)] == slot.word
        assert (direction == "across", int(row), int(col)) == (slot.across, slot.row, slot.col)


def test_a_right_letter_is_shown_and_pays_its_share() -> None:
    env = make("game:Crosswords-v0-hard")
    env.reset(seed=2)
    (row, col), letter = next(iter(env.left.items()))
    observation, reward, *_ = put(env, f"{row}, {col}  {letter.lower()}")
    assert observation.startswith(
        f"At turn 1, you put {letter} in row {row} column {col}, which is right.\n"
    )
    assert grid_of(observation)[row][col] == letter
    assert reward == pytest.approx(1 / env.num_cells)
    assert observation.endswith("Enter your letter.")


def test_a_wrong_letter_costs_a_turn_and_is_not_shown() -> None:
    env = make("game:Crosswords-v0-hard")
    first, _ = env.reset(seed=2)
    (row, col), letter = next(iter(env.left.items()))
    wrong = "A" if letter != "A" else "B"
    observation, reward, terminated, _, info = put(env, f"{row} {col} {wrong}")
    assert "not the right letter" in observation
    assert grid_of(observation) == grid_of(first)
    assert (reward, terminated, info["invalid_action"]) == (0.0, False, False)


@pytest.mark.parametrize("where", ["99 0", "-1 0", "0 99"])
def test_letters_outside_the_grid_are_invalid(where: str) -> None:
    env = make("game:Crosswords-v0-hard")
    env.reset(seed=2)
    observation, reward, terminated, _, info = put(env, f"{where} A")
    assert "outside the grid" in observation
    assert (reward, terminated, info["invalid_action"]) == (0.0, False, True)


def test_blank_and_filled_cells_are_invalid() -> None:
    env = make("game:Crosswords-v0-hard")
    env.reset(seed=2)
    (row, col), letter = next(iter(env.left.items()))
    put(env, f"{row} {col} {letter}")
    observation, *_, info = put(env, f"{row} {col} {letter}")
    assert "already filled in" in observation
    assert info["invalid_action"]
    size = range(env.size)
    taken = {cell for slot in env.slots for cell, _ in slot.cells()}
    for r, c in [(r, c) for r in size for c in size if (r, c) not in taken][:5]:
        observation, *_, info = put(env, f"{r} {c} A")
        assert "no letter cell" in observation
        assert info["invalid_action"]


@pytest.mark.parametrize("content", ["", "1 2", "1 2 AB", "1 2 3", "A 1 2", "1 2 é", "1.0 2 A"])
def test_what_is_not_row_column_and_letter_is_a_format_error(content: str) -> None:
    env = make("game:Crosswords-v0-easy")
    env.reset(seed=0)
    assert put(env, content)[4]["format_error"]


def test_the_same_word_gets_different_clues_in_different_episodes() -> None:
    env = make("game:Crosswords-v0-easy")
    clues: dict[str, set[str]] = {}
    for seed in range(1500):
        env.reset(seed=seed)
        for slot, clue in zip(env.slots, env.clues, strict=True):
            clues.setdefault(slot.word, set()).add(clue)
    assert len(clues) > 900
    assert sum(len(seen) > 1 for seen in clues.values()) > 700


def test_drawn_parameters_stay_within_what_can_be_won() -> None:
    env = make("game:Crosswords-v0-random", num_words=None, max_turns=None)
    seen = set()
    for seed in range(100):
        env.reset(seed=seed)
        assert env.num_cells <= env.max_turns
        seen.add((env.hardcore, env.num_words, env.max_turns))
    assert {words for _, words, _ in seen} == {3, 4, 5}
    assert {hardcore for hardcore, _, _ in seen} == {False, True}
    env = make("game:Crosswords-v0", num_words=10, max_turns=None)
    for seed in range(20):
        env.reset(seed=seed)
        assert env.max_turns in (30, 40)
    env = make("game:Crosswords-v0", num_words=None, max_turns=9)
    env.reset(seed=0)
    assert (env.num_words, env.num_cells <= 9) == (3, True)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"num_words": 11}, "num_words must be an integer from 1 to 10, got 11"),
        ({"num_words": 4, "max_turns": 11}, "max_turns must be at least 12 for num_words=4"),
        ({"num_words": None, "max_turns": 8}, "max_turns must be at least 9"),
        ({"hardcore": "yes"}, "hardcore must be True or False"),
    ],
)
def test_impossible_parameters_name_what_is_allowed(parameters: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Crosswords(**parameters)
