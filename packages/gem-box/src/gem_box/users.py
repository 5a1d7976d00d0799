"""Which user ids of the machine a box's users are."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import NamedTuple

_COUNT = 1 << 16
# The highest ids are those of gem-sandbox's programs.
_APART = 1 << 14


class Ids(NamedTuple):
    """The user and group ids of a box."""

    mapped: bool
    """Whether it has a range of ids that nobody else has; otherwise only the caller's own."""
    first: int
    """The machine's id of the box's root."""
    size: int

    def apply(self, pid: int) -> None:
        """Give the ids to the new user namespace of a process; raises OSError."""
        for name in ("gid_map", "uid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {self.first} {self.size}\n")


@functools.cache
def ids() -> Ids:
    """Return the ids of the boxes of this process: root has unused ones for them."""
    if os.geteuid() != 0:
        return Ids(False, os.geteuid(), 1)
    inside, _, count = map(int, Path("/proc/self/uid_map").read_text().split("\n")[0].split())
    wanted = min(_COUNT, count // 4)
    return Ids(True, inside + count - _APART - wanted, wanted)
