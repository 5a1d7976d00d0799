"""Memory: counts what programs use, and moves a server's memory to huge pages for faster forks."""

from __future__ import annotations

import ctypes
import os

_HUGE = 2 << 20
_COLLAPSE = 25


class Usage:
    """Counts the memory of the server's descendants, through a descriptor of /proc.

    Attributes:
        proc: Descriptor of /proc.
        size: Address space of the server, in bytes.
    """

    def __init__(self, proc: int) -> None:
        self.proc = proc
        self.size, self._resident = self._bytes("self", 0), self._bytes("self", 1)

    def memory(self, pids: list[int], enough: int) -> int:
        """Return the bytes that a program's processes use together.

        Returns 0 for a single process, which the kernel limits, and if a rough count shows at most
        `enough` bytes.
        """
        # Without what each shares with the server.
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

    def _bytes(self, pid: int | str, field: int) -> int:
        """Return a field of a process's statm in bytes."""
        fields = self._read(f"{pid}/statm").split() or ["0", "0"]
        return int(fields[field]) * os.sysconf("SC_PAGE_SIZE")

    def _read(self, path: str) -> str:
        """Return the content of a file of /proc; "" if the process has ended."""
        try:
            with open(os.open(path, os.O_RDONLY, dir_fd=self.proc)) as file:
                return file.read()
        except OSError:
            return ""


def gather(proc: int) -> None:
    """Collapse this process's memory into huge pages, if the kernel can (6.1 and later).

    A fork copies the page table and frees it at its end; with sympy imported that takes longer than
    a small program. A write in a fork still copies a small page only.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open(os.open("self/maps", os.O_RDONLY, dir_fd=proc)) as file:
        lines = [line.split() for line in file]
    for bounds, rights, _, _, _, *name in lines:
        if rights == "rw-p" and name in ([], ["[heap]"]):
            first, last = (int(bound, 16) for bound in bounds.split("-"))
            for address in range(-(-first // _HUGE) * _HUGE, last - _HUGE + 1, _HUGE):
                # Fails harmlessly where no page is mapped.
                madvise(address, _HUGE, _COLLAPSE)
