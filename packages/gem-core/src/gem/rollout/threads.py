"""The daemon threads in which environments run; they never keep the process alive.

- `EnvThreads`: concurrent calls, for asynchronous callers.
- `one_by_one`: sequential calls, for a synchronous caller.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from gem.blame import Cause, reached

T = TypeVar("T")

Call: TypeAlias = Callable[[], None]


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
        self._results: list[tuple[asyncio.AbstractEventLoop, Call]] = []
        self._starting = False
        """A thread was woken or started and has not yet looked at the queues."""
        self._threads = self._idle = 0
        self._begun = 0
        """Number of calls that threads have begun."""
        self._wake: SimpleQueue[None] = SimpleQueue()

    async def run(
        self, function: Callable[..., T], *args: object, timeout_s: float | None = None
    ) -> T:
        """Call a function in a thread; return what it returns, raise what it raises.

        Args:
            function: May block.
            args: Its arguments.
            timeout_s: Limit of the call in seconds, without its time in the queue. A thread whose
                call exceeds it cannot be ended and stays behind.

        Raises:
            CallTimeoutError: The call took longer; or the call is queued, the system allows no
                further thread, and no thread has begun any call for that long.
        """
        loop = asyncio.get_running_loop()
        call = _Call(self, loop, functools.partial(function, *args))
        future: asyncio.Future[T] = call.future
        self.start(call)
        if timeout_s is None:
            return await future
        # A timer in the loop, so that the thread need not wake the loop when it begins the call.
        call.limit = loop.call_later(timeout_s, call.look, timeout_s, self._begun)
        try:
            return await future
        finally:
            call.limit.cancel()

    def start(self, call: Call) -> None:
        """Queue a call that never raises and has no result."""
        with self._lock:
            self._start_worker()
            self._calls.append(call)

    def _finished(self, loop: asyncio.AbstractEventLoop, settle: Call) -> None:
        """Queue a result for delivery to its event loop."""
        with self._lock:
            self._results.append((loop, settle))

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
            _deliver(results)
            arrived = call is None
            if call is None:
                self._wake.get()
            else:
                call()
            del call, results  # an idle thread keeps nothing alive


def _deliver(results: Iterable[tuple[asyncio.AbstractEventLoop, Call]]) -> None:
    """Run calls in their event loops; skip loops that are closed."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for loop, call in results:
        by_loop.setdefault(loop, []).append(call)
    for loop, calls in by_loop.items():
        try:
            loop.call_soon_threadsafe(_run, calls)
        except RuntimeError:
            if not loop.is_closed():
                raise


def _run(calls: list[Call]) -> None:
    for call in calls:
        call()


class _Call:
    """A queued call and the future of its result."""

    __slots__ = ("_began", "_context", "_function", "_loop", "_threads", "future", "limit")
    limit: asyncio.TimerHandle
    """Timer of `look`; set where there is a time limit."""

    def __init__(
        self, threads: EnvThreads, loop: asyncio.AbstractEventLoop, function: Callable[[], Any]
    ) -> None:
        self._threads = threads
        self._loop = loop
        self._function = function
        self._context = copy_context()
        self._began: float | None = None
        self.future: asyncio.Future[Any] = loop.create_future()

    def __call__(self) -> None:
        """Run the function, in a thread; queue the result."""
        if self.future.done():
            return
        self._began = time.monotonic()
        result: Any = None
        error: BaseException | None = None
        try:
            result = self._context.run(self._function)
        except StopIteration as stop:  # futures refuse StopIteration
            error = RuntimeError(f"StopIteration: {stop}")
            error.__cause__ = stop
        except BaseException as raised:
            error = raised
        self._threads._finished(self._loop, functools.partial(self.settle, result, error))

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Set the future's result, in the event loop."""
        if self.future.done():
            return  # timed out or cancelled
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)

    def look(self, timeout_s: float, begun: int) -> None:
        """Fail the call if it exceeded its limit, else look again when it first could have.

        Args:
            timeout_s: Limit of the call.
            begun: Number of calls that the threads had begun at the last look.
        """
        left, threads = 0.0, self._threads
        if self._began is not None:
            left = self._began + timeout_s - time.monotonic()
        elif threads._starting or threads._begun != begun:
            left = timeout_s
        if left > 0:
            self.limit = self._loop.call_later(left, self.look, timeout_s, threads._begun)
        else:
            self.settle(None, CallTimeoutError(reached(self._context)))


def one_by_one(calls: Sequence[Callable[[], T]], timeout_s: float | None) -> list[T | Exception]:
    """Make calls one after the other; return what each returned or raised.

    One other thread makes all of them, so that there is one thread switch. If a call exceeds its
    limit, the caller leaves it behind in that thread and a further thread makes the rest.

    Args:
        calls: May block.
        timeout_s: Limit of each call in seconds; `CallTimeoutError` becomes its result. None makes
            the calls in the calling thread.
    """
    results: list[T | Exception] = []
    while len(results) < len(calls):
        series = _Series(calls[len(results) :])
        if timeout_s is None:
            series()
        else:
            env_threads().start(series)
            series.wait(timeout_s)
        results += series.results
        if series.broken is not None:
            raise series.broken
        if len(results) < len(calls):
            results.append(CallTimeoutError(reached(series.context)))
    return results


class _Series:
    """Calls that one thread makes in order until the caller stops waiting."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._left = False
        self._ended = threading.Event()
        self._began = time.monotonic()
        self.results: list[Any] = []
        self.context = Context()
        """Context of the current call."""
        self.broken: BaseException | None = None
        """A raised BaseException that is not an `Exception`; it ends the series."""

    def __call__(self) -> None:
        self._began = time.monotonic()
        for call in self._calls:
            self.context = copy_context()
            try:
                result = self.context.run(call)
            except Exception as error:
                result = error
            except BaseException as error:
                self.broken = error
                break
            with self._lock:
                if self._left:
                    return
                self.results.append(result)
                self._began = time.monotonic()
            del result
        self._ended.set()

    def wait(self, timeout_s: float) -> None:
        """Wait until the calls are made, or one of them takes longer than `timeout_s`."""
        left = timeout_s
        try:
            while not self._ended.wait(left):
                with self._lock:
                    left = self._began + timeout_s - time.monotonic()
                    if left <= 0:
                        self._left = True
                        return
        except BaseException:
            self._left = True  # the caller was interrupted: skip the remaining calls
            raise


@functools.cache
def env_threads() -> EnvThreads:
    """Return the threads that all environments of this process share."""
    return EnvThreads()


if hasattr(os, "register_at_fork"):
    # A forked process has none of its parent's threads.
    os.register_at_fork(after_in_child=env_threads.cache_clear)
