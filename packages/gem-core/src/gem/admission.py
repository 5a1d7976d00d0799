"""Admits programs and graders by cores: no more of them run at once than the machine has cores.

Each thing that runs holds a core. Those that wait are admitted first come, first served: within a
process by a queue, between the processes of a user by locks on files. The kernel releases the locks
of a holder that is killed. A thread that holds a core gets no second one, so what runs inside of
another admitted call cannot wait for itself. Imports nothing of gem.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
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

logger = logging.getLogger(__name__)

# Elsewhere the queue of the process is all there is.
_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

_POLL_S = 0.002
"""Time between two looks at the cores of other processes; one waiting process at a time looks."""
_KEEP_S = 0.05
"""How long the threads of a process hand a core to each other."""
_LOOK_S = 1.0
_PATIENCE_S = 120.0
"""Time in which no thread was admitted, after which the first that waits goes on without a core: a
process that somebody stopped holds its cores. No verdict depends on it, as limits are CPU time."""
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
    """The right of one thread to run a program or grader, on one core or alone."""

    def __init__(self, *, alone: bool = False) -> None:
        """Hold nothing yet.

        Args:
            alone: Whether `acquire` waits for all cores, so that no other admitted program or
                grader of this user runs.
        """
        self._alone = alone
        self._held: Sequence[int] = ()
        self._cores: _Cores | None = None

    def acquire(self) -> None:
        """Wait for the core, unless it or another one of this thread is held."""
        if not self._held and getattr(_mine, "core", None) in (None, self):
            self._cores = _cores()
            self._held = self._cores.acquire(self._alone)
            _mine.core = self

    def release(self) -> None:
        """Let others run, because the holder sleeps or has ended; any thread may do so."""
        held, self._held = self._held, ()
        if held and self._cores is not None:
            self._cores.release(held)

    def __enter__(self) -> Core:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
        if getattr(_mine, "core", None) is self:
            _mine.core = None


@contextlib.contextmanager
def admitted(*, alone: bool = False) -> Iterator[Core]:
    """Wait for a core; yield it, and release it at the end of the block; see `Core`."""
    with Core(alone=alone) as core:
        core.acquire()
        yield core


class _Waiter:
    """A thread that waits for a core, or for all of them."""

    def __init__(self, alone: bool) -> None:
        self.alone = alone
        self.held: list[int] = []
        self.turn = threading.Lock()
        """Released when it holds what it waits for."""
        self.turn.acquire()


class _Cores:
    """The cores that this process may use.

    A thread that releases a core hands it to the next one that waits, for a while: then other
    processes have their turn. A thread of its own, the doorman, gets cores that others release.
    """

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
        self._since: dict[int, float] = {}
        """When this process got the cores that it holds."""
        self._waiting: deque[_Waiter] = deque()
        self._admitted_at = time.monotonic()
        """When a thread last stopped waiting."""
        self._door = threading.Event()
        """Set when the doorman has something to do."""
        self._doorman: threading.Thread | None = None

    def acquire(self, alone: bool) -> list[int]:
        with self._lock:
            if not alone and not self._waiting:
                core = self._at_once()
                if core is not None:
                    return [core]
            waiter = _Waiter(alone)
            if not self._waiting:
                self._admitted_at = time.monotonic()
            self._waiting.append(waiter)
            if self._doorman is None:
                self._doorman = threading.Thread(
                    target=self._keep_door, name="gem-cores", daemon=True
                )
                self._doorman.start()
        self._door.set()
        counted = waits.get()
        try:
            with counted.waiting() if counted is not None else contextlib.nullcontext():
                while not waiter.turn.acquire(timeout=_LOOK_S):
                    if self._gives_up(waiter):
                        return []
        except BaseException:
            with self._lock:
                waits_still = waiter in self._waiting
                if waits_still:
                    self._waiting.remove(waiter)
            if not waits_still:
                self.release(waiter.held)
            raise
        return waiter.held

    def _gives_up(self, waiter: _Waiter) -> bool:
        """Return whether the first thread that waits goes on without a core."""
        with self._lock:
            now = time.monotonic()
            first = bool(self._waiting) and self._waiting[0] is waiter
            if not first or now - self._admitted_at < _PATIENCE_S:
                return False
            self._waiting.popleft()
            self._admitted_at = now
        logger.warning("no core came free for %g s; a program runs beside the others", _PATIENCE_S)
        return True

    def release(self, held: Sequence[int]) -> None:
        now = time.monotonic()
        with self._lock:
            for core in held:
                next_ = self._waiting[0] if self._waiting else None
                if next_ is not None and not next_.alone and now - self._since[core] < _KEEP_S:
                    self._admit([core])
                else:
                    self._give_back(core)
            waits_still = bool(self._waiting)
        if waits_still:
            self._door.set()

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
                self._since[core] = time.monotonic()
                return core
        return None

    def _admit(self, held: list[int]) -> None:
        """Let the first one that waits run; the caller holds the lock."""
        waiter = self._waiting.popleft()
        self._admitted_at = time.monotonic()
        waiter.held = held
        waiter.turn.release()

    def _give_back(self, core: int) -> None:
        _unlock(self._locks[core])
        self._free.append(core)

    def _keep_door(self) -> None:
        """Get cores for those that wait, in turn with the doormen of other processes."""
        while True:
            self._door.wait()
            # Whoever has this lock gets the next cores: two that want all of them do not block each
            # other.
            if self._queue >= 0:
                _fcntl.flock(self._queue, _fcntl.LOCK_EX)
            gathered: list[int] = []
            while self._waiting and not self._gather(gathered):
                # Set when this process releases a core; those of others are seen by looking.
                self._door.wait(_POLL_S)
            with self._lock:
                for core in gathered:
                    self._give_back(core)
                if not self._waiting:
                    self._door.clear()
            _unlock(self._queue)

    def _gather(self, gathered: list[int]) -> bool:
        """Take free cores for the first one that waits; return whether it was admitted."""
        self._door.clear()
        with self._lock:
            if not self._waiting:
                return False
            count = len(self._locks) if self._waiting[0].alone else 1
            while len(gathered) < count and (core := self._any()) is not None:
                gathered.append(core)
            if len(gathered) < count:
                return False
            self._admit([gathered.pop() for _ in range(count)])
            if self._waiting:
                self._door.set()
            return True


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
_making = threading.Lock()
_made: list[_Cores] = []


def _cores() -> _Cores:
    """Return the cores of this process, making them at the first call."""
    if not _made:
        with _making:
            if not _made:
                _made.append(_Cores())
    return _made[0]


def _forget() -> None:
    """In a forked process: begin without the parent's cores and waiting threads."""
    global _mine, _making
    while _made:
        _made.pop().forget()
    _mine, _making = threading.local(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
