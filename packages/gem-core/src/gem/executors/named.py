"""Executors by name, as settings have them; all callers of a process share one of each name."""

from __future__ import annotations

import atexit
import os
import threading

from gem.errors import ConfigurationError
from gem.executors.base import Executor
from gem.parts import check_installed
from gem.plugins import entry_point, installed

NAMES = "thread, process[:workers], ray[:workers], remote:http://host:port"

ENTRY_POINT_GROUP = "gem.executors"
"""Executors of installed packages: functions that take the text after the colon of a name, None
without a colon, and return an `Executor`."""
VARIABLE = "GEM_EXECUTOR"
"""Environment variable with the name of the executor where none is given; else `thread`."""

_shared: dict[str, Executor] = {}
_lock = threading.Lock()


def shared_executor(name: str | None = None) -> Executor:
    """Return this process's executor of a name, making it at the first call.

    Args:
        name: See `make_executor`; None for what the environment variable `GEM_EXECUTOR` says.

    Raises:
        ConfigurationError, MissingExtraError, UnreachableError: See `make_executor`.
    """
    if name is None:
        name = os.environ.get(VARIABLE) or "thread"
    with _lock:
        if name not in _shared:
            _shared[name] = make_executor(name)
        return _shared[name]


def make_executor(name: str) -> Executor:
    """Make an executor of the caller's own.

    Args:
        name: `thread`; `process:8` for at most 8 processes, `process` for one a core; `ray:64` for
            at most 64 actors, `ray` for one a CPU of the cluster; `remote:http://host:port` for a
            server (`python -m gem serve`), whose token is the value of `GEM_SERVE_TOKEN`.

    Raises:
        ConfigurationError: See `check_name`.
        MissingExtraError: The extra of the executor is not installed.
        UnreachableError: There is no Ray cluster, and none can be started.
    """
    check_name(name)
    kind, colon, argument = name.partition(":")
    if kind == "thread":
        from gem.executors.thread import ThreadExecutor

        return ThreadExecutor()
    if kind == "process":
        from gem.executors.process import ProcessExecutor

        return ProcessExecutor(int(argument) if colon else None)
    check_installed("executor", kind, ENTRY_POINT_GROUP)
    entry = entry_point(ENTRY_POINT_GROUP, kind, "executor")
    assert entry is not None
    made = entry.load()(argument if colon else None)
    if not isinstance(made, Executor):
        raise ConfigurationError(f"executor {kind!r} = {entry.value} makes no Executor: {made!r}")
    return made


def check_name(name: str) -> None:
    """Make sure that an executor can have this name, whether or not its package is installed.

    Raises:
        ConfigurationError: The kind is unknown, or what follows it is not allowed.
    """
    kind, colon, argument = name.partition(":")
    known = {
        "thread": not colon,
        "process": not colon or _positive(argument),
        "ray": not colon or _positive(argument),
        "remote": argument.startswith(("http://", "https://")),
    }
    there = installed(ENTRY_POINT_GROUP)
    if not known.get(kind, kind in there):
        listed = ", ".join([NAMES, *(name for name in there if name not in known)])
        raise ConfigurationError(f"unknown executor {name!r}; known: {listed}")


def _positive(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


@atexit.register
def _close_all() -> None:
    for executor in list(_shared.values()):
        executor.close()


if hasattr(os, "register_at_fork"):
    # A fork of a process has no threads: it begins with executors of its own.
    os.register_at_fork(after_in_child=_shared.clear)
