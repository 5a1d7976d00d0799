"""Pictures of the boards of games: what each one looks like, and how the rules describe it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from gem_vision.drawing import CELL, Canvas, board

_MIDDLE = CELL // 2
_NUMBERS = ("black", "blue", "green", "red", "purple", "brown", "cyan", "orange", "dark")
# Colours of a tile of 2048 and of its number, by the power of two.
_TILES = (
    *(("sand", "black"), ("yellow", "black"), ("orange", "black"), ("red", "white")),
    *(("purple", "white"), ("blue", "white"), ("cyan", "black"), ("green", "white")),
    *(("brown", "white"), ("navy", "white"), ("black", "white")),
)
_BIG = 2 * CELL
_DISKS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "brown")
_DISK_HEIGHT = CELL // 2
# Left, top, width and height of the thick sides of a cell.
_SIDES = {
    "up": (0, 0, CELL, 2),
    "down": (0, CELL - 2, CELL, 2),
    "left": (0, 0, 2, CELL),
    "right": (CELL - 2, 0, 2, CELL),
}


@dataclass(frozen=True)
class Picture:
    """The painter of a game, as `gem.pictures.Painter` says."""

    draw: Callable[[Any], Canvas]
    """Draws the current board of a game; its sides are multiples of 28 pixels."""
    how_to_read: str = ""

    def __call__(self, game: Any) -> bytes:
        """Return the current board as a PNG file."""
        return self.draw(game).png()


# Tiles. They are drawn once and never changed.


@cache
def tile(name: str) -> Canvas:
    """Return a tile of the walking games."""
    canvas = Canvas(CELL, CELL, "sand")
    if name == "wall":
        canvas.rectangle(0, 0, CELL, CELL, "dark")
        for row in range(4):
            canvas.rectangle(0, 7 * row + 6, CELL, 1, "silver")
            canvas.rectangle(6 if row % 2 else 20, 7 * row, 1, 6, "silver")
    if "goal" in name:
        canvas.rectangle(0, 0, CELL, CELL, "pink")
        canvas.polygon([(14, 2), (26, 14), (14, 26), (2, 14)], "red")
        canvas.polygon([(14, 7), (21, 14), (14, 21), (7, 14)], "pink")
    if "box" in name:
        colour = "green" if "goal" in name else "brown"
        canvas.rectangle(3, 3, 22, 22, colour)
        canvas.line(4, 4, 24, 24, "black", 2)
        canvas.line(24, 4, 4, 24, "black", 2)
        canvas.frame(3, 3, 22, 22, "black", 2)
    if "player" in name:
        _figure(canvas)
    return canvas


def _figure(canvas: Canvas) -> None:
    canvas.disc(_MIDDLE, 9, 5, "blue")
    canvas.polygon([(_MIDDLE, 11), (22, 25), (6, 25)], "blue")


@cache
def number(words: str, colour: str = "black", ground: str = "white", size: int = CELL) -> Canvas:
    """Return a square tile with a number, as large as it fits; without text it is empty."""
    canvas = Canvas(size, size, ground)
    scale = max((s for s in (1, 2, 3) if 6 * s * len(words) + 4 <= size), default=1)
    canvas.centred(size // 2, size // 2, words, colour, scale)
    return canvas


@cache
def _heading(words: str) -> Canvas:
    canvas = Canvas(CELL, CELL, "silver")
    canvas.centred(_MIDDLE, _MIDDLE, words, "dark", 1 if len(words) > 1 else 2)
    return canvas


@cache
def stone(player: str, free: str = "") -> Canvas:
    """Return the cell of a game of lines: X, O, or what a free one shows."""
    canvas = Canvas(CELL, CELL)
    if player == "x":
        canvas.line(5, 5, 23, 23, "red", 4)
        canvas.line(23, 5, 5, 23, "red", 4)
    elif player == "o":
        canvas.disc(_MIDDLE, _MIDDLE, 10, "blue")
        canvas.disc(_MIDDLE, _MIDDLE, 6, "white")
    else:
        canvas.centred(_MIDDLE, _MIDDLE, free, "grey", 1 if len(free) > 1 else 2)
    canvas.frame(0, 0, CELL, CELL, "black")
    return canvas


# Boards.


def _sokoban(game: Any) -> Canvas:
    rows, columns = game.dim_room
    floor, goals = game.room.floor, game.room.goals

    def name(cell: int) -> str:
        if not floor >> cell & 1:
            return "wall"
        goal = "goal" if goals >> cell & 1 else ""
        if game.boxes >> cell & 1:
            return f"{goal} box".strip()
        return f"{goal} player".strip() if cell == game.player else goal

    return board([[tile(name(r * columns + c)) for c in range(columns)] for r in range(rows)])


def _maze(game: Any) -> Canvas:
    size = game.size

    def shown(cell: int) -> Canvas:
        walls = tuple(side for side in _SIDES if side not in game.ways[cell])
        return _maze_tile(walls, cell == game.player, cell == game.goal)

    return board([[shown(r * size + c) for c in range(size)] for r in range(size)])


@cache
def _maze_tile(walls: tuple[str, ...], player: bool, goal: bool) -> Canvas:
    canvas = Canvas(CELL, CELL, "green" if player and goal else "white")
    if player:
        _figure(canvas)
    elif goal:
        canvas.rectangle(8, 4, 2, 21, "black")
        canvas.polygon([(10, 4), (23, 9), (10, 15)], "green")
    for wall in walls:
        canvas.rectangle(*_SIDES[wall], "black")
    return canvas


def _game_2048(game: Any) -> Canvas:
    return board([[_tile_2048(value) for value in row] for row in game.board])


@cache
def _tile_2048(value: int) -> Canvas:
    power = value.bit_length() - 2
    ground, colour = _TILES[min(power, len(_TILES) - 1)] if value else ("silver", "black")
    canvas = number(str(value or ""), colour, ground, _BIG).copy()
    canvas.frame(0, 0, _BIG, _BIG, "dark", 2)
    return canvas


def _fifteen_puzzle(game: Any) -> Canvas:
    rows = game.num_rows
    return board(
        [map(_tile_of_fifteen, game.tiles[r * rows : r * rows + rows]) for r in range(rows)]
    )


@cache
def _tile_of_fifteen(value: int) -> Canvas:
    if not value:
        return Canvas(CELL, CELL, "dark")
    canvas = number(str(value), "black", "yellow").copy()
    canvas.frame(0, 0, CELL, CELL, "dark")
    return canvas


def _minesweeper(game: Any) -> Canvas:
    # As in the game: a bit for each cell, and one for the end of each row.
    width, mines = game.cols + 1, game.mines
    around = _around(game.rows, game.cols)

    def shown(cell: int) -> Canvas:
        bit = 1 << cell
        if game.exploded & bit:
            return _field("mine")
        if game.opened & bit:
            return _field(str((mines & around[cell]).bit_count()))
        return _field("flag" if game.flags & bit else "closed")

    top = [_heading(""), *(_heading(str(column)) for column in range(game.cols))]
    rows = [
        [_heading(str(row)), *(shown(row * width + column) for column in range(game.cols))]
        for row in range(game.rows)
    ]
    return board([top, *rows])


@cache
def _around(rows: int, cols: int) -> list[int]:
    """Return the neighbours of every cell as bits."""
    found = [0] * (rows * (cols + 1))
    for row in range(rows):
        for column in range(cols):
            for r in range(max(row - 1, 0), min(row + 2, rows)):
                for c in range(max(column - 1, 0), min(column + 2, cols)):
                    if (r, c) != (row, column):
                        found[row * (cols + 1) + column] |= 1 << (r * (cols + 1) + c)
    return found


@cache
def _field(name: str) -> Canvas:
    if name.isdecimal():
        canvas = number(name.replace("0", ""), _NUMBERS[int(name)], "white").copy()
    else:
        canvas = Canvas(CELL, CELL, "red" if name == "mine" else "grey")
        canvas.rectangle(0, 0, CELL, 3, "silver")
        canvas.rectangle(0, 0, 3, CELL, "silver")
    if name == "mine":
        canvas.disc(_MIDDLE, _MIDDLE, 8, "black")
    if name == "flag":
        canvas.rectangle(10, 5, 2, 19, "black")
        canvas.polygon([(12, 5), (24, 10), (12, 16)], "red")
    canvas.frame(0, 0, CELL, CELL, "dark")
    return canvas


def _sudoku(game: Any) -> Canvas:
    scale, box = game.scale, math.isqrt(game.scale)
    names = [str(each) for each in range(1, scale + 1)]

    def shown(cell: int) -> Canvas:
        row, column = divmod(cell, scale)
        return _digit(game.cells[cell], row % box, column % box, box - 1)

    rows = [
        [_heading(names[row]), *(shown(row * scale + column) for column in range(scale))]
        for row in range(scale)
    ]
    return board([[_heading(""), *map(_heading, names)], *rows])


@cache
def _digit(value: int, row: int, column: int, last: int) -> Canvas:
    """Return the cell of a Sudoku; its row and column in the box say where the lines are thick."""
    canvas = number(str(value or "")).copy()
    canvas.frame(0, 0, CELL, CELL, "silver")
    for side, thick in zip(_SIDES, (not row, row == last, not column, column == last), strict=True):
        if thick:
            canvas.rectangle(*_SIDES[side], "black")
    return canvas


def _tower_of_hanoi(game: Any) -> Canvas:
    disks = game.num_disks
    wide = CELL * -(-(8 * disks + 16) // CELL)
    high = CELL * -(-(_DISK_HEIGHT * disks + 8) // CELL)
    canvas = Canvas(3 * wide, high + CELL)
    canvas.rectangle(0, high, canvas.width, 3, "black")
    for peg, stack in enumerate(game.pegs):
        middle = wide * peg + wide // 2
        canvas.rectangle(middle - 2, 4, 4, high - 4, "black")
        canvas.centred(middle, high + 15, "ABC"[peg], "black", 2)
        for level, disk in enumerate(stack, start=1):
            half, top = 4 * disk + 6, high - _DISK_HEIGHT * level
            canvas.rectangle(
                middle - half, top, 2 * half, _DISK_HEIGHT, _DISKS[(disk - 1) % len(_DISKS)]
            )
            canvas.frame(middle - half, top, 2 * half, _DISK_HEIGHT, "black")
            canvas.centred(middle, top + _DISK_HEIGHT // 2, str(disk))
    return canvas


def _lines(game: Any, numbered: bool) -> list[list[Canvas]]:
    columns, rows = game.board.columns, game.board.rows
    x, o = game.stones["x"], game.stones["o"]

    def shown(cell: int) -> Canvas:
        player = "x" if x >> cell & 1 else "o" if o >> cell & 1 else ""
        return stone(player, str(cell + 1) if numbered else "")

    return [[shown(r * columns + c) for c in range(columns)] for r in range(rows)]


def _tic_tac_toe(game: Any) -> Canvas:
    return board(_lines(game, numbered=True))


def _connect_four(game: Any) -> Canvas:
    top = [_heading(str(column + 1)) for column in range(game.board.columns)]
    return board([top, *_lines(game, numbered=False)])


SOKOBAN = Picture(
    _sokoban,
    "In the picture you are the blue figure. Dark bricks are walls, a red diamond is a goal, a "
    "brown crate is a box, and a green crate is a box on a goal.",
)
MAZE = Picture(
    _maze,
    "In the picture you are the blue figure, the green flag is the goal, black lines are walls.",
)
GAME_2048 = Picture(_game_2048)
FIFTEEN_PUZZLE = Picture(_fifteen_puzzle, "In the picture the gap is the dark cell.")
MINESWEEPER = Picture(
    _minesweeper,
    "In the picture grey cells are closed and white ones open; an open cell without a number has "
    "no mine around it. A red flag is a mark. Row and column numbers are at the edges.",
)
SUDOKU = Picture(
    _sudoku,
    "In the picture the numbers of rows and columns are at the edges, and cells to fill are blank.",
)
TOWER_OF_HANOI = Picture(
    _tower_of_hanoi,
    "The picture shows the three pegs from the side, with the number of every disk; 1 is the "
    "smallest.",
)
TIC_TAC_TOE = Picture(_tic_tac_toe)
CONNECT_FOUR = Picture(_connect_four)
