"""Processes that a trainer starts: whether they live, and how all of them end.

- `alive`, `name_of`, `children_of`: questions about processes that may be gone meanwhile.
- `end_all`, `end_descendants`: end processes, in good order first; end all of one's own.
- `adopt_orphans`: keep processes whose parent dies among one's own.
- `end_group_after_me`: have the process group ended when this process is killed.
- `claim`: one process of a machine at a time; `free_port`: for what it listens on.
- `end_descendants_with_me`, `end_with_servers`: what this process starts ends with it, and it stops
  when a part of that is gone.

All functions but these two need psutil, on which the adapters that call them depend.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import multiprocessing
import multiprocessing.util  # registers its exit handler when it is imported
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gem.errors import ConfigurationError
from gem_train import guard

if TYPE_CHECKING:
    import psutil

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)

END_S = 5.0
"""How long descendants have to end in good order."""
POLL_S = 2.0
PATIENCE_S = 10.0
"""How long a server may go on without one of its parts: when it ends, its parts end first."""
STOP_S = 15.0
"""How long this process has to stop by itself."""


def claim(path: Path, reason: str) -> TextIO:
    """Claim a file for as long as this process keeps what is returned; other users' count, too.

    Args:
        path: Need not exist.
        reason: Why there can be one at a time, and what to do.

    Raises:
        ConfigurationError: Another process of this machine has claimed it.
    """
    if not path.exists():
        path.touch()
        path.chmod(0o644)
    # Reading is enough for a lock, and all that is allowed on another user's file.
    held = path.open(encoding="utf-8")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        held.close()
        raise ConfigurationError(f"{reason} (it holds {path})") from error
    return held


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def name_of(process: psutil.Process) -> str:
    """Return the name of a process; empty if it is gone."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def children_of(
    process: psutil.Process | None = None, *, recursive: bool = False
) -> list[psutil.Process]:
    """Return the children of a process, by default of this one; none if it is gone."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return list((process or psutil.Process()).children(recursive=recursive))
    return []


def end_all(processes: Sequence[psutil.Process], grace_s: float) -> None:
    """Ask processes to end (SIGTERM), and kill those that live on.

    Args:
        processes: Processes of the same user.
        grace_s: How long they may take to end in good order, in seconds; 0 kills at once.
    """
    import psutil

    if grace_s:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, processes = psutil.wait_procs(processes, timeout=grace_s)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def end_descendants(last: Container[str] = (), grace_s: float = END_S) -> None:
    """Kill all descendants of this process, also those that are started or adopted meanwhile.

    Args:
        last: Names of processes that get a while to end by themselves when the others are gone,
            such as pipes that carry the others' last words.
        grace_s: How long that is, in seconds, and how long it is tried to kill the others.
    """
    import psutil

    for spared in (last, ()):
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            found = [process for process in children_of(recursive=True) if alive(process)]
            left = [process for process in found if name_of(process) not in spared]
            if not left:
                break
            end_all(left, 0)
            time.sleep(0.02)
        if spared:
            psutil.wait_procs(children_of(recursive=True), timeout=grace_s)


def adopt_orphans() -> None:
    """Keep processes whose parent dies (an engine's workers) among this process's children."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def end_group_after_me() -> subprocess.Popen[bytes]:
    """Start a process that ends the process group when this process, its leader, is gone.

    Returns:
        The process; a caller that ends in good order kills it first.
    """
    command = [sys.executable, "-I", str(Path(guard.__file__)), str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def end_descendants_with_me() -> None:
    """End everything that this process has started when it ends, however it ends.

    It may succeed, fail, be asked to end (SIGTERM; the exit status is 143) or be killed. At exit
    multiprocessing waits for its processes for ever: this comes first. Called in another thread
    than the main one, it leaves the handling of signals as it is.
    """
    atexit.register(_end_descendants, end_group_after_me())
    if threading.current_thread() is threading.main_thread():
        # torchrun ends the other processes with SIGTERM when one has failed.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        # A server that is forked may never return to Python to see a signal.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _end_descendants(guard: subprocess.Popen[bytes]) -> None:
    # Who ends a whole process group asks twice: itself, and through torchrun.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    end_all([child for child in children_of(recursive=True) if child.pid != guard.pid], END_S)
    for process in multiprocessing.active_children():
        process.join(END_S)
    guard.kill()
    guard.wait()


def end_with_servers(part: str, message: str) -> None:
    """Stop this process when a part of one of its servers is gone; called when they are there.

    A server is a child, its parts are processes below. Without one of them it may go on listening
    and answer nothing.

    Args:
        part: How the names of parts begin.
        message: Says that a part is gone; goes to standard error, with the ids of the processes.
    """
    parts = {
        each: server
        for server in children_of()
        for each in children_of(server, recursive=True)
        if name_of(each).startswith(part)
    }
    if parts:
        stop = threading.Thread(target=_end_without, args=(parts, message), name="gem-servers")
        stop.daemon = True
        stop.start()


def _end_without(parts: Mapping[psutil.Process, psutil.Process], message: str) -> None:
    missing_since: float | None = None
    while missing_since is None or time.monotonic() - missing_since < PATIENCE_S:
        time.sleep(POLL_S)
        gone = [part for part, server in parts.items() if not alive(part) and alive(server)]
        missing_since = (missing_since or time.monotonic()) if gone else None
    pids = ", ".join(str(part.pid) for part in gone)
    reason = "its server would answer nothing any more, so the run stops"
    sys.stderr.write(f"{message} (process id {pids}); {reason}\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_S)
    # The main thread waits for something that no signal ends.
    end_all(children_of(recursive=True), END_S)
    os._exit(1)


def free_port() -> int:
    """Return a TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
