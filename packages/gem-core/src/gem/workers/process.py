"""The worker's side of a `WorkerPool`: one JSON line in, a few JSON lines out."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any


def serve(target: str, memory_mb: str) -> None:
    """Answer calls of `module:function` from stdin on stdout until stdin ends.

    Where `os.fork` exists, this process is the warm parent: it only loads the function's module,
    forks the process that answers, and forks another whenever that one was killed.

    Args:
        target: The function.
        memory_mb: Limit on the address space; empty for none.
    """
    # What the function prints is sent to stderr, so that it cannot mix with the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
        function: Callable[..., Any] = getattr(module, name)
        getattr(module, "warm_up", lambda: None)()
    except Exception as error:
        _send(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    if memory_mb:
        limit("AS", int(memory_mb) * 1024 * 1024)
    if not hasattr(os, "fork"):
        _answer(function, answers, None)
        return
    ended: int | None = None
    while ended != 0:
        pid = os.fork()
        if pid == 0:
            _answer(function, answers, ended)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    # Nothing to clean up, and the interpreter's teardown takes a tenth of a second.
    os._exit(0)


def _answer(function: Callable[..., Any], answers: Any, ended: int | None) -> None:
    """Answer calls; first send `ready` with the exit status of the process that this replaces."""
    _send(answers, {"ready": os.getpid(), "ended": ended})
    for line in sys.stdin.buffer:
        timeout_s, arguments = json.loads(line)
        # If this process dies after this message, the caller reports a crash.
        _send(answers, {"taken": os.getpid()})
        with limited("PROF", timeout_s):
            try:
                answer = {"value": function(*arguments)}
                json.dumps(answer)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
        _send(answers, answer)


@contextlib.contextmanager
def limited(kind: str, cpu_s: float) -> Iterator[None]:
    """Have the kernel end this process when the block uses so much CPU time, where it can.

    Whatever the process computes, in Python or not, it ends by a signal.

    Args:
        kind: `PROF`, which counts user and system time and ends the process by SIGPROF; or
            `VIRTUAL`, which counts user time and ends it by SIGVTALRM.
        cpu_s: Limit in seconds.
    """
    which = getattr(signal, f"ITIMER_{kind}", None)
    if which is None:
        yield
        return
    signal.signal(signal.SIGPROF if kind == "PROF" else signal.SIGVTALRM, signal.SIG_DFL)
    signal.setitimer(which, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(which, 0.0)


def _send(stream: Any, message: dict[str, Any]) -> None:
    # The leading newline ends a line that a killed process may have cut off.
    data = memoryview(b"\n" + json.dumps(message).encode() + b"\n")
    # The caller may have ended.
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[stream.write(data) :]


def limit(name: str, most: int) -> None:
    """Set the soft limit of this process's resource `RLIMIT_<name>`, where there is one."""
    try:
        import resource

        which = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(which, (most, resource.getrlimit(which)[1]))
    except (ImportError, OSError, ValueError):
        pass  # The platform has no such limit, or a tighter one is set.
