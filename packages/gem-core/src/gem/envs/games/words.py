"""The bundled word lists, read once per process and shared by all games."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def word_list(hardcore: bool) -> tuple[str, ...]:
    """Return a bundled list, lower case, sorted by length and then alphabetically.

    Args:
        hardcore: False: about 6,000 common words of 3 to 7 letters. True: about 20,000 words of
            3 to 12 letters, rarer but still known, base forms mostly.
    """
    name = "words_large.txt" if hardcore else "words.txt"
    return tuple(files("gem").joinpath("data", name).read_text(encoding="ascii").split())


@cache
def words_of_length(hardcore: bool, length: int) -> tuple[str, ...]:
    """Return the words of one length, upper case, in alphabetical order; see `word_list`."""
    return tuple(word.upper() for word in word_list(hardcore) if len(word) == length)
