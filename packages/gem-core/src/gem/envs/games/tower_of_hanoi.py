"""Tower of Hanoi: carry a tower from peg A to peg C, one disk at a time."""

from __future__ import annotations

import re

from gem.envs.games.base import MAX_TURNS, Game, Outcome, boxed, refused
from gem.parameters import integer, optional

Move = tuple[int, int]
"""Source and destination; pegs are 0 (A), 1 (B) and 2 (C)."""

_PEGS = "ABC"
_LISTED = "The disks of each peg are listed from bottom to top; 1 is the smallest."
_GOAL = 2
_MOVE = re.compile(r"([A-C])[\s,]*([A-C])")
_MAX_DISKS = 20

# Disks to turns: one pair is drawn when the disks are left open.
_TURNS = {3: 10, 4: 20, 5: 35}


class TowerofHanoi(Game[Move]):
    """Three pegs; a disk never lies on a smaller one; all disks begin on peg A.

    Rewards: 1.0 for the whole tower on peg C; when the turns run out, the share of the disks that
    are on peg C.

    `num_disks` disks take `2**num_disks - 1` moves and no fewer (a disk moves only while all
    smaller ones are on one other peg), which the turns of every registered id allow. `reset`
    draws nothing but the parameters left open.

    Attributes:
        num_disks: Disks of this episode.
        pegs: Disks on each peg, bottom first; 1 is the smallest.
    """

    expected = "two of the pegs A, B and C"
    example = boxed("A B")

    def __init__(
        self,
        num_disks: int | None = 3,
        max_turns: int | None = 100,
        *,
        format_error_ends: bool = True,
        modality: str = "text",
        seed: int | None = None,
    ) -> None:
        """Set the parameters; those that are None are set at every reset.

        Args:
            num_disks: Disks of the tower, 1 to 20; each doubles the moves needed. Drawn from 3, 4
                and 5.
            max_turns: Moves allowed; when None, 10, 20 and 35 for 3, 4 and 5 disks, and 4 more
                than `2**num_disks` for others.
            format_error_ends: See `Game`.
            modality: See `Game`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(format_error_ends=format_error_ends, modality=modality, seed=seed)
        self._given_disks = optional(integer, "num_disks", num_disks, 1, _MAX_DISKS)
        self._given_turns = optional(integer, "max_turns", max_turns, 1, MAX_TURNS)

    @property
    def oracle_success(self) -> float:  # type: ignore[override]
        """Share of the drawn sizes that can be solved within the turns; see the class."""
        sizes = list(_TURNS) if self._given_disks is None else [self._given_disks]
        return sum((1 << size) - 1 <= self._turns(size) for size in sizes) / len(sizes)

    def _turns(self, disks: int) -> int:
        return self._given_turns or _TURNS.get(disks, (1 << disks) + 4)

    def _start(self) -> None:
        self.num_disks = self._given_disks or self.rng.choice(list(_TURNS))
        self.max_turns = self._turns(self.num_disks)
        self.pegs: list[list[int]] = [list(range(self.num_disks, 0, -1)), [], []]

    def _instructions(self) -> str:
        return (
            "You are playing Tower of Hanoi.\n"
            f"You have to move all {self.num_disks} disks from peg A to peg C within "
            f"{self.max_turns} turns.\n"
            "Each turn moves the top disk of one peg to another peg. A disk may not be placed on "
            "a smaller disk.\n"
            f"{self._how_to_read(_LISTED)}\n"
            "After thinking, format your final answer as the source peg and the destination peg "
            f"inside \\boxed{{...}}, for example, {self.example}."
        )

    def _parse(self, content: str) -> Move | None:
        match = _MOVE.fullmatch(content.upper())
        return (_PEGS.index(match[1]), _PEGS.index(match[2])) if match else None

    def _play(self, move: Move) -> Outcome:
        source, destination = move
        a, b = _PEGS[source], _PEGS[destination]
        tried = f"At turn {self.turn}, you tried to move a disk from {a} to {b}, but "
        if source == destination:
            return refused(f"{tried}these are the same peg.")
        if not self.pegs[source]:
            return refused(f"{tried}there is no disk on {a}.")
        disk = self.pegs[source][-1]
        onto = self.pegs[destination]
        if onto and onto[-1] < disk:
            return refused(f"{tried}disk {disk} may not lie on the smaller disk {onto[-1]}.")
        onto.append(self.pegs[source].pop())
        if len(self.pegs[_GOAL]) == self.num_disks:
            return self._won("moved the whole tower to peg C")
        return Outcome(f"At turn {self.turn}, you moved disk {disk} from {a} to {b}.")

    def _board(self) -> str:
        a, b, c = self.pegs
        return f"A: {a}\nB: {b}\nC: {c}"

    def _final_reward(self, outcome: Outcome) -> float:
        return len(self.pegs[_GOAL]) / self.num_disks

    def _state(self) -> str:
        return f"{len(self.pegs[_GOAL])} of {self.num_disks} disks on peg C"

    def _random_move(self) -> str:
        tops = [peg[-1] if peg else self.num_disks + 1 for peg in self.pegs]
        # Three pegs with at least one disk always allow two moves or more.
        legal = [(a, b) for a in range(3) for b in range(3) if tops[a] < tops[b]]
        return _written(*self.action_rng.choice(legal))

    def _oracle_move(self) -> str:
        return _written(*next_move(self.pegs))


def _written(source: int, destination: int) -> str:
    return f"{_PEGS[source]} {_PEGS[destination]}"


def next_move(pegs: list[list[int]]) -> Move:
    """Return the first move of the shortest way from `pegs` to the tower on peg C.

    From the largest disk down, each disk has a peg where it must be: C for the largest; while a
    disk is elsewhere, all smaller ones must make way to the third peg. The smallest disk that is
    not where it must be can move there at once. With the tower on C already, any legal move.
    """
    where = {disk: peg for peg, disks in enumerate(pegs) for disk in disks}
    goal, move = _GOAL, (_GOAL, 0)
    for disk in sorted(where, reverse=True):
        peg = where[disk]
        if peg != goal:
            move = (peg, goal)
            goal = 3 - peg - goal
    return move
