"""Killable worker processes for computations that may never end."""

from __future__ import annotations

import atexit
import contextlib
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
from typing import IO, Any

from gem.errors import ConfigurationError, UnreachableError

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from gem.workers import process; process.serve(*sys.argv[2:])"  # noqa: E501

# Longer than any call takes; a poll counts milliseconds in 32 bits.
_LONGEST_POLL_S = 2_000_000.0


@dataclass(frozen=True)
class Reply:
    """What became of one call."""

    value: Any
    """What the function returned; None after a failure."""
    failure: str | None = None
    """`timeout`; `crash` (the process ended, for instance out of memory); or the text of the
    exception that the function raised, beginning with its class."""
    status: int | None = field(default=None, compare=False)
    """Exit status of a process that crashed, as `subprocess` has it; None if it is not known."""


class WorkerPool:
    """A bounded number of processes that each answer one call at a time.

    Processes start when first needed, by a fresh interpreter (never by forking, so threads of this
    process do no harm), and stay for later calls. A call that reaches its time limit, or is
    interrupted, has its process killed and replaced, in milliseconds where processes can fork: each
    is forked by a warm parent of its own that runs nothing else. All methods may be used from any
    thread. After `os.fork` the child begins with no processes and leaves the parent's
    alone. At exit all processes end; they also end by themselves when this process is gone.
    """

    def __init__(
        self,
        target: str,
        workers: int | None = None,
        *,
        memory_mb: int | None = 2048,
        start_timeout_s: float = 120.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Set up; nothing is started.

        Args:
            target: The function to call, as `module:name`; its arguments and what it returns must
                be JSON. A function `warm_up` in that module is called once in each process.
            workers: Most processes at a time; None: half the cores, at least 2, at most 8.
            memory_mb: Address space of each process, where the platform can limit it; None: not
                limited.
            start_timeout_s: Limit on starting a process, importing the target included. It does
                not count towards a call's own limit.
            environment: Environment variables of the processes beside those of this process.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        if workers is None:
            workers = min(8, max(2, (os.cpu_count() or 1) // 2))
        if workers < 1:
            raise ConfigurationError(f"workers must be at least 1, got {workers!r}")
        if ":" not in target:
            raise ConfigurationError(f"target must be 'module:function', got {target!r}")
        self.target = target
        self.workers = workers
        self._memory_mb = memory_mb
        self._start_timeout_s = start_timeout_s
        self._environment = dict(environment or {})
        self._begin()
        _watch(self)

    def call(self, *args: Any, timeout_s: float) -> Reply:
        """Call the function in a worker.

        Args:
            *args: Arguments that JSON can carry.
            timeout_s: Wall-clock limit of the function, not counting the wait for a free worker
                (bounded by the limits of the calls before) or its start.

        Raises:
            UnreachableError: No worker can be started.
        """
        request = json.dumps([timeout_s, args]).encode() + b"\n"
        with self._slots:
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
        return Reply(None, "timeout") if expired else Reply(None, "crash", worker.status)

    def close(self) -> None:
        """End all processes; a later call starts new ones. Safe to repeat."""
        with self._lock:
            workers = list(self._all)
            self._all.clear()
            self._idle.clear()
        for worker in workers:
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
            worker.await_start(self._start_timeout_s)
        except BaseException:
            self._give_back(worker, False)
            raise
        return worker

    def _give_back(self, worker: _Worker, reusable: bool) -> None:
        with self._lock:
            # A worker that `close` has taken out meanwhile is ended there.
            if worker not in self._all:
                return
            if reusable:
                self._idle.append(worker)
                return
            self._all.discard(worker)
        worker.end()

    def _forget(self) -> None:
        """Begin anew in a forked child, without touching the parent's processes."""
        for worker in list(self._all):
            worker.forget()
        self._begin()


class _Worker:
    """One process that answers, its warm parent where processes can fork, and the pipes to it."""

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
        # Where pipes can be waited for, a call needs no thread of its own for its time limit.
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(self._answers, select.POLLIN)
        self._received = bytearray()
        self._target = target
        self._busy = False
        self.gone = False
        self.status: int | None = None
        self.pid = self.process.pid

    def await_start(self, timeout_s: float) -> None:
        answer, expired, _ = self.exchange(b"", timeout_s)
        if answer is not None or not self.alive():
            how = f"not ready after {timeout_s:g} s" if expired else "its process ended"
            problem = (answer or {}).get("error", how)
            raise UnreachableError(f"cannot start a worker for {self._target}: {problem}")

    def exchange(
        self, request: bytes, timeout_s: float
    ) -> tuple[dict[str, Any] | None, bool, bool]:
        """Return the answer, None if the process is gone; whether the time limit was reached;
        whether the request was taken, by a process that may have died since.

        A process sends `ready` when it starts. If that comes back instead of an answer, the process
        that was asked has ended and this one replaces it.
        """
        lock = threading.Lock()
        answered = expired = taken = False

        def expire() -> None:
            nonlocal expired
            with lock:
                if not answered:
                    expired = True
                    self._kill()

        def await_answer() -> None:
            if polled and not expired and not self._readable(began + timeout_s - time.monotonic()):
                expire()

        began = time.monotonic()
        # An idle process has read all before, so that a request of this size is written at once.
        polled = self._poll is not None and len(request) <= select.PIPE_BUF
        # Killing the process ends the blocking read: on every platform, in every thread.
        timer = None if polled else threading.Timer(timeout_s, expire)
        if timer is not None:
            timer.daemon = True
            timer.start()
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
            if timer is not None:
                timer.cancel()
        return answer, expired, taken

    def _readable(self, within_s: float) -> bool:
        """Wait until there is something to read, or the end; False if the time is over."""
        assert self._poll is not None
        return bool(self._poll.poll(min(max(0.0, within_s), _LONGEST_POLL_S) * 1000))

    def _message(self, await_answer: Callable[[], None]) -> dict[str, Any] | None:
        """Return the next message, None at the end; what a killed process half wrote is none."""
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
        # At the end of its input the process ends, and so does its parent, which has reaped it.
        self._close(self._requests)
        if self._busy:
            self._kill()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close(self._answers)

    def forget(self) -> None:
        # Open pipes would keep the parent's worker from noticing that the parent is gone. The
        # return code stands for one that only the parent can know.
        self._close(self._requests)
        self._close(self._answers)
        self.process.returncode = 0

    def _kill(self) -> None:
        if self.pid == self.process.pid:
            self.process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _close(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError):
            stream.close()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_shared: dict[str, WorkerPool] = {}
_shared_lock = threading.Lock()
_watching = False


def shared(target: str) -> WorkerPool:
    """Return this process's pool for a function, made at the first call."""
    pool = _shared.get(target)
    if pool is None:
        with _shared_lock:
            pool = _shared.get(target)
            if pool is None:
                pool = _shared[target] = WorkerPool(target)
    return pool


def _watch(pool: WorkerPool) -> None:
    """Have the pool closed at exit and forgotten in forked children."""
    global _watching
    _pools.add(pool)
    if not _watching:
        _watching = True
        atexit.register(_close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget_all)


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _forget_all() -> None:
    global _shared_lock
    # Another thread may have held it at the moment of the fork.
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool._forget()
