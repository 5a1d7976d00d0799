"""Processes that a trainer starts: whether they live, and how all of them end.

- `alive`, `name_of`, `children_of`: questions about processes that may be gone meanwhile.
- `end_all`: end processes, in good order first.
- `adopt_orphans`: keep processes whose parent dies among one's own.
- `end_group_after_me`: have the process group ended when this process is killed.

The functions need psutil, which the trainers of the adapters that call them install.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gem.training import guard

if TYPE_CHECKING:
    import psutil

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def name_of(process: psutil.Process) -> str:
    """Return the name of a process; empty if it is gone."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def children_of(
    process: psutil.Process | None = None, *, recursive: bool = False
) -> list[psutil.Process]:
    """Return the children of a process, by default of this one; none if it is gone."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return list((process or psutil.Process()).children(recursive=recursive))
    return []


def end_all(processes: Sequence[psutil.Process], grace_s: float) -> None:
    """Ask processes to end (SIGTERM), and kill those that live on.

    Args:
        processes: Processes of the same user.
        grace_s: How long they may take to end in good order, in seconds; 0 kills at once.
    """
    import psutil

    if grace_s:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, processes = psutil.wait_procs(processes, timeout=grace_s)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def adopt_orphans() -> None:
    """Keep processes whose parent dies (an engine's workers) among this process's children."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def end_group_after_me() -> subprocess.Popen[bytes]:
    """Start a process that ends the process group when this process, its leader, is gone.

    Returns:
        The process; a caller that ends in good order kills it first.
    """
    command = [sys.executable, "-I", str(Path(guard.__file__)), str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)
