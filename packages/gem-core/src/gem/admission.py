"""Admits programs and graders by cores: no more of them run at once than the machine has cores.

Each thing that runs holds a core. Those that wait are admitted first come, first served: within a
process by a queue, between the processes of a user by locks on files. The kernel releases the locks
of a holder that is killed. A thread that holds a core gets no second one, so what runs inside of
another admitted call cannot wait for itself. Imports nothing of gem.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import stat
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

# Elsewhere the queue of the process is all there is.
_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

_POLL_S = 0.002
"""Time between two looks at the cores of other processes; one waiting process at a time looks."""
_CGROUPS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))


class Waits:
    """How long one call of an environment has waited for cores."""

    __slots__ = ("_since", "_total")

    def __init__(self) -> None:
        self._total = 0.0
        self._since: float | None = None

    def total(self) -> float:
        """Return the seconds waited so far, a wait that goes on included."""
        since = self._since
        return self._total if since is None else self._total + time.monotonic() - since

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block, which runs in the thread of the call."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._total, self._since = self.total(), None


waits: ContextVar[Waits | None] = ContextVar("gem_waits", default=None)
"""Where the running call counts its waits; time limits on it leave them out."""


class Core:
    """The right to run, on one core or alone. One made without arguments is nothing to release."""

    def __init__(self, cores: _Cores | None = None, held: Sequence[int] = ()) -> None:
        self._cores = cores
        self._held = held

    def release(self) -> None:
        """Let others run, because the holder sleeps or has ended; safe to repeat."""
        cores, self._cores = self._cores, None
        if cores is not None:
            cores.release(self._held)


@contextlib.contextmanager
def admitted(*, alone: bool = False) -> Iterator[Core]:
    """Wait for a core; yield it, and release it at the end of the block.

    Args:
        alone: Wait for all cores, so that no other admitted program or grader of this user runs.
    """
    if getattr(_mine, "holds", False):
        yield Core()
        return
    cores = _cores()
    core = Core(cores, cores.acquire(alone))
    _mine.holds = True
    try:
        yield core
    finally:
        _mine.holds = False
        core.release()


class _Cores:
    """The cores that this process may use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        numbers = usable()
        self._locks: dict[int, int] = dict.fromkeys(numbers, -1)
        """Open lock file of each core, by number; -1 where there is none."""
        self._queue = -1
        folder = _folder()
        if folder is not None:
            with contextlib.suppress(OSError):
                opened = {n: _opened(folder / f"core-{n}") for n in numbers}
                self._queue = _opened(folder / "queue")
                self._locks = opened
        self._free = list(self._locks)
        """Cores that this process does not hold."""
        self._waiting: deque[threading.Event] = deque()
        """Threads that wait; the first of them looks for a free core."""

    def acquire(self, alone: bool) -> list[int]:
        with self._lock:
            if not alone and not self._waiting:
                core = self._at_once()
                if core is not None:
                    return [core]
            turn = threading.Event()
            self._waiting.append(turn)
            first = self._waiting[0] is turn
        counted = waits.get()
        with counted.waiting() if counted is not None else contextlib.nullcontext():
            try:
                if not first:
                    turn.wait()
                return self._in_turn(turn, len(self._locks) if alone else 1)
            finally:
                with self._lock:
                    self._waiting.remove(turn)
                    if self._waiting:
                        self._waiting[0].set()

    def release(self, held: Sequence[int]) -> None:
        with self._lock:
            for core in held:
                _unlock(self._locks[core])
                self._free.append(core)
            if self._waiting:
                self._waiting[0].set()

    def forget(self) -> None:
        """Close the lock files, in a forked process, which has its parent's descriptors."""
        for descriptor in (self._queue, *self._locks.values()):
            if descriptor >= 0:
                os.close(descriptor)

    def _at_once(self) -> int | None:
        """Return a core if one is free and no process waits; the caller holds the lock."""
        if not self._free or not _lock(self._queue):
            return None
        try:
            return self._any()
        finally:
            _unlock(self._queue)

    def _any(self) -> int | None:
        for core in reversed(self._free):
            if _lock(self._locks[core]):
                self._free.remove(core)
                return core
        return None

    def _in_turn(self, turn: threading.Event, count: int) -> list[int]:
        """Wait for cores, as the first of this process that waits and then as the first of all."""
        held: list[int] = []
        # Whoever has this lock gets the next cores: two that want all of them do not block each
        # other.
        if self._queue >= 0:
            _fcntl.flock(self._queue, _fcntl.LOCK_EX)
        try:
            while True:
                turn.clear()
                with self._lock:
                    while len(held) < count and (core := self._any()) is not None:
                        held.append(core)
                if len(held) == count:
                    return held
                # Set when this process releases a core; those of others are seen by looking.
                turn.wait(_POLL_S)
        except BaseException:
            self.release(held)
            raise
        finally:
            _unlock(self._queue)


def usable() -> list[int]:
    """Return the numbers of the cores that this process may use, by affinity and cgroup."""
    if hasattr(os, "sched_getaffinity"):
        numbers = sorted(os.sched_getaffinity(0))
    else:
        numbers = list(range(os.cpu_count() or 1))
    return numbers[: max(1, math.ceil(min(len(numbers), _quota())))]


def _quota() -> float:
    """Return the cores that the cgroup allows, infinity for no limit."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period, *_ = _CGROUPS[0].read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota_us = int(_CGROUPS[1].read_text())
        period_us = int(_CGROUPS[1].with_name("cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else math.inf
    return math.inf


def _folder() -> Path | None:
    """Return this user's folder of lock files; None if there can be none."""
    if _fcntl is None:
        return None
    # The same for all processes of the user, whatever TMPDIR is.
    shared = Path("/dev/shm")
    root = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    folder = root / f"gem-cores-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if own else None


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _lock(descriptor: int) -> bool:
    """Take a lock if it is free; return whether it is taken."""
    if descriptor < 0:
        return True
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    if descriptor >= 0:
        _fcntl.flock(descriptor, _fcntl.LOCK_UN)


_mine = threading.local()


@functools.cache
def _cores() -> _Cores:
    return _Cores()


def _forget() -> None:
    """In a forked process: begin without the parent's cores and waiting threads."""
    global _mine
    if _cores.cache_info().currsize:
        _cores().forget()
        _cores.cache_clear()
    _mine = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
