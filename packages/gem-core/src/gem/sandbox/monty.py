"""The `monty` executor: Monty, an interpreter of a subset of Python (extra `monty`)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from gem.errors import UnreachableError
from gem.plugins import extra
from gem.sandbox.base import Executor, Limits, Result, Session
from gem.sandbox.streams import encoded

INSTALL = "pip install 'gem-core[monty]'"
_GRACE_S = 1.0
_OVERHEAD = 1 << 16


class MontyExecutor(Executor):
    """Runs programs in Monty (pydantic-monty): a Python interpreter without access to anything.

    A program starts in a fraction of a millisecond. It has the language (no generators, no `del`,
    no `except*`), part of the builtins (no `input`) and the modules math, json, re, random,
    datetime, collections, itertools, functools and decimal; nothing else can be imported.
    `AutoExecutor` runs programs that need more in bubblewrap. Programs reach no files, sockets or
    processes: a program is data in the worker that interprets it. The worker is an ordinary
    process of the user, so the operating system does not contain an error in Monty.

    Differs from `Executor`: `stdin` cannot be read, both output streams together are limited, no
    `disk_mb` and `processes`.
    """

    isolates = frozenset({"files", "network", "processes"})

    def __init__(self) -> None:
        """Check that Monty is installed; nothing is started.

        Raises:
            MissingExtraError: The extra `monty` is not installed.
        """
        _monty()

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        """Run a program; see `Executor.run`."""
        return _run(code, limits)[0]

    def session(self, limits: Limits = Limits()) -> Session:  # noqa: B008
        """Begin a session; see `Executor.session`. Between programs its state is bytes, not a
        process: `memory_mb` limits the state of all its programs together."""
        return MontySession(limits)


class MontySession(Session):
    """A session of `MontyExecutor`: Monty serialises its state after each program."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._state = b""
        self._lock = threading.Lock()

    def run(self, code: str, stdin: str = "") -> Result:
        """Run the next program; see `Session.run`."""
        with self._lock:
            result, state = _run(code, self._limits, self._state)
            if state is not None:
                self._state = state
            return result

    def snapshot(self) -> bytes:
        """Return the state; see `Session.snapshot`."""
        return self._state

    def restore(self, state: bytes) -> None:
        """Continue from a snapshot; see `Session.restore`."""
        with self._lock:
            self._state = state

    def spawn(self) -> Session:
        """Return a copy; see `Session.spawn`."""
        child = MontySession(self._limits)
        child.restore(self.snapshot())
        return child

    def close(self) -> None:
        """Drop the state; see `Session.close`."""
        self.restore(b"")


def _run(code: str, limits: Limits, state: bytes | None = None) -> tuple[Result, bytes | None]:
    """Run a program, in a session's state if given; return the result and the state after it.

    The state after it is None outside of sessions and if a limit ended the program.
    """
    monty = _monty()
    # Monty also counts overhead besides the text: allow for it, cut the text below.
    output = monty.CollectStreams(max_bytes=limits.output_bytes + _OVERHEAD)
    bounds = {
        "max_feed_duration_secs": limits.wall_s,
        "max_total_sleep_secs": limits.wall_s,
        "max_memory": limits.memory_mb << 20,
    }
    began = time.monotonic()
    error, limit_hit, after = "", None, None
    try:
        with _workers().checkout(limits=bounds) as worker:
            if state:
                worker.load_session(state)
            began = time.monotonic()
            try:
                worker.feed_run(encoded(code).decode(), print_callback=output)
            except monty.MontyCrashedError:
                raise
            except monty.MontyError as raised:
                error = raised.display()
                limit_hit = _limit(error)
            if state is not None and limit_hit is None:
                after = worker.dump()
    except monty.MontyCrashedError as crash:
        limit_hit = "time" if time.monotonic() - began >= limits.wall_s else None
        error = f"the interpreter ended: {crash}"
    except monty.MontyError as problem:
        # The session's state exceeds the memory limit when it is serialised or loaded.
        limit_hit = "memory"
        error = f"the session holds too much: {problem}"
    except (OSError, TimeoutError) as problem:
        raise UnreachableError(f"cannot start a Monty worker: {problem}") from problem
    seconds = time.monotonic() - began
    texts = {"stdout": "", "stderr": ""}
    for stream, text in (*output.output, ("stderr", error + "\n" * bool(error))):
        texts[stream] += text
    both = [encoded(text) for text in texts.values()]
    full = f"> {limits.output_bytes + _OVERHEAD} bytes"
    if limit_hit == "memory" and "bytes > " in error and error.rstrip().endswith(full):
        # The memory that ran out was the output buffer.
        limit_hit = "output"
    if max(map(len, both)) > limits.output_bytes:
        limit_hit = limit_hit or "output"
    stdout, stderr = (data[: limits.output_bytes].decode("utf-8", "replace") for data in both)
    return Result(stdout, stderr, int(bool(error)), seconds, limit_hit), after


def _limit(error: str) -> str | None:
    """Return the limit that ended a program, from Monty's message."""
    last = error.rstrip().rpartition("\n")[2]
    if last.startswith(("TimeoutError: feed time limit", "TimeoutError: sleep limit")):
        return "time"
    return "memory" if last.startswith("MemoryError: memory limit exceeded") else None


def _monty() -> Any:
    return extra("pydantic_monty", f"the monty executor needs pydantic-monty: {INSTALL}")


_lock = threading.Lock()


def _workers() -> Any:
    with _lock:
        return _pool(os.getpid())


@functools.cache
def _pool(pid: int) -> Any:
    """Return the worker pool of the process `pid`; a forked child makes its own."""
    pool = _monty().Monty(
        binary_path=_binary(),
        max_processes=max(2, os.cpu_count() or 1) * 4,
        feed_duration_limit_grace=_GRACE_S,
    )
    pool.__enter__()
    atexit.register(_close, pool, pid)
    return pool


def _binary() -> Path | None:
    """Return the path of the worker's executable as its package installed it, which need not be in
    this virtual environment; None leaves the search to Monty."""
    with contextlib.suppress(PackageNotFoundError):
        for file in files("pydantic-monty-runtime") or ():
            path = Path(str(file.locate()))
            if path.name == "monty" and path.is_file():
                return path
    return None


def _close(pool: Any, pid: int) -> None:
    if os.getpid() == pid:
        pool.__exit__(None, None, None)
