"""Processes: what runs below one, waiting until they have changed, and a forked child."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def below(pid: int) -> list[int]:
    """The ids of all processes below one."""
    try:
        paths = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(child) for path in paths for child in path.read_text().split()]
    except OSError:
        return []
    return children + [process for child in children for process in below(child)]


def started(pid: int) -> str | None:
    """When a process was started, which tells it from a later one of the same id; None if ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def settles(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true, and soon enough for a busy machine."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.025)
    return True


def marked(mark: str) -> list[int]:
    """The processes that have a variable of a run in their environment, which they inherit."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state = entry.joinpath("stat").read_text(errors="replace").rpartition(")")[2]
                there = mark.encode() in entry.joinpath("environ").read_bytes().split(b"\0")
                if there and state.split()[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def left_over(folder: Path) -> list[int]:
    """What is still running of the run in a folder some time after its end."""
    settles(lambda: not marked(f"GEM_TEST_RUN={folder}"))
    return marked(f"GEM_TEST_RUN={folder}")


def settled(pid: int) -> int:
    """The process id of a sandbox, once it has all the forks that wait for programs."""
    counts: list[int] = []

    def same() -> bool:
        counts.append(len(below(pid)))
        # A second without a change: on a busy machine forks come late.
        return len(counts) > 40 and len(set(counts[-40:])) == 1

    assert settles(same)
    return pid


def share_no_progress_bar() -> None:
    """Give a forked child locks of its own for tqdm's bars.

    tqdm's default lock is shared by parent and children: a child that is killed while it holds the
    lock would block every later one for ever.
    """
    std = sys.modules.get("tqdm.std")
    kinds = [std.tqdm] if std else []
    for kind in kinds:
        kind.set_lock(threading.RLock())
        kinds += kind.__subclasses__()


@contextlib.contextmanager
def forked(function: Callable[[], str]) -> Iterator[Callable[[], str]]:
    """Call it in a forked child; yields what waits for its text, which is empty if it has none."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, function().encode())
        finally:
            os._exit(0)
    # The last other end: who waits learns of it when the child ends.
    os.close(writing)

    def answer() -> str:
        ready, _, _ = select.select([reading], [], [], 300)
        return os.read(reading, 1 << 16).decode() if ready else ""

    try:
        yield answer
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
