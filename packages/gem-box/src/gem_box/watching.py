"""Measures of a box's commands, taken from outside through /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gem.workers.clock import Clock

_PAGE_KB = os.sysconf("SC_PAGE_SIZE") >> 10


class BoxClock(Clock):
    """The clock of a command, which also looks at the memory of all processes of the box.

    Attributes:
        over: `memory` if the box used too much; then the CPU time is over every limit.
    """

    def __init__(self, root: int, spent_s: float | None, box: int, memory_mb: int) -> None:
        """Begin to measure; see `Clock`.

        Args:
            root: The command's first process.
            spent_s: See `Clock`.
            box: Process 1 of the box.
            memory_mb: Limit of the memory of the box.
        """
        super().__init__(root, spent_s)
        self.over: str | None = None
        self._box, self._most_kb = box, memory_mb << 10

    def look(self) -> None:
        """Measure the time since the last look, and the memory of now."""
        super().look()
        below = descendants(self._box)
        if sum(map(_private_kb, below)) > self._most_kb and _shared_kb(below) > self._most_kb:
            self.over, self.cpu_s = "memory", float("inf")


def descendants(root: int) -> list[int]:
    """Return the processes below one."""
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found[1:]


def child(parent: int, pid: int) -> int:
    """Return the id on this machine of a child that calls itself `pid` in its namespace.

    Returns:
        0 if it has ended already.
    """
    children: list[str] = []
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for each in map(int, children):
        if inner([each]) == [pid]:
            return each
    return 0


def inner(pids: list[int]) -> list[int]:
    """Return how processes call themselves in their own namespace, without those that ended."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text("latin-1").splitlines()
            said = next(line for line in lines if line.startswith("NSpid:"))
            found.append(int(said.split()[-1]))
    return found


def _private_kb(pid: int) -> int:
    """Return the resident memory of a process that is not of files, 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError):
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        return (resident - shared) * _PAGE_KB
    return 0


def _shared_kb(pids: list[int]) -> int:
    """Return the memory of processes, where what several have counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total
