"""Threads that do not keep a process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class DaemonThreads(Executor):
    """Runs every call in a thread of its own, which the interpreter does not wait for at its end.

    `ThreadPoolExecutor` joins its threads at exit, so that one environment that hangs would keep a
    run from ending. RL2 has one process for all episodes; starting a thread costs 0.1 ms.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call; see `concurrent.futures.Executor.submit`."""
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="gem-env", daemon=True).start()
        return future
