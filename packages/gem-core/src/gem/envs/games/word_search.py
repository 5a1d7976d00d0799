"""WordSearch: find words hidden across and down in a grid of letters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from random import Random
from typing import NamedTuple

from gem.envs.games.base import MAX_TURNS, Game, Outcome, boxed, integers, refused
from gem.envs.games.boards import headed
from gem.envs.games.words import words_of_length
from gem.parameters import flag, integer, optional

Move = tuple[int, ...]

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_WORDS = 20
# Shortest and longest hidden words.
_LENGTHS = {False: (4, 7), True: (7, 12)}
# Bounds on the work of one reset: arrangements of the words, places drawn for a word, rounds of
# other letters where chance has spelled a word.
_ARRANGEMENTS = 20
_PLACES = 50
_ROUNDS = 20
# Draws of `sample_random_action` before it looks for what is left.
_DRAWS = 100


class Segment(NamedTuple):
    """Cells of one row or one column, both ends included, counted from 0."""

    start_row: int
    start_column: int
    end_row: int
    end_column: int

    def cells(self) -> Iterator[tuple[int, int]]:
        """Yield `(row, column)` from the start to the end, which comes later in both."""
        for row in range(self.start_row, self.end_row + 1):
            for column in range(self.start_column, self.end_column + 1):
                yield row, column

    def within(self, other: Segment) -> bool:
        """Return whether all cells are cells of `other` too."""
        return (
            other.start_row <= self.start_row
            and self.end_row <= other.end_row
            and other.start_column <= self.start_column
            and self.end_column <= other.end_column
        )


class WordSearch(Game[Move]):
    """Words of a bundled list, hidden from left to right or from top to bottom.

    Reward: every word found pays `1 / num_words`, so a won game sums to 1.0.

    A word costs one turn, so every start can be won if `max_turns` is at least `num_words`. That
    holds without the list of hidden words too, for whoever knows the bundled list: letters that
    spell other words of it by chance are replaced. Work is bounded: 20 arrangements of the words
    with 20 rounds of replacements each; the first arrangement nearly always does.

    Attributes:
        hardcore: Parameter of this episode.
        words: Hidden words in alphabetical order, upper case.
        grid: Rows of letters.
        found: Words found so far, in order.
        tried: Segments tried so far.
    """

    expected = "start row, start column, end row and end column"
    example = boxed("2 1 2 4")

    def __init__(
        self,
        hardcore: bool | None = False,
        max_turns: int = 20,
        num_words: int = 5,
        *,
        show_words: bool = True,
        format_error_ends: bool = True,
        seed: int | None = None,
    ) -> None:
        """Set the parameters; `hardcore` is drawn at every reset if it is None.

        Args:
            hardcore: Whether to hide words of 7 to 12 letters from the larger list rather than
                common ones of 4 to 7. The grid is half as long again as the longest word.
            max_turns: Moves allowed.
            num_words: Words hidden, from 1 to 20.
            show_words: Whether the player is told which words are hidden.
            format_error_ends: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(format_error_ends=format_error_ends, seed=seed)
        self._given_hardcore = optional(flag, "hardcore", hardcore)
        self.max_turns = integer("max_turns", max_turns, 1, MAX_TURNS)
        self.num_words = integer("num_words", num_words, 1, _MAX_WORDS)
        self.show_words = flag("show_words", show_words)

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """1.0 unless there are fewer turns than words."""
        return float(self.max_turns >= self.num_words)

    def _start(self) -> None:
        given = self._given_hardcore
        self.hardcore = self.rng.random() < 0.5 if given is None else given
        self._set_up(*generate(self.rng, self.num_words, self.hardcore))

    def _set_up(self, grid: tuple[str, ...], places: dict[Segment, str]) -> None:
        self.grid = grid
        self.words = sorted(places.values())
        # A word may be given from either end.
        self._words_at: dict[Move, str] = {}
        for segment, word in places.items():
            self._words_at[segment] = self._words_at[segment[2:] + segment[:2]] = word
        self.found: list[str] = []
        self.tried: set[Move] = set()
        self._lines = headed(self.grid).split("\n")
        self._drawn = self._joined()

    def _instructions(self) -> str:
        low, high = _LENGTHS[self.hardcore]
        hidden = (
            f"{self.num_words} words: {', '.join(self.words)}."
            if self.show_words
            else f"{self.num_words} English words of {low} to {high} letters."
        )
        return (
            "You are playing WordSearch.\n"
            f"You have to find all hidden words in a grid of letters within {self.max_turns} "
            "turns. They read from left to right or from top to bottom and may cross. There are "
            f"{hidden}\n"
            f"Rows and columns are numbered from 0 to {len(self.grid) - 1}. Words that you found "
            "are marked with [ ].\n"
            "Answer with the row and column of a word's first letter and the row and column of "
            "its last letter. "
            f"{self._how_to_answer()} for the word from row 2, column 1 to row 2, column 4."
        )

    def _parse(self, content: str) -> Move | None:
        numbers = integers(content)
        return numbers if numbers is not None and len(numbers) == 4 else None

    def _play(self, move: Move) -> Outcome:
        start_row, start_column, end_row, end_column = move
        tried = (
            f"At turn {self.turn}, you tried ({start_row}, {start_column}) to "
            f"({end_row}, {end_column}), "
        )
        last = len(self.grid) - 1
        if min(move) < 0 or max(move) > last:
            return refused(f"{tried}but rows and columns go from 0 to {last}.")
        if move in self.tried:
            return refused(f"{tried}which has been already tried before.")
        if start_row != end_row and start_column != end_column:
            return refused(f"{tried}which is neither across nor down.")
        self.tried.add(move)
        word = self._words_at.get(move)
        if word is None:
            return Outcome(f"{tried}which is not a hidden word.")
        if word in self.found:
            return refused(f"{tried}which is {word} that you found already.")
        self.found.append(word)
        self._mark(move)
        if len(self.found) == self.num_words:
            return self._won(f"found all {self.num_words} words", 1 / self.num_words)
        return Outcome(f"{tried}which is the hidden word {word}.", 1 / self.num_words)

    def _mark(self, move: Move) -> None:
        ends = move[:2], move[2:]
        for row, column in Segment(*map(min, *ends), *map(max, *ends)).cells():
            line, at = self._lines[row + 1], 4 + 4 * column
            self._lines[row + 1] = f"{line[:at]}[{self.grid[row][column]}]{line[at + 3 :]}"
        self._drawn = self._joined()

    def _joined(self) -> str:
        lines = "\n".join(self._lines)
        return f"{lines}\nWords Found: {len(self.found)}/{self.num_words}"

    def _state(self) -> str:
        return f"found: {', '.join(self.found) or 'none'}; {len(self.tried)} segments tried"

    def _random_move(self) -> str:
        side = len(self.grid)
        draw = self.action_rng.randrange
        for _ in range(_DRAWS):
            line, start, end = draw(side), draw(side), draw(side)
            move = (line, start, line, end) if draw(2) else (start, line, end, line)
            if self._legal(move):
                break
        else:
            lines = itertools.product(range(side), repeat=3)
            moves = (m for r, c, e in lines for m in ((r, c, r, e), (c, r, e, r)))
            move = next((m for m in moves if self._legal(m)), move)
        return " ".join(map(str, move))

    def _legal(self, move: Move) -> bool:
        return move not in self.tried and self._words_at.get(move) not in self.found

    def _oracle_move(self) -> str:
        spelled = occurrences(self.grid, self.hardcore)
        outer = outermost(spelled)
        sought = [
            segment
            for segment, word in spelled.items()
            if segment not in self.tried
            and word not in self.found
            and (not self.show_words or word in self.words)
        ]
        # Words inside other words are the last that anybody would have hidden.
        best = min(sought, key=lambda segment: segment not in outer, default=(0, 0, 0, 0))
        return " ".join(map(str, best))


@cache
def vocabulary(hardcore: bool) -> tuple[str, ...]:
    """Return the words that may be hidden, upper case, sorted by length, then alphabetically."""
    low, high = _LENGTHS[hardcore]
    return tuple(w for length in range(low, high + 1) for w in words_of_length(hardcore, length))


@cache
def _known(hardcore: bool) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words that may be hidden, and their beginnings as long as the shortest word."""
    words = frozenset(vocabulary(hardcore))
    return words, frozenset(word[: _LENGTHS[hardcore][0]] for word in words)


def generate(
    rng: Random, num_words: int, hardcore: bool
) -> tuple[tuple[str, ...], dict[Segment, str]]:
    """Return the rows of a grid and where its words are hidden.

    No hidden word contains another, words that share cells cross, and nothing else in the grid
    spells a word that might be hidden.
    """
    words = _drawn(rng, num_words, hardcore)
    side = max(round(1.5 * len(words[0])), num_words)
    for _ in range(_ARRANGEMENTS):
        places = _arranged(rng, words, side)
        grid = [rng.choices(_LETTERS, k=side) for _ in range(side)]
        fixed = set()
        for segment, word in places.items():
            for (row, column), letter in zip(segment.cells(), word, strict=True):
                grid[row][column] = letter
                fixed.add((row, column))
        for _ in range(_ROUNDS):
            rows = tuple(map("".join, grid))
            chance = outermost(occurrences(rows, hardcore)) - places.keys()
            if not chance:
                return rows, places
            for segment in sorted(chance):
                for row, column in segment.cells():
                    if (row, column) not in fixed:
                        grid[row][column] = rng.choice(_LETTERS)
    return rows, places


def _drawn(rng: Random, num_words: int, hardcore: bool) -> list[str]:
    """Return words that do not contain one another, longest first."""
    words: list[str] = []
    while len(words) < num_words:
        word = rng.choice(vocabulary(hardcore))
        if not any(word in other or other in word for other in words):
            words.append(word)
    return sorted(words, key=len, reverse=True)


def _arranged(rng: Random, words: Sequence[str], side: int) -> dict[Segment, str]:
    """Return places for the words, at random as long as there is room, else a row for each."""
    places: dict[Segment, str] = {}
    letters: dict[tuple[int, int], str] = {}
    # Cells of words across and of words down: two words of one direction share none.
    taken: tuple[set[tuple[int, int]], set[tuple[int, int]]] = (set(), set())
    for word in words:
        for _ in range(_PLACES):
            down = rng.randrange(2)
            line, first = rng.randrange(side), rng.randrange(side - len(word) + 1)
            last = first + len(word) - 1
            segment = Segment(first, line, last, line) if down else Segment(line, first, line, last)
            cells = list(segment.cells())
            if taken[down].isdisjoint(cells) and all(
                letters.get(cell, letter) == letter
                for cell, letter in zip(cells, word, strict=True)
            ):
                break
        else:
            return {Segment(row, 0, row, len(word) - 1): word for row, word in enumerate(words)}
        places[segment] = word
        letters.update(zip(cells, word, strict=True))
        taken[down].update(cells)
    return places


def occurrences(rows: Sequence[str], hardcore: bool) -> dict[Segment, str]:
    """Return every word of the vocabulary that the grid spells across or down, and where."""
    words, beginnings = _known(hardcore)
    shortest, longest = _LENGTHS[hardcore]
    spelled = {}
    for down, lines in enumerate((rows, tuple(map("".join, zip(*rows, strict=True))))):
        for line, text in enumerate(lines):
            for first in range(len(text) - shortest + 1):
                if text[first : first + shortest] not in beginnings:
                    continue
                for end in range(first + shortest, min(first + longest, len(text)) + 1):
                    if text[first:end] in words:
                        place = (
                            (first, line, end - 1, line) if down else (line, first, line, end - 1)
                        )
                        spelled[Segment(*place)] = text[first:end]
    return spelled


def outermost(segments: Iterable[Segment]) -> set[Segment]:
    """Return the segments that are not part of another one."""
    every = list(segments)
    return {s for s in every if not any(s != other and s.within(other) for other in every)}
