"""The `monty` executor: Monty, an interpreter of a subset of Python (extra `monty`)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import threading
import time
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from gem.admission import Core
from gem.errors import BusyMachineError, UnreachableError
from gem.plugins import extra
from gem.sandbox.base import Executor, Limits, Result, Session
from gem.sandbox.inside.clock import Clock
from gem.sandbox.running import attempted, watch
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

    The state after it is None outside of sessions and if a limit ended the program. Monty counts
    wall time. A program that does not end in time is run again while this process measures its
    time; those of a session, whose state holds the limits, are always measured.
    """

    def run(core: Core) -> tuple[Result, bytes | None]:
        core.acquire()
        if state is None:
            result = _fed(code, limits, None, None)
            if result[0].limit_hit != "time":
                return result
        return _fed(code, limits, state, core)

    return attempted(run)


def _fed(
    code: str, limits: Limits, state: bytes | None, core: Core | None
) -> tuple[Result, bytes | None]:
    """Run a program once; given a core, measure its time."""
    monty = _monty()
    # Monty also counts overhead besides the text: allow for it, cut the text below.
    output = monty.CollectStreams(max_bytes=limits.output_bytes + _OVERHEAD)
    bounds = {
        "max_feed_duration_secs": limits.cpu_s if core is None else limits.wall_s + _GRACE_S,
        "max_total_sleep_secs": limits.own_s,
        "max_memory": limits.memory_mb << 20,
    }
    guard = None
    began = time.monotonic()
    error, limit_hit, after = "", None, None
    try:
        with _workers().checkout(limits=bounds) as worker:
            if state:
                worker.load_session(state)
            began = time.monotonic()
            if core is not None and worker.worker_pid is not None:
                guard = _Guard(worker.worker_pid, limits, core)
            try:
                worker.feed_run(encoded(code).decode(), print_callback=output)
            except monty.MontyCrashedError:
                raise
            except monty.MontyError as raised:
                error = raised.display()
                limit_hit = _limit(error)
            finally:
                if guard is not None:
                    guard.end()
            if state is not None and limit_hit is None:
                after = worker.dump()
    except monty.MontyCrashedError as crash:
        if guard is not None and guard.error is not None:
            raise guard.error from crash
        late = guard.hit if guard is not None else time.monotonic() - began >= limits.cpu_s
        limit_hit = "time" if late else None
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
    cpu_s = guard.clock.cpu_s if guard is not None else None
    return Result(stdout, stderr, int(bool(error)), seconds, limit_hit, cpu_s), after


class _Guard:
    """Kills a worker when its program hits a limit of time."""

    def __init__(self, pid: int, limits: Limits, core: Core) -> None:
        self.hit = False
        self.error: BusyMachineError | None = None
        # What older programs of the worker have used does not count.
        self.clock = Clock(pid, _used(pid))
        self._done = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(pid, limits, core), name="gem-monty", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self, pid: int, limits: Limits, core: Core) -> None:
        try:
            self.hit = watch(self.clock, limits, core, self._done.wait)
        except BusyMachineError as error:
            self.error = error
        if not self._done.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _used(pid: int) -> float:
    """Return the CPU time of a process so far."""
    clock = Clock(pid)
    clock.look()
    return clock.cpu_s


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
