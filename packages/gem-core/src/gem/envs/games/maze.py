"""Maze: walk from a cell to the goal, around walls."""

from __future__ import annotations

from random import Random

from gem.envs.games.base import MAX_TURNS, Game, Outcome, boxed, completed, refused
from gem.parameters import integer, optional

_STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_SIZES = (2, 20)

# `(size, max_turns)`: one is drawn when a parameter is left open.
_CANDIDATES = ((3, 10), (5, 30), (8, 70))


class Maze(Game[str]):
    """A square maze in which exactly one way leads from any cell to any other.

    Rewards: 1.0 at the goal. When the turns run out, the share of the way that was covered: 0 if
    the player is as far from the goal as at the start, or farther.

    The goal is anywhere, the start at least half as far from it as the farthest cell is. A way has
    fewer moves than there are cells, which the turns of every registered id allow.

    Attributes:
        size: Rows, and columns, of this episode.
        ways: For every cell, row by row, its open neighbours by the direction to them.
        player, goal: Indices of cells.
    """

    expected = "up, down, left or right"
    words = _STEPS
    example = boxed("up")

    def __init__(
        self,
        size: int | None = 5,
        max_turns: int | None = 30,
        *,
        format_error_ends: bool = True,
        modality: str = "text",
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are drawn together at every reset.

        Args:
            size: Rows and columns, 2 to 20; drawn from 3, 5 and 8. The longest ways grow with the
                number of cells.
            max_turns: Moves allowed; drawn from 10, 30 and 70.
            format_error_ends: See `Game`.
            modality: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(format_error_ends=format_error_ends, modality=modality, seed=seed)
        given_size = optional(integer, "size", size, *_SIZES)
        given_turns = optional(integer, "max_turns", max_turns, 1, MAX_TURNS)
        self._candidates: list[tuple[int, int]] = completed(_CANDIDATES, given_size, given_turns)

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """1.0 unless a way may be longer than the turns."""
        return float(all(turns >= size * size - 1 for size, turns in self._candidates))

    def _start(self) -> None:
        self.size, self.max_turns = self.rng.choice(self._candidates)
        self.ways = carved(self.rng, self.size)
        self.goal = self.rng.randrange(self.size**2)
        self._left = distances(self.ways, self.goal)
        farthest = max(self._left)
        self.player = self.rng.choice([c for c, n in enumerate(self._left) if 2 * n >= farthest])
        self._first = self._left[self.player]
        self._text = list(_drawn(self.ways, self.size))
        self._text[self._at(self.goal)] = "G"
        self._text[self._at(self.player)] = "P"

    def _at(self, cell: int) -> int:
        """Return where the middle of a cell is in the text of the board."""
        row, column = divmod(cell, self.size)
        return (2 * row + 1) * (4 * self.size + 2) + 4 * column + 2

    def _instructions(self) -> str:
        return (
            "You are walking through a maze.\n"
            f"You have to reach the goal within {self.max_turns} turns.\n"
            "Each turn you move one cell up, down, left or right, unless there is a wall between "
            "the cells.\n"
            f"{self._how_to_read('On the board P is you, G is the goal, lines are walls.')}\n"
            f"{self._how_to_answer()}."
        )

    def _play(self, move: str) -> Outcome:
        cell = self.ways[self.player].get(move)
        if cell is None:
            return refused(f"At turn {self.turn}, you tried to move {move}, but there is a wall.")
        self._text[self._at(self.player)] = " "
        self._text[self._at(cell)] = "P"
        self.player = cell
        if cell == self.goal:
            return self._won("reached the goal")
        return Outcome(f"At turn {self.turn}, you moved {move}.")

    def _board(self) -> str:
        return "".join(self._text)

    def _final_reward(self, outcome: Outcome) -> float:
        return max(0.0, 1 - self._left[self.player] / self._first)

    def _state(self) -> str:
        return f"{self._left[self.player]} moves from the goal"

    def _random_move(self) -> str:
        return self.action_rng.choice(list(self.ways[self.player]))

    def _oracle_move(self) -> str:
        ways = self.ways[self.player]
        return min(ways, key=lambda move: self._left[ways[move]])


def carved(rng: Random, size: int) -> list[dict[str, int]]:
    """Return the open neighbours of every cell of a random maze, by a walk that turns back."""
    ways: list[dict[str, int]] = [{} for _ in range(size * size)]
    path = [rng.randrange(size * size)]
    seen = set(path)
    while path:
        cell = path[-1]
        fresh = [each for each in _neighbours(cell, size) if each[1] not in seen]
        if not fresh:
            path.pop()
            continue
        move, after = rng.choice(fresh)
        ways[cell][move] = after
        ways[after][{"up": "down", "down": "up", "left": "right", "right": "left"}[move]] = cell
        seen.add(after)
        path.append(after)
    return ways


def _neighbours(cell: int, size: int) -> list[tuple[str, int]]:
    row, column = divmod(cell, size)
    return [
        (move, cell + down * size + right)
        for move, (down, right) in _STEPS.items()
        if 0 <= row + down < size and 0 <= column + right < size
    ]


def distances(ways: list[dict[str, int]], goal: int) -> list[int]:
    """Return the moves from every cell to the goal."""
    left = {goal: 0}
    queue = [goal]
    for cell in queue:
        for after in ways[cell].values():
            if after not in left:
                left[after] = left[cell] + 1
                queue.append(after)
    return [left[cell] for cell in range(len(ways))]


def _drawn(ways: list[dict[str, int]], size: int) -> str:
    """Return the board without player and goal."""
    lines = ["+" + "---+" * size]
    for first in range(0, size * size, size):
        row = ways[first : first + size]
        lines.append("|" + "".join("    " if "right" in each else "   |" for each in row))
        lines.append("+" + "".join("   +" if "down" in each else "---+" for each in row))
    return "\n".join(lines)
