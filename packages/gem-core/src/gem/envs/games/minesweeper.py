"""Minesweeper: open every cell that hides no mine."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from gem.envs.games.base import MAX_TURNS, SUCCESS_REWARD, Game, Outcome, boxed, refused
from gem.envs.games.boards import bits, plain
from gem.parameters import flag, integer, optional

_COMMANDS = ("reveal", "flag")
_SIZES = (4, 50)
_DRAWN_SIZES = (5, 8)
_SYMBOLS = (
    "The board shows . for a closed cell, F for a marked one and a number for an open one; row and "
    "column numbers are at its edges."
)
_MOVE = re.compile(r"([A-Za-z]{1,20})[\s,]+([+-]?[0-9]{1,18})[\s,]+([+-]?[0-9]{1,18})")
# Draws of the mines with `no_guess`.
_TRIES = 100

_CLOSED, _FLAG, _MINE, *_NUMBERS = (f"{cell:>3}" for cell in ".F*012345678")

# Nothing is under the first revealed cell and around it.
_CLEARED = 9


Move = tuple[str, int, int]
"""A command, and row and column of a cell, which may be off the board."""


class Grid(NamedTuple):
    """Sets of cells as bits of one integer: cell (row, column) is bit `row * width + column`.

    `width` is one more than the columns: the bit after each row belongs to no cell, so that
    shifts do not reach around the edge.
    """

    width: int
    cells: int
    """All cells."""
    around: tuple[int, ...]
    """For each bit, the neighbours of its cell."""

    def spread(self, some: int) -> int:
        """Return some cells and their neighbours."""
        some |= some << 1 | some >> 1
        return (some | some << self.width | some >> self.width) & self.cells


@cache
def grid(rows: int, cols: int) -> Grid:
    """Return the grid of a board."""
    width = cols + 1
    cells = sum(((1 << cols) - 1) << row * width for row in range(rows))
    empty = Grid(width, cells, ())
    around = tuple(empty.spread(1 << bit) & ~(1 << bit) for bit in range(rows * width))
    return Grid(width, cells, around)


class Minesweeper(Game[Move]):
    """Mines under the cells of a board; an open cell shows how many neighbours hide one.

    The mines are placed at the first reveal, uniformly over the cells that are neither the
    revealed one nor its neighbours. Opening a cell without mines around it opens its neighbours
    too, but never a flagged cell; a flagged cell cannot be revealed either. The game is won when
    all cells without a mine are open, and lost by revealing a mine. Rewards: every newly opened
    cell pays `1 / (cells - mines)`, so a won game sums to 1.0.

    Every reveal of a safe cell opens it at least, so `cells - mines` turns suffice to win, which
    the turns of every registered id allow. Yet some boards cannot be solved without a guess: the
    oracle opens cells that are certainly safe, by exact counting of all boards that agree with
    the numbers, and where there is none the cell that is most probably safe. With at most 8 rows
    and columns and a mine in every fifth cell it wins 80 to 90 % (100 % of 4 by 4), and 75 % is
    its `oracle_success`. With `no_guess` the mines are drawn again, 100 times at most, until
    certainty alone opens the board. On boards of that size one draw in three does at least, so
    that all 100 fail once in 10**17 games; on larger or fuller ones the last draw stands.

    Attributes:
        rows, cols, num_mines: Parameters of this episode.
        mines: Cells with a mine, as bits of `grid(rows, cols)`; 0 before the first reveal.
        opened, flags: Open and flagged cells, likewise.
        exploded: The revealed mine, likewise; 0 if none.
    """

    expected = "reveal or flag, a row and a column"
    example = boxed("reveal 0 0")

    def __init__(
        self,
        rows: int | None = 8,
        cols: int | None = 8,
        num_mines: int | None = 10,
        max_turns: int | None = 20,
        *,
        no_guess: bool = False,
        format_error_ends: bool = True,
        modality: str = "text",
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are set at every reset.

        Args:
            rows: Rows, 4 to 50. One number drawn from 5 to 8 stands for open rows and columns.
            cols: Columns, 4 to 50.
            num_mines: Mines, from 1 to 9 fewer than there are cells; a fifth of the cells when
                None. The game becomes harder with their share of the cells.
            max_turns: Moves allowed; the number of cells when None.
            no_guess: Whether to place the mines such that logic alone opens the board.
            format_error_ends: See `Game`.
            modality: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(format_error_ends=format_error_ends, modality=modality, seed=seed)
        self._given_rows = optional(integer, "rows", rows, *_SIZES)
        self._given_cols = optional(integer, "cols", cols, *_SIZES)
        # Mines must fit on the smallest board that may be drawn.
        smallest = (self._given_rows or _DRAWN_SIZES[0]) * (self._given_cols or _DRAWN_SIZES[0])
        self._given_mines = optional(integer, "num_mines", num_mines, 1, smallest - _CLEARED)
        self._given_turns = optional(integer, "max_turns", max_turns, 1, MAX_TURNS)
        self.no_guess = flag("no_guess", no_guess)

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """0 beyond what the floor was measured for; see the class."""
        low, high = _DRAWN_SIZES
        smallest = (self._given_rows or low) * (self._given_cols or low)
        sides = self._given_rows or high, self._given_cols or high
        cells, turns, mines = math.prod(sides), self._given_turns, self._given_mines or 1
        if max(sides) > high or 5 * mines > smallest or (turns or cells) < cells - mines:
            return 0.0
        return 1.0 if self.no_guess else 0.75

    def _start(self) -> None:
        drawn = self.rng.randint(*_DRAWN_SIZES)
        self.rows, self.cols = self._given_rows or drawn, self._given_cols or drawn
        cells = self.rows * self.cols
        self.num_mines = self._given_mines or cells // 5
        self.max_turns = self._given_turns or cells
        self.mines = self.opened = self.flags = self.exploded = 0
        self._text = list(_blank(self.rows, self.cols))

    def _instructions(self) -> str:
        return (
            "You are playing Minesweeper.\n"
            f"The board has {self.rows} rows and {self.cols} columns and hides {self.num_mines} "
            f"mines. You have to open all cells without a mine within {self.max_turns} turns.\n"
            "Each turn takes one command and a cell, given by its row and column, counted from 0:\n"
            "  - reveal: open the cell. A mine loses the game; otherwise the cell shows how many "
            "of its neighbours (up to 8) are mines, and with 0 they open as well. The first cell "
            "revealed and its neighbours are never mines.\n"
            "  - flag: mark the cell as a mine, or take the mark away. A marked cell cannot be "
            "revealed.\n"
            f"{self._how_to_read(_SYMBOLS)}\n{self._how_to_answer()}."
        )

    def _parse(self, content: str) -> Move | None:
        match = _MOVE.fullmatch(content)
        return (match[1].lower(), int(match[2]), int(match[3])) if match else None

    def _play(self, move: Move) -> Outcome:
        command, row, column = move
        turn = f"At turn {self.turn}, "
        if command not in _COMMANDS:
            return refused(f"{turn}your command was {command}, not reveal or flag.")
        if not (0 <= row < self.rows and 0 <= column < self.cols):
            return refused(f"{turn}you chose {row} {column}, which is off the board.")
        number = row * (self.cols + 1) + column
        bit = 1 << number
        if bit & self.opened:
            return refused(f"{turn}you chose {row} {column}, which is open already.")
        if command == "flag":
            self.flags ^= bit
            marked = bool(self.flags & bit)
            self._text[number] = _FLAG if marked else _CLOSED
            done = "marked" if marked else "took the mark from"
            return Outcome(f"{turn}you {done} {row} {column}.")
        if bit & self.flags:
            return refused(f"{turn}you tried to reveal {row} {column}, which is marked.")
        return self._reveal(f"{turn}you revealed {row} {column}", number)

    def _reveal(self, said: str, number: int) -> Outcome:
        board = grid(self.rows, self.cols)
        if not self.mines:
            self._place_mines(board, number)
        mines = self.mines
        if mines >> number & 1:
            self.exploded = 1 << number
            self._text[number] = _MINE
            return Outcome(f"{said}, which is a mine. Game over!", lost=True)
        fresh = flood(board, mines, self.opened | self.flags, number)
        self.opened |= fresh
        count = 0
        for cell in bits(fresh):
            self._text[cell] = _NUMBERS[(mines & board.around[cell]).bit_count()]
            count += 1
        safe = board.cells & ~mines
        reward = SUCCESS_REWARD * count / safe.bit_count()
        if self.opened == safe:
            return self._won("opened all safe cells", reward)
        return Outcome(f"{said} and opened {count} cell(s).", reward)

    def _place_mines(self, board: Grid, first: int) -> None:
        free = list(bits(board.cells & ~board.spread(1 << first)))
        for _ in range(_TRIES if self.no_guess else 1):
            self.mines = sum(1 << cell for cell in self.rng.sample(free, self.num_mines))
            if self.no_guess and certain(board, self.mines, first):
                break

    def _board(self) -> str:
        return _heading(self.cols) + "".join(self._text)

    def _state(self) -> str:
        safe = self.rows * self.cols - self.num_mines
        return f"{self.num_mines} mines; {self.opened.bit_count()} of {safe} safe cells open"

    def _random_move(self) -> str:
        board = grid(self.rows, self.cols)
        left = board.cells & ~(self.opened | self.flags | self.exploded)
        if left:
            return self._written("reveal", self.action_rng.choice(list(bits(left))))
        # Every closed cell is marked; after the end, any command will do.
        return self._written("flag", next(bits(self.flags), 0))

    def _written(self, command: str, cell: int) -> str:
        row, column = divmod(cell, self.cols + 1)
        return f"{command} {row} {column}"

    def _oracle_move(self) -> str:
        board = grid(self.rows, self.cols)
        if not self.opened:
            # In the middle the most cells are certain to be safe.
            cell = self.rows // 2 * board.width + self.cols // 2
        else:
            numbers = numbers_beside(board, self.mines, self.opened)
            found = risks(board, self.opened, numbers, self.num_mines)
            _, safest = min(found, default=(0.0, 1))
            cell = next(bits(safest))
        return self._written("flag" if self.flags >> cell & 1 else "reveal", cell)


@cache
def _blank(rows: int, cols: int) -> tuple[str, ...]:
    """Return a closed board by bits; the spare bit after a row begins the next one's line."""
    row = (_CLOSED,) * cols
    return tuple(
        text for r in range(rows) for text in (*row, f"\n{r + 1:2}" if r + 1 < rows else "")
    )


@cache
def _heading(cols: int) -> str:
    """Return the column numbers and the beginning of row 0."""
    return plain((("", *range(cols)), ("0",)), 2)


def flood(board: Grid, mines: int, blocked: int, cell: int) -> int:
    """Return what revealing a safe cell opens; `blocked` cells, open or flagged, never do."""
    region = 1 << cell
    zeros = board.cells & ~board.spread(mines)
    allowed = board.cells & ~blocked
    grown = 0
    while grown != region:
        grown = region
        region |= board.spread(region & zeros) & allowed
    return region


def numbers_beside(board: Grid, mines: int, opened: int) -> dict[int, int]:
    """Return the numbers of the open cells that have closed neighbours."""
    beside = opened & board.spread(board.cells & ~opened)
    return {cell: (mines & board.around[cell]).bit_count() for cell in bits(beside)}


def certain(board: Grid, mines: int, first: int) -> bool:
    """Return whether certainty alone opens all safe cells after `first`."""
    safe, num_mines = board.cells & ~mines, mines.bit_count()
    opened = flood(board, mines, 0, first)
    while opened != safe:
        found = risks(board, opened, numbers_beside(board, mines, opened), num_mines)
        fresh = 0
        for risk, cells in found:
            if risk == 0:
                fresh |= cells
        if not fresh:
            return False
        for cell in bits(fresh):
            if not opened >> cell & 1:
                opened |= flood(board, mines, opened, cell)
    return True


def risks(
    board: Grid, opened: int, numbers: Mapping[int, int], num_mines: int
) -> list[tuple[float, int]]:
    """Return the probability of a mine for every closed cell, by exact counting.

    All placements of the mines that agree with the numbers are equally likely. Cells beside the
    same numbers are exchangeable; numbers that share no cells, even through others, are counted
    apart and joined by how many mines they use.

    Args:
        board: The grid.
        opened: Open cells.
        numbers: Of the open cells that have closed neighbours.
        num_mines: Mines on the whole board.

    Returns:
        `(probability, cells)`, the cells as bits; together all closed cells.
    """
    closed = board.cells & ~opened
    fronts = [_Front(rules) for rules in _parts(board, closed, numbers)]
    rest = closed
    for front in fronts:
        rest &= ~front.cells
    size = rest.bit_count()
    everything = _product(front.counts for front in fronts)
    total = sum(n * _ways(size, num_mines - used) for used, n in everything.items())
    found = []
    for front in fronts:
        other = _product(each.counts for each in fronts if each is not front)
        weights = {
            used: sum(n * _ways(size, num_mines - used - more) for more, n in other.items())
            for used in front.counts
        }
        found += [(n / total, cells) for n, cells in front.mined(weights)]
    if size:
        mined = sum(n * _ways(size - 1, num_mines - used - 1) for used, n in everything.items())
        found.append((mined / total, rest))
    return found


def _parts(board: Grid, closed: int, numbers: Mapping[int, int]) -> Iterator[list[tuple[int, int]]]:
    """Yield the rules `(cells, mines under them)` that share cells, nearest to each other first."""
    left = {board.around[cell] & closed: number for cell, number in numbers.items()}
    while left:
        part = [left.popitem()]
        for cells, _ in part:
            part += [(other, left.pop(other)) for other in list(left) if other & cells]
        yield part


def _ways(cells: int, mines: int) -> int:
    return math.comb(cells, mines) if mines >= 0 else 0


def _product(counts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return in how many ways all parts together use each number of mines."""
    product = {0: 1}
    for part in counts:
        before, product = product, {}
        for (one, n), (two, m) in itertools.product(before.items(), part.items()):
            product[one + two] = product.get(one + two, 0) + n * m
    return product


class _Front:
    """Rules that share cells, and all ways to obey them.

    Goes through the groups of exchangeable cells one by one and keeps, for each way to have used
    up the rules so far, in how many ways it came about. Such a state is one integer: four bits for
    each rule, the mines that it still lacks, and above them the mines used.

    Attributes:
        cells: All cells of the rules, as bits.
        counts: Mines used to the number of ways.
    """

    def __init__(self, rules: list[tuple[int, int]]) -> None:
        self.cells = 0
        for cells, _ in rules:
            self.cells |= cells
        self._groups = _groups(self.cells, [cells for cells, _ in rules])
        self._used = 4 * len(rules)
        self._layers = [{sum(mines << 4 * i for i, (_, mines) in enumerate(rules)): 1}]
        self._steps: list[list[tuple[int, int, int]]] = []
        later = self.cells
        for cells, members in self._groups:
            later &= ~cells
            size = cells.bit_count()
            # Per rule: where its bits are, and the mines it can still take afterwards.
            room = [(4 * i, (rules[i][0] & later).bit_count()) for i in members]
            mine = (1 << self._used) - sum(1 << 4 * i for i in members)
            following: dict[int, int] = {}
            steps = []
            for state, ways in self._layers[-1].items():
                lacking = [state >> at & 15 for at, _ in room]
                least = max(0, *(n - after for n, (_, after) in zip(lacking, room, strict=True)))
                for mines in range(least, min(size, *lacking) + 1):
                    after = state + mines * mine
                    following[after] = following.get(after, 0) + ways * math.comb(size, mines)
                    steps.append((state, mines, after))
            self._layers.append(following)
            self._steps.append(steps)
        self.counts = {state >> self._used: ways for state, ways in self._layers[-1].items()}

    def mined(self, weights: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Yield for each group of cells `(in how many ways one of them has a mine, cells)`.

        Args:
            weights: Mines used here to the number of ways to place the others elsewhere.
        """
        behind = {used << self._used: weight for used, weight in weights.items()}
        for i in reversed(range(len(self._groups))):
            cells, _ = self._groups[i]
            size = cells.bit_count()
            before: dict[int, int] = {}
            mined = 0
            for state, mines, after in self._steps[i]:
                ways = math.comb(size, mines) * behind.get(after, 0)
                before[state] = before.get(state, 0) + ways
                mined += mines * ways * self._layers[i][state]
            behind = before
            yield mined // size, cells


def _groups(cells: int, rules: list[int]) -> list[tuple[int, list[int]]]:
    """Return groups of cells that belong to the same rules, and these rules' indices, in order."""
    groups: list[tuple[int, list[int]]] = [(cells, [])]
    for i, rule in enumerate(rules):
        split = []
        for group, members in groups:
            if group & rule:
                split.append((group & rule, [*members, i]))
            if group & ~rule:
                split.append((group & ~rule, members))
        groups = split
    return sorted(groups, key=lambda group: group[1])
