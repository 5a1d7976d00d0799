"""Sokoban: push every box onto a goal; rooms made by pulling the boxes away from the goals."""

from __future__ import annotations

from typing import Any

from gem.envs.games.base import MAX_TURNS, Game, Outcome, boxed, fitting, refused
from gem.envs.games.sokoban_rooms import DIRECTIONS, Start, capacity, generate, offsets_of, solve
from gem.errors import ConfigurationError
from gem.parameters import integer, optional

_SIDES = (3, 12)
_MAX_BOXES = 10
_SYMBOLS = """On the board:
  - P is you, S is you on a goal
  - # is a wall
  - X is a box, √ is a box on a goal
  - O is an empty goal
  - _ is empty floor"""
# States that the oracle may open.
_MAX_STATES = 20_000

# `(dim_room, num_boxes, max_turns)`: one is drawn when a parameter is left open.
_CANDIDATES = (((6, 6), 2, 20), ((8, 8), 5, 50))


class Sokoban(Game[str]):
    """A room with boxes that can be pushed, one at a time, and never pulled.

    Reward: 1.0 when every box is on a goal. When the turns run out, the share of boxes on goals.

    Every start can be won within `max_turns` turns if these are at least `3 * num_boxes - 2`: the
    solver that is the oracle found a solution before the room was accepted, and it finds the same
    one again from what the player sees. No box starts on a goal, so a start needs at least
    `num_boxes` pushes; rooms that need three times as many are preferred (of 300 easy starts none
    needs fewer than 3 pushes, of 150 hard ones none fewer than 9). The work of a reset is bounded:
    50 rooms, 2,500 states reached by pulling boxes off the goals, three rooms solved
    with at most 1,000 states each, and a plain room when nothing better was found.

    Attributes:
        dim_room, num_boxes: Parameters of this episode.
        room: Walls and goals.
        boxes: Bit set of the cells with a box.
        player: Index of the player's cell.
    """

    expected = "up, down, left or right"
    words = DIRECTIONS
    example = boxed("up")

    def __init__(
        self,
        dim_room: tuple[int, int] | None = (6, 6),
        num_boxes: int | None = 3,
        max_turns: int | None = 100,
        *,
        format_error_ends: bool = True,
        modality: str = "text",
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are drawn together at every reset.

        Args:
            dim_room: Rows and columns, the outer walls included, each from 3 to 12; drawn from
                (6, 6) and (8, 8). More room means longer walks and more ways to go wrong.
            num_boxes: Boxes, from 1 to 10 and at most one for each row or column inside the
                walls; drawn from 2 and 5.
            max_turns: Moves allowed; drawn from 20 and 50. Starts are made for three quarters of
                them, so fewer turns also mean easier rooms.
            format_error_ends: See `Game`.
            modality: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, or the room is too small for the boxes.
        """
        super().__init__(format_error_ends=format_error_ends, modality=modality, seed=seed)
        self._candidates: list[tuple[tuple[int, int], int, int]] = fitting(
            _CANDIDATES,
            optional(_dimensions, "dim_room", dim_room),
            optional(integer, "num_boxes", num_boxes, 1, _MAX_BOXES),
            optional(integer, "max_turns", max_turns, 1, MAX_TURNS),
            fits=lambda dim, boxes, _: boxes <= capacity(*dim),
            otherwise="num_boxes must be at most the number of rows or columns inside the walls "
            "(of lines at least 3 cells long), "
            f"got num_boxes={num_boxes!r} and dim_room={dim_room!r}",
        )

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """1.0 unless there may be too few turns for the boxes."""
        return float(all(turns >= 3 * boxes - 2 for _, boxes, turns in self._candidates))

    def _start(self) -> None:
        self.dim_room, self.num_boxes, self.max_turns = self.rng.choice(self._candidates)
        self._set_up(generate(self.rng, *self.dim_room, self.num_boxes, self.max_turns))

    def _set_up(self, start: Start) -> None:
        self.room, self.boxes, self.player = start
        self._offsets = dict(zip(DIRECTIONS, offsets_of(self.room.width), strict=True))
        # A solution from here; None when none was looked for, empty when none was found.
        self._plan: list[str] | None = None
        # Symbols and what separates them by turns: cell i is at 2 * i.
        rows, columns = self.dim_room
        self._text = list(("  " * columns)[:-1] + "\n") * rows
        self._text.pop()
        for cell in range(rows * columns):
            self._draw(cell)

    def _instructions(self) -> str:
        return (
            "You are playing Sokoban.\n"
            "You walk through a room and push boxes. You have to push every box onto a goal within "
            f"{self.max_turns} turns.\n"
            "Each turn you move one cell up, down, left or right. Moving towards a box pushes it "
            "one cell ahead, unless there is a wall or another box behind it. Boxes cannot be "
            "pulled.\n"
            f"{self._how_to_read(_SYMBOLS)}\n{self._how_to_answer()}."
        )

    def _play(self, move: str) -> Outcome:
        offset = self._offsets[move]
        before, after = self.player, self.player + offset
        blocked = self._blocked(after, offset)
        if blocked:
            return refused(f"At turn {self.turn}, you tried to move {move}, but {blocked}.")
        if self._plan:
            self._plan = self._plan[1:] if move == self._plan[0] else None
        pushed = self.boxes >> after & 1
        self.player = after
        if pushed:
            self.boxes ^= 1 << after | 1 << (after + offset)
            self._draw(after + offset)
        self._draw(before)
        self._draw(after)
        if self.boxes == self.room.goals:
            return self._won("pushed every box onto a goal")
        return Outcome(
            f"At turn {self.turn}, you moved {move}{' and pushed a box' if pushed else ''}."
        )

    def _blocked(self, cell: int, offset: int) -> str:
        """Return why the player cannot move to `cell`, empty when it can."""
        if not self.room.floor >> cell & 1:
            return "there is a wall"
        if self.boxes >> cell & 1:
            behind = cell + offset
            if not self.room.floor >> behind & 1:
                return "there is a wall behind the box"
            if self.boxes >> behind & 1:
                return "there is another box behind the box"
        return ""

    def _draw(self, cell: int) -> None:
        goal = self.room.goals >> cell & 1
        if cell == self.player:
            symbol = "S" if goal else "P"
        elif self.boxes >> cell & 1:
            symbol = "√" if goal else "X"
        elif goal:
            symbol = "O"
        else:
            symbol = "_" if self.room.floor >> cell & 1 else "#"
        self._text[2 * cell] = symbol

    def _board(self) -> str:
        return "".join(self._text)

    def _final_reward(self, outcome: Outcome) -> float:
        return (self.boxes & self.room.goals).bit_count() / self.num_boxes

    def _state(self) -> str:
        return f"{(self.boxes & self.room.goals).bit_count()} of {self.num_boxes} boxes on goals"

    def _random_move(self) -> str:
        legal = [d for d, o in self._offsets.items() if not self._blocked(self.player + o, o)]
        return self.action_rng.choice(legal or DIRECTIONS)

    def _oracle_move(self) -> str:
        if self._plan is None:
            start = Start(self.room, self.boxes, self.player)
            # No move makes a lost position winnable: an empty plan stays.
            self._plan = solve(start, self.max_turns - self.turn, _MAX_STATES) or []
        return self._plan[0] if self._plan else DIRECTIONS[0]


def _dimensions(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ConfigurationError(f"{name} must be two integers, rows and columns, got {value!r}")
    rows, columns = (integer(f"each of {name}", side, *_SIDES) for side in value)
    return rows, columns
