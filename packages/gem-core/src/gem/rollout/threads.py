"""Threads in which environments run; they do not keep a process alive."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Call: TypeAlias = Callable[[], None]


class EnvThreads:
    """Runs every call at once in a thread that the interpreter does not wait for at its end.

    `concurrent.futures` joins its threads at exit, so that one environment that hangs would keep a
    run from ending. Threads are used again: starting one holds up whoever starts it.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    async def run(
        self, function: Callable[..., T], *args: object, timeout_s: float | None = None
    ) -> T:
        """Call a function in a thread; return what it returns, raise what it raises.

        Args:
            function: May block.
            args: Its arguments.
            timeout_s: Most seconds to wait. The thread cannot be ended and is left behind.

        Raises:
            asyncio.TimeoutError: It took longer.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return  # nobody waits any more
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)

        def call() -> None:
            if future.cancelled():
                return
            result: T | None = None
            error: BaseException | None = None
            try:
                result = function(*args)
            except StopIteration as stop:  # no future can hold one
                error = RuntimeError(f"StopIteration: {stop}")
                error.__cause__ = stop
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:
                if not loop.is_closed():
                    raise

        self.start(call)
        if timeout_s is None:
            return await future
        return await asyncio.wait_for(future, timeout_s)

    def start(self, call: Call) -> None:
        """Run a call that raises nothing and that nobody waits for."""
        self._calls.put(call)
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="gem-env", daemon=True).start()

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            call()
            del call  # an idle thread keeps nothing alive
            self._idle.release()


@functools.cache
def env_threads() -> EnvThreads:
    """Return the threads that all environments of this process share."""
    return EnvThreads()
