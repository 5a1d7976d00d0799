"""Sudoku: fill a grid whose solution is unique, one cell a turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from random import Random

from gem.envs.games.base import MAX_TURNS, Game, Outcome, boxed, fitting, integers, refused
from gem.envs.games.boards import bits
from gem.parameters import choice, integer, optional

Move = tuple[int, ...]

_SCALES = (4, 9)
_EMPTY = "and '.' is an empty cell."
# Guesses that proving a solution unique may take.
_MAX_GUESSES = 100

# `(scale, max_empty, max_turns)`: one is drawn when a parameter is left open.
_CANDIDATES = ((4, 10, 15), (9, 50, 50))


class Sudoku(Game[Move]):
    """A Sudoku of 4x4 or 9x9 cells with one solution; only its numbers are accepted.

    Reward: every number of the solution pays `1 / num_empty`, so a won game sums to 1.0. A wrong
    number costs the turn alone, whether or not the row, column or box has it already; a filled
    cell, or a number outside the grid's, is an invalid action.

    At most `max_empty` cells are empty, so every start can be won if `max_turns` is at least
    that. Work is bounded: emptying a cell is tried `max_empty` times, and a cell stays filled if
    100 guesses do not prove that the solution stays unique. The full grid at the beginning takes
    fewer than 100 guesses (65 at most in 2,000 grids).

    Attributes:
        scale: Rows, columns and numbers of this episode.
        max_empty: Cells that were tried to be emptied.
        num_empty: Cells that were empty at the start.
        cells: Numbers row by row, 0 where empty.
        solution: The numbers to find, row by row.
    """

    expected = "row, column and number"

    def __init__(
        self,
        max_empty: int | None = 30,
        max_turns: int | None = 100,
        scale: int | None = 9,
        *,
        format_error_ends: bool = True,
        modality: str = "text",
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are drawn together at every reset.

        Args:
            max_empty: Cells that are emptied as long as the solution stays unique, from 1 to all;
                drawn from 10 and 50. A board has nearly that many empty cells up to 45 of 81 and
                9 of 16; no more than about 58 and 12 can be emptied.
            max_turns: Moves allowed; drawn from 15 and 50.
            scale: Rows, columns and numbers: 4 or 9; drawn from these.
            format_error_ends: See `Game`.
            modality: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, or there are not so many cells.
        """
        super().__init__(format_error_ends=format_error_ends, modality=modality, seed=seed)
        self._candidates = fitting(
            _CANDIDATES,
            optional(choice, "scale", scale, _SCALES),
            optional(integer, "max_empty", max_empty, 1, max(_SCALES) ** 2),
            optional(integer, "max_turns", max_turns, 1, MAX_TURNS),
            fits=lambda size, empty, _: empty <= size**2,
            otherwise="max_empty must be at most scale * scale, "
            f"got max_empty={max_empty!r} and scale={scale!r}",
        )

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """1.0 unless there may be fewer turns than empty cells."""
        return float(all(turns >= empty for _, empty, turns in self._candidates))

    def _start(self) -> None:
        self.scale, self.max_empty, self.max_turns = self.rng.choice(self._candidates)
        self.example = boxed(f"1 2 {self.scale}")
        solution = full_grid(self.rng, self.scale)
        self._set_up(solution, emptied(self.rng, solution, self.max_empty))

    def _set_up(self, solution: list[int], cells: list[int]) -> None:
        self.solution, self.cells = solution, cells
        self.num_empty = self.left = cells.count(0)
        self._lines = _drawn(cells, self.scale)

    def _instructions(self) -> str:
        scale, side = self.scale, math.isqrt(self.scale)
        return (
            "You are playing Sudoku.\n"
            f"You have to fill the empty cells of a {scale}x{scale} grid within "
            f"{self.max_turns} turns, one cell per turn.\n"
            f"Every row, every column and each of the {scale} boxes of {side}x{side} cells must "
            f"hold every number from 1 to {scale} exactly once. There is one solution.\n"
            f"{self._how_to_read(f'Rows and columns are numbered from 1 to {scale}, {_EMPTY}')} "
            "Filled cells cannot be changed.\n"
            "Answer with row, column and number. "
            f"{self._how_to_answer()} to put {scale} in row 1, column 2."
        )

    def _parse(self, content: str) -> Move | None:
        numbers = integers(content)
        return numbers if numbers is not None and len(numbers) == 3 else None

    def _play(self, move: Move) -> Outcome:
        row, column, number = move
        scale = self.scale
        tried = f"At turn {self.turn}, you tried to put {number} in R{row} C{column}, "
        if not (1 <= row <= scale and 1 <= column <= scale and 1 <= number <= scale):
            return refused(f"{tried}but rows, columns and numbers go from 1 to {scale}.")
        cell = (row - 1) * scale + column - 1
        if self.cells[cell]:
            return refused(f"{tried}which is already filled.")
        if number != self.solution[cell]:
            for name, unit in zip(("row", "column", "box"), _units(scale, cell), strict=True):
                if number in [self.cells[other] for other in unit]:
                    return Outcome(f"{tried}but there is a {number} in that {name} already.")
            return Outcome(f"{tried}which is not part of the solution.")
        self.cells[cell] = number
        self.left -= 1
        _draw(self._lines, scale, cell, number)
        if not self.left:
            return self._won("completed the Sudoku", 1 / self.num_empty)
        return Outcome(
            f"At turn {self.turn}, you put {number} in R{row} C{column}, which is correct.",
            1 / self.num_empty,
        )

    def _board(self) -> str:
        return "\n".join(self._lines)

    def _state(self) -> str:
        return f"{self.left} of {self.num_empty} cells to fill"

    def _random_move(self) -> str:
        scale = self.scale
        empty = [cell for cell, number in enumerate(self.cells) if not number]
        cell = self.action_rng.choice(empty or range(scale * scale))
        number = self.action_rng.randint(1, scale)
        return f"{cell // scale + 1} {cell % scale + 1} {number}"

    def _oracle_move(self) -> str:
        # Numbers on the board are right, so there is exactly one way to go on.
        solution = solved(self.cells, self.scale)
        cell = self.cells.index(0) if self.left else 0
        return f"{cell // self.scale + 1} {cell % self.scale + 1} {solution[cell]}"


@cache
def _units(scale: int, cell: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the cells of a cell's row, column and box, itself among them."""
    row, column = divmod(cell, scale)
    side = math.isqrt(scale)
    top, left = row - row % side, column - column % side
    return (
        tuple(row * scale + c for c in range(scale)),
        tuple(r * scale + column for r in range(scale)),
        tuple(r * scale + c for r in range(top, top + side) for c in range(left, left + side)),
    )


@cache
def _peers(scale: int) -> tuple[int, ...]:
    """Return, for every cell, the bit set of the other cells in its row, column and box."""
    return tuple(
        sum(1 << other for other in set().union(*_units(scale, cell)) if other != cell)
        for cell in range(scale * scale)
    )


def _drawn(cells: Sequence[int], scale: int) -> list[str]:
    """Return the lines of the board: column names, then rows with lines between the boxes."""
    side = math.isqrt(scale)
    gap = " " * 3
    groups = [range(first, first + side) for first in range(0, scale, side)]
    lines = [gap + gap.join(" ".join(f"C{c + 1}" for c in group) for group in groups)]
    for row in range(scale):
        if row and row % side == 0:
            lines.append(gap + " ".join("-" * (2 * (scale - 1))))
        boxes = ("".join(" . " for _ in group) for group in groups)
        lines.append(f"R{row + 1} {'| '.join(boxes)}".rstrip())
    for cell, number in enumerate(cells):
        if number:
            _draw(lines, scale, cell, number)
    return lines


def _draw(lines: list[str], scale: int, cell: int, number: int) -> None:
    """Write a number into the lines of a board."""
    row, column = divmod(cell, scale)
    side = math.isqrt(scale)
    line = 1 + row + row // side
    at = 4 + 3 * column + 2 * (column // side)
    lines[line] = f"{lines[line][:at]}{number}{lines[line][at + 1 :]}"


class _TooManyGuesses(Exception):  # noqa: N818
    """The search was given up."""


class _Search:
    """A depth-first search for a completion: cells with one possible number first, then guesses.

    Which cells may take a number is one bit set per number, so that all cells with one possible
    number are found at once.
    """

    def __init__(self, scale: int, rng: Random | None = None, max_guesses: int = 10**9) -> None:
        """Set what is the same for all steps of the search.

        Args:
            scale: Rows, columns and numbers.
            rng: Draws the order of guesses; None guesses the smallest number first.
            max_guesses: Guesses after which the search is given up.
        """
        self._peers = _peers(scale)
        self._rng = rng
        self._guesses_left = max_guesses

    def complete(self, allowed: list[int], empty: int) -> list[tuple[int, int]] | None:
        """Return a completion as `(cell, number)` of every empty cell; None when there is none.

        Args:
            allowed: For each number from 1 up, the bit set of the cells that may take it; changed.
            empty: Bit set of the empty cells.

        Raises:
            _TooManyGuesses: The search was given up.
        """
        peers = self._peers
        filled: list[tuple[int, int]] = []
        while empty:
            once = twice = thrice = 0
            for cells in allowed:
                thrice |= twice & cells
                twice |= once & cells
                once |= cells
            if empty & ~once:
                return None
            certain = empty & ~twice
            if not certain:
                rest = self._guess(allowed, empty, (empty & ~thrice) or empty)
                return None if rest is None else filled + rest
            for number, cells in enumerate(allowed, start=1):
                for cell in bits(cells & certain):
                    if not allowed[number - 1] >> cell & 1:
                        return None
                    allowed[number - 1] &= ~peers[cell]
                    filled.append((cell, number))
            empty &= ~certain
        return filled

    def _guess(
        self, allowed: list[int], empty: int, candidates: int
    ) -> list[tuple[int, int]] | None:
        cell = (candidates & -candidates).bit_length() - 1
        numbers = [n for n, cells in enumerate(allowed, start=1) if cells >> cell & 1]
        if self._rng is not None:
            self._rng.shuffle(numbers)
        for number in numbers:
            self._guesses_left -= 1
            if self._guesses_left < 0:
                raise _TooManyGuesses
            branch = list(allowed)
            branch[number - 1] &= ~self._peers[cell]
            rest = self.complete(branch, empty & ~(1 << cell))
            if rest is not None:
                return [(cell, number), *rest]
        return None


def solved(cells: Sequence[int], scale: int, rng: Random | None = None) -> list[int]:
    """Return a completed grid, row by row; 0 marks the empty cells of `cells`.

    With `rng`, guesses are made in random order.

    Raises:
        ValueError: There is no solution.
    """
    peers = _peers(scale)
    allowed = [(1 << scale * scale) - 1] * scale
    for cell, number in enumerate(cells):
        if number:
            allowed[number - 1] &= ~peers[cell]
    empty = sum(1 << cell for cell, number in enumerate(cells) if not number)
    filled = _Search(scale, rng).complete(allowed, empty)
    if filled is None:
        raise ValueError("the Sudoku has no solution")
    grid = list(cells)
    for cell, number in filled:
        grid[cell] = number
    return grid


def full_grid(rng: Random, scale: int) -> list[int]:
    """Return a random completed grid, row by row.

    The first row may be anything; a search with guesses in random order fills the rest.
    """
    row = rng.sample(range(1, scale + 1), scale)
    return solved(row + [0] * (scale**2 - scale), scale, rng)


def emptied(rng: Random, solution: Sequence[int], max_empty: int) -> list[int]:
    """Return the grid with up to `max_empty` cells emptied, its solution still the only one.

    A cell can be emptied if the grid has no completion with another number in it.
    """
    scale = math.isqrt(len(solution))
    peers = _peers(scale)
    everywhere = (1 << len(solution)) - 1
    cells = list(solution)
    places = [{c for c, n in enumerate(solution) if n == number} for number in range(1, scale + 1)]
    allowed = [0] * scale
    empty = 0
    for cell in rng.sample(range(len(solution)), max_empty):
        number = solution[cell]
        places[number - 1].remove(cell)
        # Only this number has new places: cells that see no other cell with it.
        seen = 0
        for place in places[number - 1]:
            seen |= peers[place]
        trial = list(allowed)
        trial[number - 1] = everywhere & ~seen
        if _unique(scale, trial, empty | 1 << cell, cell, number):
            allowed = trial
            empty |= 1 << cell
            cells[cell] = 0
        else:
            places[number - 1].add(cell)
    return cells


def _unique(scale: int, allowed: Sequence[int], empty: int, cell: int, number: int) -> bool:
    """Return whether no completion without `number` in `cell` exists, False when in doubt."""
    others = list(allowed)
    others[number - 1] &= ~(1 << cell)
    try:
        return _Search(scale, max_guesses=_MAX_GUESSES).complete(others, empty) is None
    except _TooManyGuesses:
        return False
