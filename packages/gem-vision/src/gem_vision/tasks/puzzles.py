"""Puzzles: the shortest way in a graph, a shape that was turned, a grid with gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from gem.errors import ConfigurationError
from gem.parameters import choice, flag, integer
from gem_vision.drawing import CELL, Canvas, offset
from gem_vision.tasks.base import Question
from gem_vision.tasks.shapes import COLOURS

_FINE = 64
_LETTERS = "ABCDEFGHIJKL"

Shape = frozenset[tuple[int, int]]
"""Squares of a shape as (row, column); the smallest row and column are 0."""


class Path(Question):
    """How many edges has the shortest way between two nodes of a graph?

    The nodes are on a circle, so that no edge passes through another node. There always is a way.
    The possible lengths are equally likely.
    """

    expected = "an integer"

    def __init__(self, nodes: int = 7, extra_edges: int = 2, *, seed: int | None = None) -> None:
        """Set the parameters.

        Args:
            nodes: Number of nodes, 3 to 12.
            extra_edges: Edges beyond those that connect all nodes, 0 to 20; fewer where no more
                pairs are left.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(seed=seed)
        self.nodes = integer("nodes", nodes, 3, len(_LETTERS))
        self.extra_edges = integer("extra_edges", extra_edges, 0, 20)

    def _draw(self) -> Canvas:
        rng, nodes = self.rng, self.nodes
        order = rng.sample(range(nodes), nodes)
        edges = {
            frozenset((order[place], order[rng.randrange(max(0, place - 3), place)]))
            for place in range(1, nodes)
        }
        free = [
            pair
            for pair in (frozenset((a, b)) for a in range(nodes) for b in range(a))
            if pair not in edges
        ]
        edges |= set(rng.sample(free, min(self.extra_edges, len(free))))
        by_length: dict[int, list[tuple[int, int]]] = {}
        for start in range(nodes):
            for end, steps in enumerate(_steps(edges, start, nodes)):
                if steps:
                    by_length.setdefault(steps, []).append((start, end))
        length = rng.choice(sorted(by_length))
        start, end = rng.choice(by_length[length])
        self.question = (
            f"How many edges has the shortest way from {_LETTERS[start]} to {_LETTERS[end]} in the "
            "graph?"
        )
        self.answer = str(length)
        return self._graph(edges)

    def _graph(self, edges: Iterable[frozenset[int]]) -> Canvas:
        middle = 4 * CELL
        canvas = Canvas(2 * middle, 2 * middle)
        places = []
        for node in range(self.nodes):
            right, down = offset(720 * node // self.nodes, middle - 16)
            places.append((middle + right // _FINE, middle + down // _FINE))
        for edge in sorted(map(sorted, edges)):
            (x0, y0), (x1, y1) = (places[node] for node in edge)
            canvas.line(x0, y0, x1, y1, "dark", 2)
        for name, (x, y) in zip(_LETTERS, places, strict=False):
            canvas.disc(x, y, 13, "black")
            canvas.disc(x, y, 11, "yellow")
            canvas.centred(x + 1, y, name, "black", 2)
        return canvas

    def _guesses(self) -> tuple[str, ...]:
        return tuple(map(str, range(1, self.nodes)))


def _steps(edges: Iterable[frozenset[int]], start: int, nodes: int) -> list[int]:
    """Return the edges of the shortest way from a node to each; 0 where there is none."""
    left = {start: 0}
    queue = [start]
    for node in queue:
        for edge in edges:
            if node in edge:
                [other] = edge - {node}
                if other not in left:
                    left[other] = left[node] + 1
                    queue.append(other)
    return [left.get(node, 0) for node in range(nodes)]


class Rotation(Question):
    """Which of four shapes is the upper one, turned?

    The wrong ones differ from it in every position; with `mirrored` they are its mirror image.
    """

    expected = "A, B, C or D"
    words = ("A", "B", "C", "D")

    def __init__(
        self, squares: int = 5, mirrored: bool = False, *, seed: int | None = None
    ) -> None:
        """Set the parameters.

        Args:
            squares: Squares of the shape, 4 to 7.
            mirrored: Whether the wrong shapes are mirror images; otherwise one square was moved.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(seed=seed)
        self.squares = integer("squares", squares, 4, 7)
        self.mirrored = flag("mirrored", mirrored)

    def _draw(self) -> Canvas:
        rng = self.rng
        shape = grown(rng, self.squares)
        # A shape that equals its mirror image, or itself when turned, has no single right answer.
        while _mirror(shape) in turns(shape) or len(set(turns(shape))) < 4:
            shape = grown(rng, self.squares)
        shown = [rng.choice(turns(shape)[1:])]
        if self.mirrored:
            shown += rng.sample(turns(_mirror(shape)), 3)
        while len(shown) < 4:
            other = _moved(rng, shape)
            if other not in turns(shape):
                shown.append(rng.choice(turns(other)))
        places = rng.sample(range(4), 4)
        self.answer = self.words[places[0]]
        self.question = (
            "Which of the shapes A, B, C and D is the black shape above them, turned? Shapes may "
            "be turned, but not flipped over."
        )
        panel = 3 * CELL
        canvas = Canvas(4 * panel, 2 * panel)
        _draw_squares(canvas, shape, 2 * panel, panel // 2, "black")
        for place, option in zip(places, shown, strict=True):
            x = panel * place
            canvas.frame(x, panel, panel, panel, "grey")
            canvas.text(x + 4, panel + 4, self.words[place], "black", 2)
            _draw_squares(canvas, option, x + panel // 2 + 5, panel + panel // 2 + 3, "blue")
        return canvas


def grown(rng: Random, squares: int) -> Shape:
    """Return a connected shape that fits into 5 by 5 squares."""
    found = {(0, 0)}
    while len(found) < squares:
        row, column = rng.choice(sorted(found))
        down, right = rng.choice(((0, 1), (1, 0), (0, -1), (-1, 0)))
        more = found | {(row + down, column + right)}
        if _extent(more) <= 5:
            found = more
    return _at_origin(found)


def turns(shape: Shape) -> list[Shape]:
    """Return the shape, and turned by 90, 180 and 270 degrees."""
    found = [shape]
    while len(found) < 4:
        found.append(_at_origin((column, -row) for row, column in found[-1]))
    return found


def _mirror(shape: Shape) -> Shape:
    return _at_origin((row, -column) for row, column in shape)


def _moved(rng: Random, shape: Shape) -> Shape:
    """Return a connected shape of which one square is elsewhere."""
    while True:
        kept = set(shape)
        kept.remove(rng.choice(sorted(shape)))
        row, column = rng.choice(sorted(kept))
        down, right = rng.choice(((0, 1), (1, 0), (0, -1), (-1, 0)))
        kept.add((row + down, column + right))
        if len(kept) == len(shape) and _is_connected(kept) and _extent(kept) <= 5:
            return _at_origin(kept)


def _is_connected(squares: set[tuple[int, int]]) -> bool:
    queue = [min(squares)]
    for row, column in queue:
        for near in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if near in squares and near not in queue:
                queue.append(near)
    return len(queue) == len(squares)


def _extent(squares: set[tuple[int, int]]) -> int:
    rows = [row for row, _ in squares]
    columns = [column for _, column in squares]
    return max(max(rows) - min(rows), max(columns) - min(columns)) + 1


def _at_origin(squares: Iterable[tuple[int, int]]) -> Shape:
    listed = list(squares)
    row, column = min(r for r, _ in listed), min(c for _, c in listed)
    return frozenset((r - row, c - column) for r, c in listed)


def _draw_squares(canvas: Canvas, shape: Shape, x: int, y: int, colour: str) -> None:
    """Draw a shape around (x, y), with squares of 13 pixels."""
    side = 13
    high, wide = (1 + max(square[i] for square in shape) for i in (0, 1))
    left, top = x - wide * side // 2, y - high * side // 2
    for row, column in sorted(shape):
        canvas.rectangle(left + column * side, top + row * side, side - 1, side - 1, colour)


class Grid(Question):
    """Which colour belongs into a cell? Every row and column of the grid has each colour once.

    The empty cells are such that the rule decides the one that is asked for.
    """

    expected = "one of the colours of the picture"

    def __init__(self, size: int = 4, empty: int = 6, *, seed: int | None = None) -> None:
        """Set the parameters.

        Args:
            size: Rows, columns and colours, 3 to 5.
            empty: Empty cells, the one that is asked for included, from 1 up; fewer where the rule
                would not decide.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(seed=seed)
        self.size = choice("size", size, (3, 4, 5))
        self.empty = integer("empty", empty, 1, 25)
        if empty > size * size:
            raise ConfigurationError(f"empty must be at most size * size, got {empty} and {size}")
        self.words = COLOURS[: self.size]
        self.expected = f"one of {', '.join(self.words)}"

    def _draw(self) -> Canvas:
        rng, size = self.rng, self.size
        solution = next(completions([None] * size**2, size, rng))
        cells: list[int | None] = list(solution)
        order = rng.sample(range(size * size), size * size)
        asked = order[0]
        empty = 0
        for cell in order:
            if empty == self.empty:
                break
            kept, cells[cell] = cells[cell], None
            if _decided(cells, size, asked):
                empty += 1
            else:
                cells[cell] = kept
        self.answer = self.words[solution[asked]]
        self.question = (
            f"Every row and every column of the grid holds each of the colours "
            f"{', '.join(self.words)} exactly once. White cells are empty. Which colour belongs "
            "into the cell with the question mark?"
        )
        side = 2 * CELL if size == 3 else CELL
        canvas = Canvas(side * size, side * size)
        for cell, value in enumerate(cells):
            row, column = divmod(cell, size)
            x, y = side * column, side * row
            if value is not None:
                canvas.rectangle(x, y, side, side, self.words[value])
            if cell == asked:
                canvas.centred(x + side // 2, y + side // 2, "?", "black", 3)
            canvas.frame(x, y, side, side, "black")
        return canvas


def completions(
    cells: Sequence[int | None], size: int, rng: Random | None = None
) -> Iterator[list[int]]:
    """Yield the ways to fill a grid so that every row and column has each number once.

    Args:
        cells: Numbers row by row, from 0; None where empty.
        size: Rows, columns and numbers.
        rng: Draws the order; None tries the smallest numbers first.
    """
    empty = [cell for cell, value in enumerate(cells) if value is None]
    if not empty:
        yield [value for value in cells if value is not None]
        return
    options = {cell: _allowed(cells, size, cell) for cell in empty}
    cell = min(empty, key=lambda each: len(options[each]))
    values = options[cell] if rng is None else rng.sample(options[cell], len(options[cell]))
    for value in values:
        filled = list(cells)
        filled[cell] = value
        yield from completions(filled, size, rng)


def _allowed(cells: Sequence[int | None], size: int, cell: int) -> list[int]:
    row, column = divmod(cell, size)
    taken = {cells[row * size + c] for c in range(size)}
    taken |= {cells[r * size + column] for r in range(size)}
    return [value for value in range(size) if value not in taken]


def _decided(cells: Sequence[int | None], size: int, asked: int) -> bool:
    """Return whether all completions have the same number in a cell."""
    possible = _allowed(cells, size, asked) if cells[asked] is None else [cells[asked]]
    found = 0
    for value in possible:
        filled = list(cells)
        filled[asked] = value
        found += next(completions(filled, size), None) is not None
    return found == 1
