"""Executors by name, as settings have them; all callers of a process share one of each name."""

from __future__ import annotations

import atexit
import os
import threading

from gem.errors import ConfigurationError
from gem.executors.base import Executor

NAMES = "thread, process[:workers], ray[:workers], remote:http://host:port"

EXECUTORS = ("thread", "process", "ray", "remote")
"""The kinds of executors."""
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
    kind, number = check_name(name)
    if kind == "remote":
        from gem_serve.executors.remote import RemoteExecutor

        return RemoteExecutor(name.partition(":")[2])
    if kind == "thread":
        from gem.executors.thread import ThreadExecutor

        return ThreadExecutor()
    if kind == "ray":
        from gem_serve.executors.ray import RayExecutor

        return RayExecutor(number)
    from gem.executors.process import ProcessExecutor

    return ProcessExecutor(number)


def check_name(name: str) -> tuple[str, int | None]:
    """Return the kind of an executor and its number of workers, None by default.

    Raises:
        ConfigurationError: Unknown kind, or no positive number of workers.
    """
    kind, colon, number = name.partition(":")
    if kind == "remote" and number.startswith(("http://", "https://")):
        return kind, None
    workers = int(number) if number.isdecimal() else None
    if kind not in EXECUTORS[:3] or (colon and (kind == "thread" or not workers)):
        raise ConfigurationError(f"unknown executor {name!r}; known: {NAMES}")
    return kind, workers


@atexit.register
def _close_all() -> None:
    for executor in list(_shared.values()):
        executor.close()


if hasattr(os, "register_at_fork"):
    # A fork of a process has no threads: it begins with executors of its own.
    os.register_at_fork(after_in_child=_shared.clear)
