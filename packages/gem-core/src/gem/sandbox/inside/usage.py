"""Memory: how much programs hold, and how they come to share it quickly."""

from __future__ import annotations

import ctypes
import os

_HUGE = 2 << 20
_COLLAPSE = 25


class Usage:
    """Counts the memory of processes below this one, through a descriptor of /proc.

    Attributes:
        size: Bytes of address space of this process, from which programs are forked.
    """

    def __init__(self, proc: int) -> None:
        self._proc = proc
        self.size, self._resident = self._bytes("self", 0), self._bytes("self", 1)

    def memory(self, pid: int, enough: int) -> int:
        """Return the bytes that a program of several processes holds.

        Less than `enough` is not counted precisely; nor is a program of a single process, which
        the kernel limits: that is 0.
        """
        pids = self._tree(pid)
        # What all share with this interpreter is not theirs.
        rough = sum(max(0, self._bytes(pid, 1) - self._resident) for pid in pids)
        if len(pids) < 2 or rough <= enough:
            return 0
        total = 0
        for pid in pids:
            # Pages that processes share count once.
            for line in self._read(f"{pid}/smaps_rollup").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) << 10
        return total

    def _tree(self, root: int) -> list[int]:
        """Return the ids of a process and of all below it."""
        found = [root]
        for pid in found:
            try:
                folder = os.open(f"{pid}/task", os.O_RDONLY, dir_fd=self._proc)
            except OSError:
                continue
            try:
                threads = os.listdir(folder)
            except OSError:
                # It ended since.
                threads = []
            finally:
                os.close(folder)
            for thread in threads:
                found.extend(map(int, self._read(f"{pid}/task/{thread}/children").split()))
        return found

    def _bytes(self, pid: int | str, field: int) -> int:
        """Return a field of a process's statm in bytes."""
        fields = self._read(f"{pid}/statm").split() or ["0", "0"]
        return int(fields[field]) * os.sysconf("SC_PAGE_SIZE")

    def _read(self, path: str) -> str:
        """Return a file of /proc; nothing if the process has ended."""
        try:
            with open(os.open(path, os.O_RDONLY, dir_fd=self._proc)) as file:
                return file.read()
        except OSError:
            return ""


def gather(proc: int) -> None:
    """Put the memory of this process on huge pages, as far as the kernel can (6.1 and later).

    Forks copy the table of pages, and give it back when they end; with sympy imported that takes
    longer than a small program. A page that a fork writes to is still copied by itself.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open(os.open("self/maps", os.O_RDONLY, dir_fd=proc)) as file:
        lines = [line.split() for line in file]
    for bounds, rights, _, _, _, *name in lines:
        if rights == "rw-p" and name in ([], ["[heap]"]):
            first, last = (int(bound, 16) for bound in bounds.split("-"))
            for address in range(-(-first // _HUGE) * _HUGE, last - _HUGE + 1, _HUGE):
                # It fails where nothing is, and that changes nothing.
                madvise(address, _HUGE, _COLLAPSE)
