"""TicTacToe and ConnectFour: lines on a board, as bits, and the minimax player of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random
from typing import ClassVar

from gem.core import Observation
from gem.envs.games.base import boxed
from gem.envs.multi.base import Match, picked
from gem.errors import ConfigurationError
from gem.parameters import integer
from gem.pictures import painter, parts

_WIN = 1_000


@dataclass(frozen=True)
class Board:
    """A board of cells, numbered row by row from the top left; stones are bits."""

    columns: int
    rows: int
    line: int
    """Stones in a row that win."""
    drop: bool
    """Whether stones fall to the bottom of their column."""

    @cached_property
    def full(self) -> int:
        """All cells."""
        return (1 << self.columns * self.rows) - 1

    @cached_property
    def lines(self) -> list[list[int]]:
        """For each cell, the lines through it."""
        through: list[list[int]] = [[] for _ in range(self.columns * self.rows)]
        for cells in self._all_lines():
            for cell in cells:
                through[cell].append(sum(1 << each for each in cells))
        return through

    def _all_lines(self) -> Iterator[list[int]]:
        for row in range(self.rows):
            for column in range(self.columns):
                for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    ends = row + down * (self.line - 1), column + right * (self.line - 1)
                    if ends[0] < self.rows and 0 <= ends[1] < self.columns:
                        yield [
                            (row + down * k) * self.columns + column + right * k
                            for k in range(self.line)
                        ]

    @cached_property
    def order(self) -> list[int]:
        """Columns, or cells, from the middle outwards: good moves come early in a search."""
        n = self.columns if self.drop else self.columns * self.rows
        return sorted(range(n), key=lambda place: abs(2 * place - n + 1))

    def cells(self, taken: int) -> list[int]:
        """Return the cells that can be played."""
        if not self.drop:
            return [cell for cell in self.order if not taken >> cell & 1]
        found = []
        for column in self.order:
            for cell in range((self.rows - 1) * self.columns + column, -1, -self.columns):
                if not taken >> cell & 1:
                    found.append(cell)
                    break
        return found

    def wins(self, stones: int, cell: int) -> bool:
        """Whether the stone on a cell completes a line."""
        return any(stones & line == line for line in self.lines[cell])


def _value(
    board: Board, mine: int, theirs: int, depth: int, low: int, high: int, seen: dict[int, int]
) -> int:
    """Return the negamax value for who is to move (fail-soft alpha-beta).

    Wins within `depth` count the more the sooner they are; what lies beyond counts as a draw.
    """
    if mine | theirs == board.full or not depth:
        return 0
    key = mine << board.columns * board.rows | theirs
    # A position that was searched to the end with an open window has one value.
    if key in seen:
        return seen[key]
    cells = board.cells(mine | theirs)
    for cell in cells:
        if board.wins(mine | 1 << cell, cell):
            return _WIN + depth
    best, was_low = -2 * _WIN, low
    for cell in cells:
        value = -_value(board, theirs, mine | 1 << cell, depth - 1, -high, -low, seen)
        best = max(best, value)
        low = max(low, value)
        if low >= high:
            return best
    if best > was_low:
        seen[key] = best
    return best


@lru_cache(maxsize=1 << 16)
def best_cells(board: Board, mine: int, theirs: int, depth: int) -> list[int]:
    """Return the best cells for who is to move, by a search of `depth` moves."""
    seen: dict[int, int] = {}
    values = {}
    for cell in board.cells(mine | theirs):
        if board.wins(mine | 1 << cell, cell):
            values[cell] = 2 * _WIN
        else:
            window = -2 * _WIN, 2 * _WIN
            values[cell] = -_value(board, theirs, mine | 1 << cell, depth - 1, *window, seen)
    return [cell for cell, value in values.items() if value == max(values.values())]


class _Lines(Match):
    """Two players put stones on a board in turn; a line wins."""

    agents = ("x", "o")
    _apart: ClassVar[tuple[str, ...]] = ("spec", "modality", "_painter")

    def __init__(
        self, board: Board, depth: int, on_illegal: str, modality: str, seed: int | None
    ) -> None:
        super().__init__(on_illegal=on_illegal, seed=seed)
        self.board, self.depth = board, depth
        self.modality, self._painter = modality, painter(self, modality)

    def _start(self) -> None:
        self.stones = {"x": 0, "o": 0}
        self._winner = ""

    def _turn(self) -> str:
        return "xo"[self._taken().bit_count() % 2]

    def _taken(self) -> int:
        return self.stones["x"] | self.stones["o"]

    def _next(self) -> tuple[str, ...]:
        over = self._winner or self._taken() == self.board.full
        return () if over else (self._turn(),)

    def _legal(self, agent: str) -> tuple[str, ...]:
        if agent not in self._next():
            return ()
        width = self.board.columns if self.board.drop else len(self.board.order)
        places = sorted(cell % width for cell in self.board.cells(self._taken()))
        return tuple(str(place + 1) for place in places)

    def _spelt(self, cell: int) -> str:
        return str(1 + (cell % self.board.columns if self.board.drop else cell))

    def _all_moves(self) -> tuple[str, ...]:
        return tuple(str(place + 1) for place in range(len(self.board.order)))

    def _view(self, agent: str) -> str:
        columns, rows, x, o = self.board.columns, self.board.rows, *self.stones.values()
        free = "." if self.board.drop else ""
        shown = [
            "x" if x >> cell & 1 else "o" if o >> cell & 1 else free or str(cell + 1)
            for cell in range(columns * rows)
        ]
        return "\n".join(
            [" ".join(shown[first : first + columns]) for first in range(0, len(shown), columns)]
        )

    def _play(self, moves: dict[str, str]) -> dict[str, float]:
        [(agent, move)] = moves.items()
        cells = self.board.cells(self._taken())
        cell = next(each for each in cells if self._spelt(each) == move)
        self.stones[agent] |= 1 << cell
        # The moves of both tell the board.
        self._tell(f"{agent} has moved." if self._is_blind() else f"{agent} plays {move}.", agent)
        if not self.board.wins(self.stones[agent], cell):
            return {}
        self._winner, other = agent, "o" if agent == "x" else "x"
        return {agent: 1.0, other: -1.0}

    def _is_blind(self) -> bool:
        """Whether texts must not tell the board."""
        return self.modality == "image"

    def _observed(self, agent: str, legal: tuple[str, ...]) -> Observation:
        if self._painter is None:
            return super()._observed(agent, legal)
        told = list(self._news[agent])
        if not self._is_blind():
            told += [self._view(agent), f"Legal moves: {', '.join(legal)}"]
        return parts("\n".join(told), self._painter(self), self._asking(agent))

    def _result(self, agent: str) -> Observation:
        result = super()._result(agent)
        return result if self._painter is None else parts(str(result), self._painter(self))

    def _ending(self, agent: str) -> str:
        told = f"{self._winner} wins." if self._winner else "A draw." if not self._next() else ""
        return told if self._is_blind() else f"{self._view(agent)}\n{told}".rstrip()

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Return a best move by minimax; `rng` draws among equally good ones."""
        _ = self.episode_key
        if agent not in self._next():
            return self.sample_random_action(agent)
        mine, theirs = self.stones[agent], self._taken() ^ self.stones[agent]
        return boxed(self._spelt(picked(best_cells(self.board, mine, theirs, self.depth), rng)))


class TicTacToe(_Lines):
    """Three in a row on a board of nine cells; x begins.

    Rewards: 1 for the winner, -1 for the loser, 0 for a draw. The oracle is exact: it never loses.
    """

    def __init__(
        self, *, on_illegal: str = "lose", modality: str = "text", seed: int | None = None
    ) -> None:
        """Make the game.

        Args:
            on_illegal: See `Match`.
            modality: See `ConnectFour`.
            seed: Seed of the first `reset` that is not given one.
        """
        super().__init__(Board(3, 3, 3, drop=False), 9, on_illegal, modality, seed)

    def _rules(self, agent: str) -> str:
        return (
            "Players take turns and put their letter on a free cell; x begins. Three in a row, "
            "column or diagonal win. A move is the number of a free cell."
        )


class ConnectFour(_Lines):
    """Stones dropped into columns; a line of four (by default) wins; x begins.

    Rewards: 1 for the winner, -1 for the loser, 0 for a draw. The oracle searches `depth` moves
    ahead and counts what lies beyond as a draw: it is exact where no more cells are free.
    """

    def __init__(
        self,
        columns: int = 7,
        rows: int = 6,
        line: int = 4,
        depth: int = 4,
        *,
        on_illegal: str = "lose",
        modality: str = "text",
        seed: int | None = None,
    ) -> None:
        """Set the parameters.

        Args:
            columns, rows: Size of the board, 2 to 9.
            line: Stones in a row that win.
            depth: Moves that the oracle looks ahead.
            on_illegal: See `Match`.
            modality: How the board is shown: as `text`, as an `image`, or as `both`. With `image`
                no text names legal moves or the other player's moves.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, or no line fits the board.
        """
        size = integer("columns", columns, 2, 9), integer("rows", rows, 2, 9)
        if integer("line", line, 2, 9) > max(size):
            raise ConfigurationError(f"line must fit a board of {columns}x{rows}, got {line}")
        board = Board(*size, line, drop=True)
        super().__init__(board, integer("depth", depth, 1, 81), on_illegal, modality, seed)

    def _rules(self, agent: str) -> str:
        return (
            f"Players take turns and drop a stone into one of {self.board.columns} columns; x "
            f"begins. {self.board.line} stones in a row, column or diagonal win. A move is the "
            "number of a column that is not full, counted from the left."
        )
