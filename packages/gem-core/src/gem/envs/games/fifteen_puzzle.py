"""FifteenPuzzle: slide numbered tiles into order."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import eq
from random import Random

from gem.envs.games.base import MAX_TURNS, Game, Outcome, boxed, refused
from gem.parameters import choice, integer, optional

Board = tuple[int, ...]
"""Tiles row by row; 0 is the gap."""

# What each move does to the gap, as (rows, columns): the tile goes the other way.
_GAP = {"up": (1, 0), "down": (-1, 0), "left": (0, 1), "right": (0, -1)}
_VERTICAL = ("up", "down")
_NEIGHBOUR = {"up": "below", "down": "above", "left": "to the right of", "right": "to the left of"}

_SHOWN = ("__", *(f"{tile:2}" for tile in range(1, 100)))
_MAX_ROWS = 10

# Rows to turns: one pair is drawn when the rows are left open.
_TURNS = {2: 10, 3: 20, 4: 50}
# Rows to moves that the farthest board needs.
_FARTHEST = {2: 6, 3: 31, 4: 80}

# The oracle's search: how much more a move that is left weighs than one made, and the most boards
# it looks at (about two seconds); the walking distance needs a table of few states.
_WEIGHT, _MAX_BOARDS, _MAX_WALKING_ROWS = 2, 300_000, 4


class FifteenPuzzle(Game[str]):
    """Tiles 1, 2, 3, ... of a square board with one gap, to be put in order with the gap last.

    Rewards: 1.0 for the solved board; when the turns run out, the share of the cells (gap
    included) that are as in the solved board.

    Starts are never solved. `init_algo="monte_carlo"`: boards of 2 rows are uniform over those
    that are at most `max_turns` and at most `mc_rand_moves` moves from the solved one (11 boards,
    the farthest 6 moves away); larger ones are the end of a random walk from the solved board
    that never takes a move back and is no longer than either limit. The way back proves that they
    can be won in time. `init_algo="pure_random"` is uniform over all boards that can be solved at
    all, which may take up to 6, 31 or 80 moves with 2, 3 or 4 rows, whatever `max_turns` is.
    Either takes time proportional to `max_turns` or to the cells. The oracle's search is complete,
    but stops after as many boards as fit into two seconds: it wins every start that can be won with
    up to 4 rows, while nothing is promised for more.

    Attributes:
        num_rows: Rows, and columns, of this episode.
        tiles: The board, row by row; 0 is the gap.
        gap: Index of the gap in `tiles`.
    """

    expected = "one of up, down, left and right"
    words = _GAP
    example = boxed("up")

    def __init__(
        self,
        num_rows: int | None = 2,
        max_turns: int | None = 20,
        init_algo: str = "monte_carlo",
        mc_rand_moves: int = 100,
        *,
        format_error_ends: bool = True,
        modality: str = "text",
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are set at every reset.

        Args:
            num_rows: Rows and columns, 2 to 10; drawn from 2, 3 and 4.
            max_turns: Moves allowed; when None, 10, 20 and 50 with 2, 3 and 4 rows, and 4 a cell
                with others.
            init_algo: `"monte_carlo"` starts near the solved board, `"pure_random"` anywhere.
            mc_rand_moves: How far from the solved board `"monte_carlo"` starts: the most moves
                away with 2 rows, the length of the walk with more; never beyond `max_turns`. The
                game becomes harder with every move, from 1 on.
            format_error_ends: See `Game`.
            modality: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(format_error_ends=format_error_ends, modality=modality, seed=seed)
        self._given_rows = optional(integer, "num_rows", num_rows, 2, _MAX_ROWS)
        self._given_turns = optional(integer, "max_turns", max_turns, 1, MAX_TURNS)
        self.init_algo = choice("init_algo", init_algo, ("monte_carlo", "pure_random"))
        self.mc_rand_moves = integer("mc_rand_moves", mc_rand_moves, 1, MAX_TURNS)

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """0 where starts may be too far or the search too long; see the class."""
        sizes = list(_TURNS) if self._given_rows is None else [self._given_rows]
        if self.init_algo == "monte_carlo":
            return float(max(sizes) <= max(_FARTHEST))
        return float(all(_FARTHEST.get(rows, MAX_TURNS) <= self._turns(rows) for rows in sizes))

    def _turns(self, rows: int) -> int:
        return self._given_turns or _TURNS.get(rows, 4 * rows * rows)

    def _start(self) -> None:
        rows = self._given_rows or self.rng.choice(list(_TURNS))
        self.num_rows, self.max_turns = rows, self._turns(rows)
        if self.init_algo == "pure_random":
            board = _anywhere(rows, self.rng)
        else:
            board = _nearby(rows, min(self.mc_rand_moves, self.max_turns), self.rng)
        self.tiles = list(board)
        self.gap = board.index(0)
        # The board's text: cells at even places, what separates them at odd ones.
        self._text: list[str] = []
        for cell, tile in enumerate(board, start=1):
            self._text += (_SHOWN[tile], " " if cell % rows else "\n")
        self._text.pop()
        self._plan: dict[Board, tuple[str, int]] = {}

    def _instructions(self) -> str:
        last = self.num_rows**2 - 1
        return (
            f"You are playing the {last}-Puzzle.\n"
            f"You have to slide the tiles into order within {self.max_turns} turns: 1 to {last} "
            "row by row from the top left, the gap at the bottom right.\n"
            f"{self._how_to_read('The gap is shown as __.')} Each turn slides one tile "
            "that is next to the gap into it:\n"
            "  - up: the tile below the gap moves up\n"
            "  - down: the tile above the gap moves down\n"
            "  - left: the tile to the right of the gap moves left\n"
            "  - right: the tile to the left of the gap moves right\n"
            f"{self._how_to_answer()}."
        )

    def _play(self, move: str) -> Outcome:
        gap = self.gap
        cell = _slides(self.num_rows)[gap].get(move)
        if cell is None:
            where = f"there is no tile {_NEIGHBOUR[move]} the gap"
            return refused(f"At turn {self.turn}, you chose {move}, but {where}.")
        tile = self.tiles[cell]
        self.tiles[gap], self.tiles[cell], self.gap = tile, 0, cell
        self._text[2 * gap], self._text[2 * cell] = _SHOWN[tile], _SHOWN[0]
        rows = self.num_rows
        if cell == rows * rows - 1 and tuple(self.tiles) == _goal(rows):
            return self._won("solved the puzzle")
        return Outcome(f"At turn {self.turn}, you moved tile {tile} {move}.")

    def _board(self) -> str:
        return "".join(self._text)

    def _in_place(self) -> int:
        """Return how many cells are as in the solved board."""
        return sum(map(eq, self.tiles, _goal(self.num_rows)))

    def _final_reward(self, outcome: Outcome) -> float:
        return self._in_place() / self.num_rows**2

    def _state(self) -> str:
        return f"{self._in_place()} of {self.num_rows**2} cells in place"

    def _random_move(self) -> str:
        return self.action_rng.choice(list(_slides(self.num_rows)[self.gap]))

    def _oracle_move(self) -> str:
        board, left = tuple(self.tiles), self.max_turns - self.turn
        if board not in self._plan or self._plan[board][1] > left:
            self._plan = plan(board, left)
        # Without a plan (the game is over, or nothing comes nearer) any move is as good.
        return self._plan[board][0] if self._plan else next(iter(_slides(self.num_rows)[self.gap]))


@cache
def _goal(rows: int) -> Board:
    """Return the solved board."""
    return (*range(1, rows * rows), 0)


@cache
def _slides(rows: int) -> tuple[dict[str, int], ...]:
    """Return for every place of the gap: move to the gap's next place."""
    return tuple(
        {
            move: (row + down) * rows + column + right
            for move, (down, right) in _GAP.items()
            if 0 <= row + down < rows and 0 <= column + right < rows
        }
        for row in range(rows)
        for column in range(rows)
    )


@cache
def _small_boards() -> dict[Board, int]:
    """Return every board of two rows that can be solved, nearest first, and its distance."""
    distance = {_goal(2): 0}
    boards = [_goal(2)]
    for board in boards:
        gap = board.index(0)
        for cell in _slides(2)[gap].values():
            following = _slid(board, gap, cell)
            if following not in distance:
                distance[following] = distance[board] + 1
                boards.append(following)
    return distance


def _slid(board: Board, gap: int, cell: int) -> Board:
    """Return the board after the tile of `cell` moved into the gap."""
    tiles = list(board)
    tiles[gap], tiles[cell] = tiles[cell], 0
    return tuple(tiles)


def _nearby(rows: int, moves: int, rng: Random) -> Board:
    """Return an unsolved board at most `moves` moves from the solved one."""
    if rows == 2:
        return rng.choice([board for board, n in _small_boards().items() if 1 <= n <= moves])
    slides = [tuple(cells.values()) for cells in _slides(rows)]
    tiles = list(_goal(rows))
    gap, before = len(tiles) - 1, -1
    for _ in range(moves):
        cells = [cell for cell in slides[gap] if cell != before]
        cell = cells[int(rng.random() * len(cells))]
        tiles[gap], tiles[cell] = tiles[cell], 0
        gap, before = cell, gap
    if tuple(tiles) == _goal(rows):
        # The walk came back. Without its last move it ends one move away.
        tiles[gap], tiles[before] = tiles[before], 0
    return tuple(tiles)


def _anywhere(rows: int, rng: Random) -> Board:
    """Return any unsolved board that can be solved."""
    board = list(_goal(rows))
    while tuple(board) == _goal(rows):
        rng.shuffle(board)
        if not solvable(board):
            one, two = [cell for cell, tile in enumerate(board) if tile][:2]
            board[one], board[two] = board[two], board[one]
    return tuple(board)


def solvable(tiles: Sequence[int]) -> bool:
    """Return whether slides can put the tiles of a square board in order.

    Every slide swaps two cells and moves the gap by one: the parity of the permutation and that of
    the gap's distance from its place change together.
    """
    rows = math.isqrt(len(tiles))
    order = [tile or len(tiles) for tile in tiles]
    inversions = sum(a > b for i, b in enumerate(order) for a in order[:i])
    row, column = divmod(tiles.index(0), rows)
    return (inversions + row + column) % 2 == 0


@dataclass(frozen=True)
class _Walking:
    """Moves needed when only the lines of the tiles matter (Takahashi's walking distance).

    A state is how many tiles of each goal line every line holds, and the line of the gap. Rows and
    columns have the same table; the moves of both together never exceed the moves that the board
    needs, since a slide is a move of one of them.
    """

    ids: dict[tuple[tuple[tuple[int, ...], ...], int], int]
    """`(tiles[line][goal line], line of the gap)` to the number of the state."""
    left: list[int]
    """Moves needed from each state."""
    links: list[dict[int, int]]
    """Per state: `the gap's next line * rows + goal line of the tile` to the next state."""


@cache
def _walking(rows: int) -> _Walking:
    """Return the table; with 4 rows it has 24,964 states and takes a quarter of a second."""
    solved = tuple(
        tuple((rows - (line == rows - 1)) * (goal == line) for goal in range(rows))
        for line in range(rows)
    )
    states = [(solved, rows - 1)]
    table = _Walking({states[0]: 0}, [0], [])
    for number, (counts, gap) in enumerate(states):
        links = {}
        for line in {max(gap - 1, 0), min(gap + 1, rows - 1)} - {gap}:
            for goal in range(rows):
                if not counts[line][goal]:
                    continue
                after = [list(row) for row in counts]
                after[line][goal] -= 1
                after[gap][goal] += 1
                state = tuple(map(tuple, after)), line
                if state not in table.ids:
                    table.ids[state] = len(states)
                    table.left.append(table.left[number] + 1)
                    states.append(state)
                links[line * rows + goal] = table.ids[state]
        table.links.append(links)
    return table


def _walking_states(board: Board, rows: int) -> tuple[int, int]:
    """Return the numbers of the states of the rows and of the columns."""
    down = [[0] * rows for _ in range(rows)]
    right = [[0] * rows for _ in range(rows)]
    for cell, tile in enumerate(board):
        if tile:
            down[cell // rows][(tile - 1) // rows] += 1
            right[cell % rows][(tile - 1) % rows] += 1
    gap = board.index(0)
    ids = _walking(rows).ids
    return ids[tuple(map(tuple, down)), gap // rows], ids[tuple(map(tuple, right)), gap % rows]


@cache
def _distances(rows: int) -> tuple[tuple[int, ...], ...]:
    """Return `[tile][cell]`: rows and columns between a tile's cell and its place."""
    cells = range(rows * rows)
    return tuple(
        tuple(
            (abs(place // rows - cell // rows) + abs(place % rows - cell % rows)) * (place >= 0)
            for cell in cells
        )
        for place in range(-1, rows * rows - 1)
    )


def plan(board: Board, moves: int) -> dict[Board, tuple[str, int]]:
    """Return a way to the solved board in at most `moves` moves, if there is one.

    A weighted A* search: what is left counts more than what was done, so that it finds some way
    rather than the shortest, and boards that are provably too far for the moves left are dropped,
    so that a tight limit makes it careful. It looks at `_MAX_BOARDS` boards at most.

    Returns:
        The move and the number of moves left for each board on the way. When no way was found, it
        leads to the board that seemed nearest; empty if that is `board` itself.
    """
    rows = math.isqrt(len(board))
    goal, slides, distances = _goal(rows), _slides(rows), _distances(rows)
    small = rows <= _MAX_WALKING_ROWS
    left, links = (_walking(rows).left, _walking(rows).links) if small else ([], [])
    down, right = _walking_states(board, rows) if small else (0, 0)
    estimate = sum(distances[tile][cell] for cell, tile in enumerate(board))
    if small:
        estimate = left[down] + left[right]
    came: dict[Board, tuple[int, Board, str]] = {board: (0, board, "")}
    nearest, nearest_estimate = board, estimate
    # Equal promise: the board found last, which is deeper in the search.
    heap = [(0, 0, 0, estimate, board, board.index(0), down, right)]
    for seen in range(_MAX_BOARDS):
        if not heap:
            break
        _, _, gone, estimate, tiles, gap, down, right = heapq.heappop(heap)
        if estimate < nearest_estimate:
            nearest, nearest_estimate = tiles, estimate
        if tiles == goal:
            break
        if came[tiles][0] < gone:
            continue
        gone += 1
        for move, cell in slides[gap].items():
            tile = tiles[cell]
            after_down, after_right = down, right
            if not small:
                after = estimate + distances[tile][gap] - distances[tile][cell]
            else:
                if move in _VERTICAL:
                    after_down = links[down][cell // rows * rows + (tile - 1) // rows]
                else:
                    after_right = links[right][cell % rows * rows + (tile - 1) % rows]
                after = left[after_down] + left[after_right]
            if gone + after > moves:
                continue
            following = _slid(tiles, gap, cell)
            if following not in came or came[following][0] > gone:
                came[following] = (gone, tiles, move)
                promise = gone + _WEIGHT * after
                entry = promise, -seen, gone, after, following, cell, after_down, after_right
                heapq.heappush(heap, entry)
    return _way(came, nearest)


def _way(came: dict[Board, tuple[int, Board, str]], end: Board) -> dict[Board, tuple[str, int]]:
    """Return the move and the number of moves left for each board on the way to `end`."""
    way = {}
    moves = 0
    _, before, move = came[end]
    while move:
        moves += 1
        way[before] = (move, moves)
        _, before, move = came[before]
    return way
