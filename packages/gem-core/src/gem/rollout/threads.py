"""Threads in which environments run; they do not keep a process alive."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeAlias

Call: TypeAlias = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads(Executor):
    """Runs every call at once in a thread that the interpreter does not wait for at its end.

    `ThreadPoolExecutor` joins its threads at exit, so that one environment that hangs would keep a
    run from ending. Threads are used again: starting one holds up whoever starts it.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call; see `concurrent.futures.Executor.submit`."""
        future: Future[Any] = Future()
        self._calls.put((future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="gem-env", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del future, call  # an idle thread keeps nothing alive
            self._idle.release()


@functools.cache
def env_threads() -> DaemonThreads:
    """Return the threads that all environments of this process share."""
    return DaemonThreads()
