"""The daemon threads in which environments run; they never keep the process alive.

`EnvThreads.run` is for event loops, `EnvThreads.submit` for everything else.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from gem.admission import Waits, waits
from gem.blame import Cause, reached
from gem.foreign import contained, is_interrupt, trace

T = TypeVar("T")

logger = logging.getLogger(__name__)

Call: TypeAlias = Callable[[], None]
Result: TypeAlias = tuple[Any, Any]
"""What the caller named a call by, and what the call returned, or the exception that it raised."""
Sink: TypeAlias = Callable[[list[Result]], None]
"""Receives results, several at a time, in any thread; must neither block nor raise."""


class CallTimeoutError(asyncio.TimeoutError):
    """A call exceeded the limit set here. (A plain TimeoutError was raised by the call itself.)"""

    def __init__(self, inside: Cause | None = None) -> None:
        super().__init__()
        self.inside = inside
        """The `gem.blame.boundary` in which the call still runs, if any."""


class EnvThreads:
    """A pool of daemon threads for concurrent calls.

    Not `concurrent.futures`: that joins its threads at exit, so one hanging environment would keep
    the process alive. And waking a thread costs more than a step of a game, so the pool wakes few
    threads, yet no call waits for one that blocks. While calls are queued, exactly one further
    thread is being woken or started. It gets the interpreter (GIL) when a running call blocks or
    its time slice ends; it delivers the ready results and wakes the next thread if calls remain.
    While nothing blocks, one thread runs call after call and delivers the results together.
    """

    def __init__(self) -> None:
        # Reentrant: garbage collection may close an abandoned environment at any point, even here.
        self._lock = threading.RLock()
        self._calls: deque[Call] = deque()
        self._results: list[tuple[Sink, Result]] = []
        self._starting = False
        """A thread was woken or started and has not yet looked at the queues."""
        self._threads = self._idle = 0
        self._begun = 0
        """Number of calls that threads have begun."""
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._timed: set[_Call] = set()
        """Submitted calls that run and have a limit."""
        self._look_at = math.inf
        """When the thread that looks for exceeded limits does so next."""
        self._limits: threading.Event | None = None

    def submit(
        self,
        function: Callable[[], Any],
        sink: Sink,
        token: Any = None,
        timeout_s: float | None = None,
    ) -> _Call:
        """Call a function in a thread and pass its result on.

        Args:
            function: May block.
            sink: Is given `(token, result)`; what the function raises is a result, as
                `gem.foreign.contained` returns it, and so is `CallTimeoutError`: the call took
                longer, or it is queued, the system allows no further thread, and no thread has
                begun any call for that long.
            token: Names the call.
            timeout_s: Limit of the call in seconds, without its time in the queue and without its
                waits for a core (`gem.admission`). A thread whose call exceeds it cannot be ended
                and stays behind.
        """
        call = _Call(self, function, sink, token, timeout_s)
        if timeout_s is not None:
            self._limit(call)
        self.start(call)
        return call

    async def run(
        self, function: Callable[..., T], *args: object, timeout_s: float | None = None
    ) -> T:
        """Call a function in a thread; return what it returns, raise what it raises (contained).

        The arguments and `CallTimeoutError` are those of `submit`. A call that is cancelled before
        it begins is not begun.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = self.submit(functools.partial(function, *args), to_loops, future, timeout_s)
        try:
            return await future
        finally:
            call.dropped = True

    def start(self, call: Call) -> None:
        """Queue a call that never raises and has no result."""
        with self._lock:
            self._start_worker()
            self._calls.append(call)

    def _limit(self, call: _Call) -> None:
        """Give up a call when its limit is exceeded."""
        with self._lock:
            self._timed.add(call)
            if call.look_at < self._look_at:
                self._look_at = call.look_at
                if self._limits is None:
                    self._limits = threading.Event()
                    threading.Thread(target=self._watch, name="gem-limits", daemon=True).start()
                self._limits.set()

    def _watch(self) -> None:
        """Look at calls with limits whenever one could have exceeded its limit."""
        assert self._limits is not None
        while True:
            with self._lock:
                now = time.monotonic()
                waits = self._starting, self._begun
                expired = [c for c in self._timed if c.look_at <= now and c.is_expired(now, *waits)]
                self._timed.difference_update(expired)
                self._look_at = min((call.look_at for call in self._timed), default=math.inf)
                left = self._look_at - now
            deliver((call.sink, (call.token, call.timed_out())) for call in expired)
            self._limits.wait(None if math.isinf(left) else min(left, threading.TIMEOUT_MAX))
            self._limits.clear()

    def _start_worker(self) -> None:
        if self._starting:
            return
        if self._idle:
            self._idle -= 1
            self._wake.put(None)
        else:
            try:
                threading.Thread(target=self._work, name="gem-env", daemon=True).start()
            except RuntimeError:
                if not self._threads:
                    raise
                return  # the system allows no more threads: the next idle one takes the call
            self._threads += 1
        self._starting = True

    def _work(self) -> None:
        arrived = True
        while True:
            results = []
            with self._lock:
                if arrived:
                    self._starting = False
                call = self._calls.popleft() if self._calls else None
                if self._calls:
                    self._start_worker()
                if call is None:
                    self._idle += 1
                else:
                    self._begun += 1
                # Otherwise the thread being woken delivers them, perhaps with more results.
                if arrived or call is None or not self._starting:
                    results, self._results = self._results, results
            deliver(results)
            arrived = call is None
            if call is None:
                self._wake.get()
            else:
                try:
                    call()
                except BaseException as error:  # the thread goes on with the calls of others
                    logger.error("a call of a thread raised: %s", trace(error))
            del call, results  # an idle thread keeps nothing alive


def deliver(results: Iterable[tuple[Sink, Result]]) -> None:
    """Give results to their sinks, all of one sink together.

    A sink that raises loses its results and nobody else's: the thread that delivers serves all.
    """
    grouped: dict[Sink, list[Result]] = {}
    for sink, result in results:
        grouped.setdefault(sink, []).append(result)
    for sink, each in grouped.items():
        try:
            sink(each)
        except BaseException as error:
            logger.error("%d results are lost: their sink raised: %s", len(each), trace(error))
            if is_interrupt(error):
                raise


def to_loops(results: list[Result]) -> None:
    """Give results whose tokens are futures to the event loops of these; a sink."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Result]] = {}
    for future, result in results:
        by_loop.setdefault(future.get_loop(), []).append((future, result))
    for loop, each in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, each)
        except RuntimeError:
            if not loop.is_closed():
                raise


def _settle(results: Iterable[Result]) -> None:
    """Set the results of futures, in their event loop."""
    for future, result in results:
        if future.done():
            continue  # cancelled
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


class _Call:
    """A queued call whose result goes to a sink."""

    __slots__ = (
        "_began",
        "_context",
        "_function",
        "_others",
        "_threads",
        "_timeout_s",
        "_waits",
        "dropped",
        "look_at",
        "sink",
        "token",
    )

    def __init__(
        self,
        threads: EnvThreads,
        function: Callable[[], Any],
        sink: Sink,
        token: Any,
        timeout_s: float | None,
    ) -> None:
        self._threads = threads
        self._function = function
        self._timeout_s = timeout_s
        self._context = copy_context()
        self._waits = Waits()
        self._context.run(waits.set, self._waits)
        self._began: float | None = None
        self._others = threads._begun
        self.look_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
        """When the call may have exceeded its limit, by `time.monotonic`."""
        self.sink = sink
        self.token = token
        self.dropped = False
        """Nobody waits for the result any more."""

    def __call__(self) -> None:
        """Run the function, in a thread; queue the result unless the limit is exceeded."""
        threads, limited = self._threads, self._timeout_s is not None
        if self.dropped or (limited and self not in threads._timed):
            with threads._lock:
                threads._timed.discard(self)
            return
        self._began = time.monotonic()
        try:
            result: Any = self._context.run(self._function)
        except BaseException as error:
            result = contained(error)
        with threads._lock:
            if limited:
                if self not in threads._timed:
                    return  # timed out
                threads._timed.discard(self)
            threads._results.append((self.sink, (self.token, result)))

    def is_expired(self, now: float, starting: bool, begun: int) -> bool:
        """Whether the call exceeded its limit; else sets when it first could have.

        Args:
            now: Time by `time.monotonic`.
            starting: Whether a thread is being started.
            begun: Number of calls that the threads have begun.
        """
        assert self._timeout_s is not None
        if self._began is not None:
            self.look_at = self._began + self._timeout_s + self._waits.total()
        elif starting or begun != self._others:
            self.look_at, self._others = now + self._timeout_s, begun
        return self.look_at <= now

    def timed_out(self) -> CallTimeoutError:
        """Return the result of a call that exceeded its limit."""
        return CallTimeoutError(reached(self._context))


@functools.cache
def env_threads() -> EnvThreads:
    """Return the threads that all environments of this process share."""
    return EnvThreads()


if hasattr(os, "register_at_fork"):
    # A forked process has none of its parent's threads.
    os.register_at_fork(after_in_child=env_threads.cache_clear)
