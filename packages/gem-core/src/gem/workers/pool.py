"""`WorkerPool`: killable worker processes for computations that may never end.

The caller's side; `process` is what the workers run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gem.admission import admitted
from gem.errors import BusyMachineError, ConfigurationError, UnreachableError

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from gem.workers import process; process.serve(*sys.argv[2:])"  # noqa: E501

_START_TIMEOUT_S = 120.0
"""Limit of the start of a worker, with the import of the target; no part of a call's own limit."""

shared_by = 1
"""Number of processes like this one that run such pools beside each other."""

OWN_TIMES = 2.0
"""Time without waiting for a CPU that a call may take after its first `timeout_s`, in multiples."""
WALL_TIMES = 20.0
"""Wall time after which a call is given up, in multiples of its CPU time."""
LEAST_WALL_S = 60.0
_LOOK_S = 0.05
# Above about 290 years, timers raise; a limit of this length is none.
_LONGEST_S = 1e8
# How a process ends that is killed (SIGKILL).
_KILLED = -9
# How a process ends at its limit of CPU time.
_OVER = -signal.SIGPROF if hasattr(signal, "SIGPROF") else None

# Cap on a poll's timeout, which is a 32-bit number of milliseconds.
_LONGEST_POLL_S = 2_000_000.0


@dataclass(frozen=True)
class Reply:
    """The result of one call."""

    value: Any
    """The function's return value; None after a failure."""
    failure: str | None = None
    """`timeout`; `crash` (the process ended, for instance out of memory); or the exception that the
    function raised, as `Class: message`."""
    status: int | None = field(default=None, compare=False)
    """Exit status of a process that ended, as in `subprocess`; None if it is not known."""


class WorkerPool:
    """A bounded number of worker processes that each answer one call at a time.

    Workers start when first needed and serve later calls too. They are fresh interpreters, never
    forks of this process, whose threads could break a fork. If a call reaches a limit or is
    interrupted, the pool kills and replaces its worker. Where `os.fork` exists this takes
    milliseconds: each worker is a fork of a warm parent of its own. All methods are thread-safe.
    After `os.fork` the child starts with no workers and does not touch the parent's. Workers end at
    exit, and when this process dies.
    """

    def __init__(
        self,
        target: str,
        workers: int | None = None,
        *,
        memory_mb: int | None = 2048,
        environment: Mapping[str, str] | None = None,
        by_cores: bool = False,
    ) -> None:
        """Store the parameters; nothing is started.

        Args:
            target: The function to call, as `module:name`; its arguments and return value must be
                JSON. A function `warm_up` in that module is called once in each warm parent.
            workers: Most workers at a time; None: half the cores, at least 2, at most 8, divided by
                the number of processes that share them (`shared_by`).
            memory_mb: Limit on each worker's address space, where the platform has one; None: no
                limit.
            environment: Environment variables of the workers, added to those of this process.
            by_cores: Whether a call waits until a core is free (`gem.admission`). Not for functions
                that themselves run what waits for cores.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        if workers is None:
            workers = max(1, min(8, max(2, (os.cpu_count() or 1) // 2)) // shared_by)
        if workers < 1:
            raise ConfigurationError(f"workers must be at least 1, got {workers!r}")
        if ":" not in target:
            raise ConfigurationError(f"target must be 'module:function', got {target!r}")
        self.target = target
        self.workers = workers
        self._memory_mb = memory_mb
        self._environment = dict(environment or {})
        self._by_cores = by_cores
        self._begin()
        _pools.add(self)
        _watch()

    def call(self, *args: Any, timeout_s: float) -> Reply:
        """Call the function in a worker.

        A call that does not get enough CPU time, or whose process somebody kills (SIGKILL, which
        the pool sends at a limit only), runs again; with `by_cores` it runs alone then.

        Args:
            *args: Arguments; must be JSON.
            timeout_s: Limit of the function's CPU time, not counting the start of a worker or the
                wait for a free one. A function that sleeps for about three times as long hits it,
                too. Waiting for a CPU does not count. Where the platform measures no CPU time
                (Windows), three times this wall time is the limit.

        Raises:
            ConfigurationError: The limit is not above 0.
            BusyMachineError: The function got too little CPU time twice.
            UnreachableError: No worker can be started, or somebody killed its process twice.
        """
        if not timeout_s > 0:
            raise ConfigurationError(f"timeout_s must be above 0, got {timeout_s!r}")
        timeout_s = min(timeout_s, _LONGEST_S)
        request = json.dumps([timeout_s, args]).encode() + b"\n"
        with self._slots:
            for alone in (False, True):
                core = admitted(alone=alone) if self._by_cores else contextlib.nullcontext()
                with core:
                    reply = self._answer(request, timeout_s)
                if reply is not None and reply.status != _KILLED:
                    return reply
        if reply is not None:
            raise UnreachableError(
                f"the process of a call of {self.target} was killed from outside, twice: the "
                "machine may be out of memory"
            )
        raise BusyMachineError(
            f"a call of {self.target} got less than {timeout_s:g} s of CPU time within "
            f"{_wall_s(timeout_s):.0f} s, twice, and did not sleep: too much else runs on this "
            "machine"
        )

    def _answer(self, request: bytes, timeout_s: float) -> Reply | None:
        """Return the answer to a request; None if the worker got too little CPU time."""
        for _ in range(2):
            worker = self._idle_worker()
            reusable = False
            try:
                answer, expired, taken = worker.exchange(request, timeout_s)
                # A replacement would read a request that was not taken, and answer it late.
                reusable = taken and worker.alive()
            finally:
                # An exception in this thread leaves the exchange unfinished: not reusable.
                self._give_back(worker, reusable)
            if taken:
                break
        if answer is not None:
            return Reply(answer.get("value"), answer.get("error"))
        if expired == "busy":
            return None
        if expired == "timeout" or worker.status == _OVER:
            return Reply(None, "timeout", _OVER)
        return Reply(None, "crash", None if worker.closed else worker.status)

    def close(self) -> None:
        """End all workers; a later call starts new ones. Safe to repeat."""
        with self._lock:
            workers = list(self._all)
            self._all.clear()
            self._idle.clear()
        for worker in workers:
            worker.closed = True
            worker.end()

    def pids(self) -> list[int]:
        """Return the process ids of the living workers."""
        with self._lock:
            return [worker.pid for worker in self._all if worker.alive()]

    def _begin(self) -> None:
        self._slots = threading.BoundedSemaphore(self.workers)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    def _idle_worker(self) -> _Worker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive():
                    return worker
                self._all.discard(worker)
                worker.end()
        worker = _Worker(self.target, self._memory_mb, self._environment)
        with self._lock:
            self._all.add(worker)
        try:
            worker.await_start()
        except BaseException:
            self._give_back(worker, False)
            raise
        return worker

    def _give_back(self, worker: _Worker, reusable: bool) -> None:
        with self._lock:
            # `close` has removed the worker meanwhile, and ends it.
            if worker not in self._all:
                return
            if reusable:
                self._idle.append(worker)
                return
            self._all.discard(worker)
        worker.end()

    def _forget(self) -> None:
        """In a forked child: start with no workers, without touching the parent's."""
        for worker in list(self._all):
            worker.forget()
        self._begin()


class _Worker:
    """One worker: the process started, the fork of it that answers (if any), and the pipes."""

    def __init__(self, target: str, memory_mb: int | None, environment: Mapping[str, str]) -> None:
        limit = "" if memory_mb is None else str(memory_mb)
        command = [sys.executable, "-c", _START, json.dumps(sys.path), target, limit]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **environment},
                bufsize=0,
            )
        except OSError as error:
            raise UnreachableError(f"cannot start a worker ({sys.executable}): {error}") from error
        assert self.process.stdin is not None and self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout
        # Where poll() exists, a short request needs no timer thread for its time limit.
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(self._answers, select.POLLIN)
        self._received = bytearray()
        self._target = target
        self._busy = False
        self.gone = False
        self.closed = False
        self.status: int | None = None
        self.pid = self.process.pid

    def await_start(self) -> None:
        answer, expired, _ = self.exchange(b"", _START_TIMEOUT_S)
        if answer is not None or not self.alive():
            how = "it is not ready in time" if expired else "its process ended"
            problem = (answer or {}).get("error", how)
            raise UnreachableError(f"cannot start a worker for {self._target}: {problem}")

    def exchange(self, request: bytes, timeout_s: float) -> tuple[dict[str, Any] | None, str, bool]:
        """Send a request and wait for the answer.

        A process sends `ready` when it starts, and `taken` when it has read a request. `ready`
        instead of an answer means that the process died and was replaced.

        Returns:
            The answer, None if the process died; why it was killed: `timeout`, `busy` (it got too
            little CPU time) or ''; whether a process took the request.
        """
        lock = threading.Lock()
        answered = taken = False
        expired = ""
        done = threading.Event()
        clock: Any = None

        def watch(ended: Callable[[float], object]) -> None:
            """Wait for an end; kill the process at a limit. The process knows that of CPU time."""
            nonlocal expired, clock
            if ended(max(0.0, began + timeout_s - time.monotonic())):
                return
            if clock is None:
                # Most calls never need it.
                from gem.workers.clock import Clock

                clock = Clock(self.pid)
            while not ended(_LOOK_S):
                clock.look()
                slept = clock.own_s >= OWN_TIMES * timeout_s and not clock.wants
                if slept or time.monotonic() - began >= _wall_s(timeout_s):
                    with lock:
                        if not answered:
                            expired = "timeout" if slept else "busy"
                            self._kill()
                    return

        def await_answer() -> None:
            if poll is not None and not expired:
                ready = poll.poll
                watch(lambda left: ready(min(left, _LONGEST_POLL_S) * 1000))

        began = time.monotonic()
        # The pipe of an idle process is empty, so writing a request of this size does not block.
        poll = self._poll if self._poll and len(request) <= select.PIPE_BUF else None
        if poll is None:
            # The thread kills the process, which ends the blocking read on every platform.
            threading.Thread(target=watch, args=(done.wait,), daemon=True).start()
        self._busy = True
        answer = None
        try:
            with contextlib.suppress(OSError):
                view = memoryview(request)
                while view:
                    view = view[self._requests.write(view) :]
            while (message := self._message(await_answer)) is not None and "ready" not in message:
                if "taken" in message:
                    taken = True
                    continue
                answer = message
                with lock:
                    answered = not expired
                if answered:
                    break
            else:
                self.gone = message is None
                self.status = self.process.poll() if message is None else message["ended"]
                self.pid = self.process.pid if message is None else message["ready"]
            self._busy = bool(request) and not taken
        finally:
            done.set()
        return answer, expired, taken

    def _message(self, await_answer: Callable[[], None]) -> dict[str, Any] | None:
        """Return the next message, None at the end; skips lines that a killed process cut off."""
        while True:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        return message
                continue
            await_answer()
            try:
                part = self._answers.read(1 << 16)
            except (OSError, ValueError):
                part = b""
            if not part:
                return None
            self._received += part

    def alive(self) -> bool:
        return not self.gone and self.process.poll() is None

    def end(self) -> None:
        # At the end of its input the process exits; its warm parent reaps it and exits too.
        self._requests.close()
        if self._busy:
            self._kill()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._answers.close()

    def forget(self) -> None:
        # Open copies of the pipes would keep the worker running after the parent's end. Any return
        # code will do: it keeps Popen in this child from waiting for a process that is not its own.
        self._requests.close()
        self._answers.close()
        self.process.returncode = 0

    def _kill(self) -> None:
        if self.pid == self.process.pid:
            self.process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _wall_s(timeout_s: float) -> float:
    return max(LEAST_WALL_S, WALL_TIMES * timeout_s)


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_shared: dict[str, WorkerPool] = {}
_shared_lock = threading.Lock()


def shared(target: str) -> WorkerPool:
    """Return this process's shared pool for a function, making it at the first call.

    Its calls wait for a free core.
    """
    with _shared_lock:
        if target not in _shared:
            _shared[target] = WorkerPool(target, by_cores=True)
        return _shared[target]


@functools.cache
def _watch() -> None:
    """Register the exit hook (close pools) and the fork hook (forget them in the child), once."""
    atexit.register(_close_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_all)


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _forget_all() -> None:
    global _shared_lock
    # At the fork another thread may have held the lock: make a new one.
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool._forget()
