"""The bundled word lists hold what the games draw from."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from gem.envs.games import words
from gem.envs.games.words import word_list, words_of_length

LISTS = pytest.mark.parametrize("hardcore", [False, True])


@LISTS
def test_words_are_lower_case_letters_sorted_by_length_then_alphabet(hardcore: bool) -> None:
    found = word_list(hardcore)
    assert all(re.fullmatch("[a-z]{3,12}", word) for word in found)
    assert list(found) == sorted(set(found), key=lambda word: (len(word), word))


def test_the_large_list_is_larger_and_has_longer_words() -> None:
    assert len(word_list(False)) == 5968
    assert len(word_list(True)) == 19804
    assert len(word_list(False)[-1]) == 7
    assert len(word_list(True)[-1]) == 12


@LISTS
def test_every_length_is_the_part_of_the_list_that_has_it(hardcore: bool) -> None:
    lengths = range(1, 14)
    joined = [word for length in lengths for word in words_of_length(hardcore, length)]
    assert joined == [word.upper() for word in word_list(hardcore)]
    assert all(len(w) == length for length in lengths for w in words_of_length(hardcore, length))


@LISTS
def test_a_list_exists_once_per_process(hardcore: bool) -> None:
    assert words.word_list(hardcore) is word_list(hardcore)
    assert words_of_length(hardcore, 5) is words_of_length(hardcore, 5)


def test_the_licences_of_the_lists_are_shipped() -> None:
    data = files("gem").joinpath("data")
    assert "Kevin Atkinson" in data.joinpath("LICENSE-SCOWL.txt").read_text(encoding="utf-8")
    assert "Princeton" in data.joinpath("LICENSE-WORDNET.txt").read_text(encoding="utf-8")


def test_no_file_is_too_heavy_for_a_package() -> None:
    sizes = {
        name: len(files("gem").joinpath("data", name).read_bytes())
        for name in ("words.txt", "words_large.txt")
    }
    assert max(sizes.values()) < 250_000
