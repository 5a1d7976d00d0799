"""Game2048: merge equal tiles until one of them reaches the target."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise, product

from gem.envs.games.base import MAX_TURNS, Game, Outcome, boxed, fitting, refused
from gem.envs.games.boards import plain
from gem.parameters import choice, integer, optional

Row = tuple[int, ...]
Board = tuple[Row, ...]
"""Rows of tiles; 0 is a free cell."""

DIRECTIONS = ("up", "down", "left", "right")
_FOUR = 0.1
_TARGETS = tuple(2**n for n in range(3, 18))

# The oracle's search: what a lost game is worth, and up to how many free cells it looks further.
_LOST = -1e6
_CROWDED = 4

# `(target_tile, max_turns)`: one is drawn when a parameter is left open.
_CANDIDATES = ((16, 20), (32, 30), (64, 50))


class Game2048(Game[str]):
    """Tiles slide to one side of a square board, equal neighbours merge, and a tile appears.

    A game begins with two tiles; a tile that appears on a random free cell is a 2 (90 %) or a 4.
    Rewards: a tile larger than any before pays the doublings that it gains, as a share of those
    from the largest tile of the start to the target; a won game sums to 1.0. Without a legal move
    the game is lost.

    What can be reached: merging keeps the sum of the tiles, and each turn adds 4 at most, so
    after the slide of turn t the sum, and the largest tile, is at most `4 * (t + 1)`; on average
    the sum is `2.2 * (t + 1)`. A target of 512 in 50 turns (at most 128, usually 64) or of 2048 in
    100 (at most 256, usually 128) can never be won: the ids that ask for it measure how far a
    policy gets. Elsewhere the tiles that appear decide: the oracle wins 98 % of 64 in 50 turns and
    half of 2048 in 1000, which leave little room, and `oracle_success` is a floor below that.

    Attributes:
        target_tile: Tile that wins this episode.
        board: Rows of tiles; 0 is a free cell.
        best: Largest tile after any slide so far, or at the start.
    """

    expected = "one of up, down, left and right"
    words = DIRECTIONS
    example = boxed("up")

    def __init__(
        self,
        target_tile: int | None = 2048,
        max_turns: int | None = 1000,
        board_size: int = 4,
        *,
        format_error_ends: bool = True,
        modality: str = "text",
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are drawn together at every reset.

        Args:
            target_tile: Tile that wins, a power of two from 8 to 131072 that fits on the board;
                every doubling takes twice the turns. Drawn from 16, 32 and 64.
            max_turns: Moves allowed; drawn from 20, 30 and 50.
            board_size: Rows and columns, 2 to 8; a smaller board fills up sooner.
            format_error_ends: See `Game`.
            modality: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, or the board has too few cells for the
                target.
        """
        super().__init__(format_error_ends=format_error_ends, modality=modality, seed=seed)
        self.board_size = integer("board_size", board_size, 2, 8)
        # A full board holds 4, 4, 8, 16, ... at most before its last merges.
        largest = 2 ** (self.board_size**2 + 1)
        self._candidates = fitting(
            _CANDIDATES,
            optional(choice, "target_tile", target_tile, _TARGETS),
            optional(integer, "max_turns", max_turns, 1, MAX_TURNS),
            fits=lambda target, _: target <= largest,
            otherwise=f"target_tile must be at most {largest} on a board of {self.board_size} "
            f"rows, got {target_tile!r}",
        )

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """Mean floor of the drawn pairs of target and turns; see the class."""
        floors = [_floor(*pair) if self.board_size == 4 else 0.0 for pair in self._candidates]
        return sum(floors) / len(floors)

    def _start(self) -> None:
        self.target_tile, self.max_turns = self.rng.choice(self._candidates)
        self.board: Board = ((0,) * self.board_size,) * self.board_size
        self._add_tile()
        self._add_tile()
        self._first = self.best = _largest(self.board)

    def _add_tile(self) -> bool:
        """Put a tile on a random free cell; return whether another cell is still free."""
        board, rng = self.board, self.rng
        side = range(self.board_size)
        free = [(row, column) for row, column in product(side, side) if not board[row][column]]
        row, column = free[int(rng.random() * len(free))]
        tile = 4 if rng.random() < _FOUR else 2
        self.board = _with_tile(board, row, column, tile)
        return len(free) > 1

    def _instructions(self) -> str:
        return (
            "You are playing 2048.\n"
            f"You have to reach a tile of {self.target_tile} within {self.max_turns} turns.\n"
            "Each turn slides all tiles up, down, left or right as far as they go. Two equal "
            "tiles that meet merge into one of twice the number; each tile merges once a turn. "
            "Then a 2 or a 4 appears on a free cell. A direction in which nothing moves is not "
            "allowed. The game is lost when no direction is left.\n"
            f"{self._how_to_answer()}."
        )

    def _play(self, move: str) -> Outcome:
        board = slide(self.board, move)
        if board == self.board:
            return refused(f"At turn {self.turn}, you moved {move}, but nothing moved.")
        self.board = board
        largest = _largest(board)
        reward = 0.0
        if largest > self.best:
            gained = min(largest, self.target_tile) / self.best
            reward = math.log2(gained) / math.log2(self.target_tile / self._first)
            self.best = largest
        if largest >= self.target_tile:
            return self._won(f"reached {largest}", reward)
        feedback = f"At turn {self.turn}, you moved {move}."
        if not self._add_tile() and not _legal(self.board):
            return Outcome(f"{feedback} Game over! No more moves possible.", reward, lost=True)
        return Outcome(feedback, reward)

    def _board(self) -> str:
        return "Current board:\n" + "\n".join(map(_shown, self.board))

    def _state(self) -> str:
        return f"target {self.target_tile}; best so far {self.best}"

    def _random_move(self) -> str:
        return self.action_rng.choice(_legal(self.board) or DIRECTIONS)

    def _oracle_move(self) -> str:
        return best_move(self.board)


def _floor(target: int, turns: int) -> float:
    """Return a share of games that the oracle wins at least, on a board of 4 rows."""
    expected_sum = 2.2 * (turns + 1)
    if target <= 512 and expected_sum >= 1.75 * target:
        return 0.9
    return 0.25 if 512 < target <= 2048 and expected_sum >= 1.07 * target else 0.0


def slide(board: Board, direction: str) -> Board:
    """Return the board after all tiles slid in one of `DIRECTIONS`, before a tile appears."""
    if direction == "left":
        return tuple(map(_to_the_left, board))
    if direction == "right":
        return tuple(map(_to_the_right, board))
    lines = zip(*board, strict=True)
    moved = map(_to_the_left if direction == "up" else _to_the_right, lines)
    return tuple(zip(*moved, strict=True))


# The rows of one game are few and come again and again; the bound is some 10 MB.
@lru_cache(maxsize=1 << 15)
def _to_the_left(row: Row) -> Row:
    merged: list[int] = []
    last = 0
    for tile in filter(None, row):
        if tile == last:
            merged[-1], last = 2 * tile, 0
        else:
            merged.append(tile)
            last = tile
    return (*merged, *(0,) * (len(row) - len(merged)))


@lru_cache(maxsize=1 << 15)
def _to_the_right(row: Row) -> Row:
    return _to_the_left(row[::-1])[::-1]


@lru_cache(maxsize=1 << 15)
def _shown(row: Row) -> str:
    return plain(((tile or "." for tile in row),), width=4)


def _largest(board: Board) -> int:
    return max(map(max, board))


def _with_tile(board: Board, row: int, column: int, tile: int) -> Board:
    cells = board[row]
    return (*board[:row], (*cells[:column], tile, *cells[column + 1 :]), *board[row + 1 :])


def _legal(board: Board) -> list[str]:
    """Return the directions in which something moves."""
    return [direction for direction in DIRECTIONS if slide(board, direction) != board]


@lru_cache(maxsize=1 << 15)
def _worth(line: Row) -> float:
    """Return how promising a row or column is: free cells, merges to come, tiles in order."""
    ranks = [max(0, tile.bit_length() - 1) for tile in line]
    falls = rises = merges = 0
    for one, two in pairwise(ranks):
        falls += max(0, one**3 - two**3)
        rises += max(0, two**3 - one**3)
        merges += one == two != 0
    return 270.0 * ranks.count(0) + 300.0 * merges - 47.0 * min(falls, rises)


def best_move(board: Board) -> str:
    """Return the direction with the best prospect; the first of `DIRECTIONS` if none is legal.

    An expectimax search: the mean over the free cells, for a 2 there (by far the likelier tile),
    of the best that the following slide can make; two tiles ahead where few cells are free.
    """
    best, best_prospect = DIRECTIONS[0], -math.inf
    for direction in DIRECTIONS:
        moved = slide(board, direction)
        if moved == board:
            continue
        crowded = sum(row.count(0) for row in moved) <= _CROWDED
        value = _prospect(moved, 2 if crowded else 1)
        if value > best_prospect:
            best, best_prospect = direction, value
    return best


def _prospect(board: Board, tiles: int) -> float:
    """Return the mean worth of the board after `tiles` more tiles and slides."""
    if not tiles:
        return sum(map(_worth, board)) + sum(map(_worth, zip(*board, strict=True)))
    total, cells = 0.0, 0
    for row, line in enumerate(board):
        for column, tile in enumerate(line):
            if tile:
                continue
            filled = _with_tile(board, row, column, 2)
            best = _LOST
            # A board and its mirror images are worth the same: columns need not be turned back.
            for lines in (filled, tuple(zip(*filled, strict=True))):
                for side in (_to_the_left, _to_the_right):
                    moved = tuple(map(side, lines))
                    if moved != lines:
                        best = max(best, _prospect(moved, tiles - 1))
            total += best
            cells += 1
    return total / cells
