"""Sokoban rooms: made by pulling boxes off the goals, solved by a best-first search over pushes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from gem.envs.games.boards import bits

DIRECTIONS = ("up", "down", "left", "right")

# Bounds on the work of one reset: rooms carved, rooms in which all boxes could be pulled off the
# goals, states reached by pulling, states that the solver may open per room, rooms it is shown.
_ROOMS = 50
_STARTS = 6
_PULLED_STATES = 2_500
_CHECKED_STATES = 1_000
_CHECKED_ROOMS = 3
# States kept per pull.
_BEAM = 8
# Rooms that need this many pushes per box are good enough to stop looking.
_GOOD_PUSHES = 3
# Weight of the pushes still needed against the moves made: far from the shortest solution, but
# quick, and the limit on moves is kept all the same.
_GREED = 5
_FAR = 10**9


class Room(NamedTuple):
    """A room as bit sets of cells; cell `(row, column)` is bit `row * width + column`."""

    width: int
    """Columns, walls included; the outermost cells are walls."""
    floor: int
    """Cells that are no wall."""
    goals: int
    """Cells where the boxes belong, as many as there are boxes."""


class Start(NamedTuple):
    """A room with its boxes and the player."""

    room: Room
    boxes: int
    """Bit set of cells."""
    player: int
    """Index of a cell."""


def capacity(rows: int, columns: int) -> int:
    """Return for how many boxes `_plain_start` has room."""
    return max(rows - 2 if columns >= 5 else 0, columns - 2 if rows >= 5 else 0)


def generate(rng: Random, rows: int, columns: int, num_boxes: int, max_turns: int) -> Start:
    """Return a start that `solve` wins within the turns and with few states opened.

    Args:
        rng: The only source of randomness.
        rows, columns: Size of the room, walls included.
        num_boxes: Boxes; see `Sokoban` for how many a room can hold.
        max_turns: Moves allowed; fewer than `3 * num_boxes - 2` are taken for that many.
    """
    enough = max(max_turns, 3 * num_boxes - 2)
    # A quarter of the turns is left to err.
    moves = enough * 3 // 4
    left = _PULLED_STATES
    found = []
    for _ in range(_ROOMS):
        floor = _carved(rng, rows, columns, num_boxes)
        goals = sum(1 << cell for cell in rng.sample(list(bits(floor)), num_boxes))
        room = Room(columns, floor, goals)
        pushes, start, states = _pulled(rng, room, moves, left)
        left -= states
        if start is not None:
            found.append((pushes, start))
        if left <= 0 or len(found) == _STARTS or pushes >= _GOOD_PUSHES * num_boxes:
            break
    found.sort(key=lambda each: -each[0])
    for _, start in found[:_CHECKED_ROOMS]:
        if solve(start, enough, _CHECKED_STATES) is not None:
            return start
    return _plain_start(rows, columns, num_boxes)


def _carved(rng: Random, rows: int, columns: int, num_boxes: int) -> int:
    """Return a connected floor: the inside of the walls, less some of its cells."""
    floor = _inside(rows, columns)
    cells = list(bits(floor))
    kept = max(round(len(cells) * rng.uniform(0.6, 1.0)), 3 * num_boxes + 3)
    rng.shuffle(cells)
    fillable = len(cells) - kept
    for cell in cells:
        if fillable <= 0:
            break
        rest = floor & ~(1 << cell)
        if sum(_layers(rest & -rest, rest, columns)) == rest:
            floor = rest
            fillable -= 1
    return floor


def _pulled(rng: Random, room: Room, moves: int, max_states: int) -> tuple[int, Start | None, int]:
    """Pull the boxes off the goals, keeping those states that need the most pushes.

    A pull is a push backwards: what was pulled apart in at most `moves` moves is pushed together
    in as many.

    Returns:
        `(pushes, start, states)`: pushes that the start needs at least; None when no state has
        all boxes off the goals; states looked at.
    """
    width, floor, goals = room
    offsets = offsets_of(width)
    tables = _push_distances(room)
    # Entries are (value, moves, boxes, cells where the player may be): at the goals, anywhere.
    beam = [(0.0, 0, goals, floor & ~goals)]
    best, best_value, best_pushes = None, 0.0, 0
    seen_states: set[tuple[int, int]] = set()
    while beam and len(seen_states) < max_states:
        children = []
        for _, before, boxes, players in beam:
            free = floor & ~boxes
            # Cells to pull from: a box ahead in that direction, a free cell in the back.
            spots = [_shift(boxes, -o) & free & _shift(free, o) for o in offsets]
            for step, layer in enumerate(_layers(players, free, width), before + 1):
                if step > moves:
                    break
                for offset, cells in zip(offsets, spots, strict=True):
                    for cell in bits(layer & cells):
                        after = boxes ^ (1 << cell | 1 << (cell + offset))
                        if (after, cell - offset) in seen_states:
                            continue
                        seen_states.add((after, cell - offset))
                        pushes = _pushes_needed(tables, after)
                        at_home = (after & goals).bit_count()
                        value = pushes + rng.random()
                        children.append((value - 3 * at_home, step, after, 1 << (cell - offset)))
                        if not at_home and value > best_value:
                            best, best_value, best_pushes = children[-1], value, pushes
        beam = heapq.nlargest(_BEAM, children)
    if best is None:
        return 0, None, len(seen_states)
    _, before, boxes, players = best
    # The player may walk away with the moves that are left.
    walks = zip(range(moves - before + 1), _layers(players, floor & ~boxes, width), strict=False)
    player = rng.choice([cell for _, layer in walks for cell in bits(layer)])
    return best_pushes, Start(room, boxes, player), len(seen_states)


def _plain_start(rows: int, columns: int, num_boxes: int) -> Start:
    """Return an empty room in which each box is one push from its goal.

    Goals and boxes stand side by side along the first two lines inside the walls; pushing one and
    going to the next takes three moves, the last one only one.
    """
    upright = columns >= 5 and num_boxes <= rows - 2
    along, across = (columns, 1) if upright else (1, columns)
    corner = columns + 1
    goals = sum(1 << (corner + i * along) for i in range(num_boxes))
    room = Room(columns, _inside(rows, columns), goals)
    return Start(room, _shift(goals, across), corner + 2 * across)


def _inside(rows: int, columns: int) -> int:
    """Return the cells inside the outer walls."""
    line = ((1 << (columns - 2)) - 1) << 1
    return sum(line << row * columns for row in range(1, rows - 1))


def solve(start: Start, max_moves: int, max_states: int) -> list[str] | None:
    """Return the moves of a solution that has at most `max_moves` of them.

    A best-first search over pushes. It finds a solution wherever there is one, unless it would
    have to open more than `max_states` states.

    Returns:
        Directions, empty when nothing is left to do; None when there is no solution or it was not
        found.
    """
    (width, floor, goals), boxes, player = start
    offsets = offsets_of(width)
    tables = _push_distances(start.room)
    # Boxes elsewhere can never be brought to any goal.
    alive = sum(1 << cell for cell in set().union(*tables))
    needed = _pushes_needed(tables, boxes)
    moves_to = {(boxes, player): 0}
    pushed_from: dict[tuple[int, int], tuple[int, int, int]] = {}
    queue = [(_GREED * needed, needed, 0, boxes, player)]
    opened = 0
    while queue:
        *_, moves, boxes, player = heapq.heappop(queue)
        if boxes == goals:
            return _moves(pushed_from, floor, width, (boxes, player))
        if moves > moves_to[boxes, player]:
            continue
        opened += 1
        if opened > max_states:
            return None
        free = floor & ~boxes
        # Cells to push from: a box ahead in that direction, and behind it a cell to land on.
        spots = [_shift(boxes & _shift(free & alive, -o), -o) for o in offsets]
        for step, layer in enumerate(_layers(1 << player, free, width), moves + 1):
            for offset, cells in zip(offsets, spots, strict=True):
                for cell in bits(layer & cells):
                    box = cell + offset
                    after = boxes ^ (1 << box | 1 << (box + offset))
                    if moves_to.get((after, box), _FAR) <= step:
                        continue
                    needed = _pushes_needed(tables, after)
                    if step + needed > max_moves:
                        continue
                    moves_to[after, box] = step
                    pushed_from[after, box] = boxes, player, cell
                    heapq.heappush(queue, (step + _GREED * needed, needed, step, after, box))
    return None


def _moves(
    pushed_from: dict[tuple[int, int], tuple[int, int, int]],
    floor: int,
    width: int,
    state: tuple[int, int],
) -> list[str]:
    """Return all moves that lead to a state, from the pushes that do."""
    moves: list[str] = []
    names = dict(zip(offsets_of(width), DIRECTIONS, strict=True))
    while state in pushed_from:
        boxes, player, cell = pushed_from[state]
        moves.append(names[state[1] - cell])
        layers = []
        for layer in _layers(1 << player, floor & ~boxes, width):
            if layer >> cell & 1:
                break
            layers.append(layer)
        for layer in reversed(layers):
            offset = next(o for o in names if layer >> (cell - o) & 1)
            moves.append(names[offset])
            cell -= offset
        state = boxes, player
    moves.reverse()
    return moves


def _push_distances(room: Room) -> list[dict[int, int]]:
    """Return, for each goal, the pushes that a box needs to reach it from each cell where it can.

    The box is alone in the room and the player is always where it must be: a lower bound.
    """
    tables = []
    for goal in bits(room.goals):
        pushes = {goal: 0}
        queue = [goal]
        for cell in queue:
            for offset in offsets_of(room.width):
                before = cell - offset
                if before in pushes or not room.floor >> before & 1:
                    continue
                if room.floor >> (before - offset) & 1:
                    pushes[before] = pushes[cell] + 1
                    queue.append(before)
        tables.append(pushes)
    return tables


def _pushes_needed(tables: list[dict[int, int]], boxes: int) -> int:
    """Return a lower bound on the pushes to the end: every box to a goal, a box to every goal."""
    cells = list(bits(boxes))
    pushes = [[table.get(cell, _FAR) for cell in cells] for table in tables]
    to_every_goal: int = sum(map(min, pushes))
    of_every_box: int = sum(map(min, zip(*pushes, strict=True)))
    return max(to_every_goal, of_every_box)


def offsets_of(width: int) -> tuple[int, int, int, int]:
    """Return what up, down, left and right add to the index of a cell."""
    return -width, width, -1, 1


def _layers(start: int, free: int, width: int) -> Iterator[int]:
    """Yield the cells at walking distance 0, 1, 2, ... from the cells of `start`."""
    layer = seen = start
    while layer:
        yield layer
        layer = (layer << 1 | layer >> 1 | layer << width | layer >> width) & free & ~seen
        seen |= layer


def _shift(cells: int, offset: int) -> int:
    """Move every cell by an offset."""
    return cells << offset if offset > 0 else cells >> -offset
