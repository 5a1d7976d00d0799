"""Crosswords: fill in a small crossword letter by letter."""

from __future__ import annotations

import itertools
import random
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import ascii_uppercase
from typing import NamedTuple

from gem.envs.games.base import MAX_TURNS, SUCCESS_REWARD, Game, Outcome, boxed, refused
from gem.envs.games.boards import headed
from gem.errors import ConfigurationError
from gem.parameters import flag, integer, optional

Cell = tuple[int, int]

_LETTER = re.compile(r"([+-]?[0-9]{1,18})[\s,]+([+-]?[0-9]{1,18})[\s,]+([A-Za-z])")
_MAX_WORDS = 10
_SHORTEST = 3
# Drawn when the parameter is left open.
_DRAWN_TURNS = (20, 30, 40)
_FEWEST = 3
_EMPTY, _BLANK = "_", "."


class Slot(NamedTuple):
    """Where a word is in the grid."""

    word: str
    row: int
    col: int
    across: bool

    def cells(self) -> Iterator[tuple[Cell, str]]:
        """Yield each cell `(row, column)` and its letter."""
        for i, letter in enumerate(self.word):
            yield (self.row, self.col + i) if self.across else (self.row + i, self.col), letter


class Crosswords(Game[tuple[int, int, str]]):
    """Words that cross each other, each with a clue; a move fills in one letter.

    Every right letter pays one part in the number of letter cells, so a won game sums to 1.0.
    Wrong letters are not filled in.

    Every puzzle can be won in time: words are drawn no longer than the turns left over by the
    others allow. Each word draws one of its bundled clues, and no clue fits two bundled words of
    the same length, so the oracle, who knows the clues as one knows a dictionary, never guesses.
    Generation ends: a grid in which some word finds no place grows by one row and column, and a
    placed word closes at most 10 rows (8 letters downwards and both neighbours), so that a grid of
    10 rows a word has a free one for the next word.

    Attributes:
        hardcore: Whether the words of this episode are the rarer ones.
        slots: The words and their places, longest first.
        clues: A clue for every slot, in the same order.
        left: The cells still to be filled and their letters.
    """

    request = "Enter your letter."
    action_name = "letter"
    expected = "row, column and letter"
    example = boxed("5 7 C")

    def __init__(
        self,
        hardcore: bool | None = False,
        max_turns: int | None = 100,
        num_words: int | None = 5,
        *,
        format_error_ends: bool = True,
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are drawn at every reset.

        Args:
            hardcore: Whether the words are rarer and up to 8 letters long; otherwise common and
                up to 7 letters long. Drawn by a coin when None.
            max_turns: Letters that may be entered; 20, 30 or 40 when None. With fewer than 8 turns
                a word, words get shorter.
            num_words: Words in the puzzle, 1 to 10, at most a third of the turns; drawn from 3 to
                5 when None.
            format_error_ends: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(format_error_ends=format_error_ends, seed=seed)
        self._given_hardcore = optional(flag, "hardcore", hardcore)
        self._given_turns = optional(integer, "max_turns", max_turns, 1, MAX_TURNS)
        self._given_words = optional(integer, "num_words", num_words, 1, _MAX_WORDS)
        needed = _SHORTEST * (self._given_words or _FEWEST)
        if self._given_turns is not None and self._given_turns < needed:
            raise ConfigurationError(
                f"max_turns must be at least {needed} for num_words={num_words!r}, "
                f"got max_turns={max_turns!r}"
            )

    def _start(self) -> None:
        given = self._given_hardcore
        self.hardcore = self.rng.random() < 0.5 if given is None else given
        turns, words = self._given_turns, self._given_words
        most = min(5, (turns or _DRAWN_TURNS[0]) // _SHORTEST)
        self.num_words = self.rng.randint(_FEWEST, most) if words is None else words
        fitting = [t for t in _DRAWN_TURNS if t >= _SHORTEST * self.num_words]
        self.max_turns = self.rng.choice(fitting) if turns is None else turns
        self.slots, self.size = drawn_puzzle(
            self.rng, self.hardcore, self.num_words, self.max_turns
        )
        book = clue_book(self.hardcore)
        self.clues = [self.rng.choice(book[slot.word]) for slot in self.slots]
        self.left = {cell: letter for slot in self.slots for cell, letter in slot.cells()}
        self.num_cells = len(self.left)
        rows = [[_BLANK] * self.size for _ in range(self.size)]
        for row, col in self.left:
            rows[row][col] = _EMPTY
        self._rows = headed(rows).split("\n")
        self._listed = "\n".join(self._clue_lines())
        self._draw()

    def _clue_lines(self) -> Iterator[str]:
        yield "Clues:"
        for number, (slot, clue) in enumerate(zip(self.slots, self.clues, strict=True), start=1):
            direction = "across" if slot.across else "down"
            yield (
                f"{number}. {clue} ({direction}): {len(slot.word)} letters, "
                f"from row {slot.row} column {slot.col}"
            )

    def _draw(self) -> None:
        self._drawn = "\n".join((*self._rows, self._listed))

    def _instructions(self) -> str:
        return (
            "You are playing Crosswords.\n"
            f"You have to fill in the {self.num_words} words of a crossword within "
            f"{self.max_turns} turns, one letter in every turn.\n"
            f"{_EMPTY} is a letter to fill in, {_BLANK} is no part of any word. Every clue names "
            "its word's direction, length and first cell. Rows and columns count from 0.\n"
            "After thinking, give row, column and letter inside \\boxed{...}, "
            f"for example, {self.example} for the letter C in row 5 and column 7."
        )

    def _parse(self, content: str) -> tuple[int, int, str] | None:
        found = _LETTER.fullmatch(content)
        return (int(found[1]), int(found[2]), found[3].upper()) if found else None

    def _play(self, move: tuple[int, int, str]) -> Outcome:
        row, col, letter = move
        said = f"At turn {self.turn}, you put {letter} in row {row} column {col}"
        right = self.left.get((row, col))
        if right is None:
            return refused(f"{said}, {self._complaint(row, col)}.")
        if letter != right:
            return Outcome(f"{said}, which is not the right letter.")
        del self.left[row, col]
        line, at = self._rows[row + 1], 4 * col + 5
        self._rows[row + 1] = f"{line[:at]}{letter}{line[at + 1 :]}"
        self._draw()
        reward = SUCCESS_REWARD / self.num_cells
        if not self.left:
            return self._won("filled in the whole crossword", reward)
        return Outcome(f"{said}, which is right.", reward)

    def _complaint(self, row: int, col: int) -> str:
        if not (0 <= row < self.size and 0 <= col < self.size):
            return f"which is outside the grid of {self.size} rows and columns"
        if self._rows[row + 1][4 * col + 5] == _BLANK:
            return "which is no letter cell"
        return "which has been already filled in before"

    def _state(self) -> str:
        return f"filled in: {self.num_cells - len(self.left)} of {self.num_cells}"

    def _random_move(self) -> str:
        row, col = self.action_rng.choice(list(self.left)) if self.left else (0, 0)
        return f"{row} {col} {self.action_rng.choice(ascii_uppercase)}"

    def _oracle_move(self) -> str:
        # The slots' places and lengths are part of the clues; their words are looked up.
        for slot, clue in zip(self.slots, self.clues, strict=True):
            answer = slot._replace(word=answers(self.hardcore)[clue, len(slot.word)])
            for (row, col), letter in answer.cells():
                if (row, col) in self.left:
                    return f"{row} {col} {letter}"
        return self._random_move()


@cache
def clue_book(hardcore: bool) -> Mapping[str, tuple[str, ...]]:
    """Return the bundled words, upper case and sorted by length, and the clues of each."""
    name = "clues_hard.tsv" if hardcore else "clues.tsv"
    lines = files("gem").joinpath("data", name).read_text(encoding="ascii").splitlines()
    parts = (line.split("\t") for line in lines)
    return {word.upper(): tuple(clues) for word, *clues in parts}


@cache
def answers(hardcore: bool) -> Mapping[tuple[str, int], str]:
    """Return the word of each `(clue, number of letters)`."""
    return {
        (clue, len(word)): word for word, clues in clue_book(hardcore).items() for clue in clues
    }


def drawn_puzzle(
    rng: random.Random, hardcore: bool, num_words: int, max_cells: int
) -> tuple[list[Slot], int]:
    """Return words with at most `max_cells` letters in their places, and the grid's side."""
    words = sorted(drawn_words(rng, hardcore, num_words, max_cells), key=len, reverse=True)
    size = round(1.5 * len(words[0]))
    while (slots := placed(rng, words, size)) is None:
        size += 1
    return slots, size


def drawn_words(rng: random.Random, hardcore: bool, num_words: int, max_letters: int) -> list[str]:
    """Return different words with at most `max_letters` letters together."""
    words = list(clue_book(hardcore))
    drawn: list[str] = []
    while len(drawn) < num_words:
        others = num_words - len(drawn) - 1
        longest = max_letters - sum(map(len, drawn)) - _SHORTEST * others
        word = words[rng.randrange(bisect_right(words, longest, key=len))]
        if word not in drawn:
            drawn.append(word)
    return drawn


def placed(rng: random.Random, words: Iterable[str], size: int) -> list[Slot] | None:
    """Return the words' places in a grid, None if one finds none.

    The first is in the centre; each other one crosses those before in a random one of the ways
    that there are, or takes the first free place.
    """
    slots: list[Slot] = []
    grid: dict[Cell, str] = {}
    for word in words:
        ways = [way for way in crossings(word, slots) if fits(way, grid, size)]
        slot: Slot | None = Slot(word, size // 2, (size - len(word)) // 2, True)
        if ways:
            slot = rng.choice(ways)
        elif slots:
            slot = next((way for way in _places(word, size) if fits(way, grid, size)), None)
        if slot is None:
            return None
        slots.append(slot)
        grid.update(slot.cells())
    return slots


def crossings(word: str, slots: Sequence[Slot]) -> Iterator[Slot]:
    """Yield every way in which a word crosses one of the placed words."""
    for slot in slots:
        for (row, col), letter in slot.cells():
            for i, own in enumerate(word):
                if own == letter:
                    if slot.across:
                        yield Slot(word, row - i, col, False)
                    else:
                        yield Slot(word, row, col - i, True)


def _places(word: str, size: int) -> Iterator[Slot]:
    for across, row, col in itertools.product((True, False), range(size), range(size)):
        yield Slot(word, row, col, across)


def fits(slot: Slot, grid: Mapping[Cell, str], size: int) -> bool:
    """Say whether a word can stand there without touching another one side by side."""
    row, col, length = slot.row, slot.col, len(slot.word)
    down, right = (0, 1) if slot.across else (1, 0)
    last_row, last_col = row + down * (length - 1), col + right * (length - 1)
    if row < 0 or col < 0 or last_row >= size or last_col >= size:
        return False
    if (row - down, col - right) in grid or (last_row + down, last_col + right) in grid:
        return False
    for cell, letter in slot.cells():
        if cell in grid:
            if grid[cell] != letter:
                return False
        elif (cell[0] + right, cell[1] + down) in grid or (cell[0] - right, cell[1] - down) in grid:
            return False
    return True
