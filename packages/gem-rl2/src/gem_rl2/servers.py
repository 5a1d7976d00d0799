"""RL2's servers end with the trainer that started them, and the trainer with its servers.

RL2 starts SGLang's router and servers as processes of the trainer's. Its release never ends them,
and waits for them at its exit for ever; if a part of a server dies, the rest goes on listening and
answers nothing.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util  # registers its exit handler when it is imported
import os
import signal
import subprocess
import sys
import threading
import time

import psutil

from gem.training.processes import alive, children_of, end_all, end_group_after_me, name_of

END_S = 5.0
"""How long servers have to end in good order."""
POLL_S = 2.0
PATIENCE_S = 10.0
"""How long a server may go on without one of its parts: when it ends, its parts end first."""
STOP_S = 15.0
"""How long the trainer has to stop by itself."""
PART = "sglang"
"""How the names of the processes begin that a server consists of."""


def end_at_exit() -> None:
    """End the servers with this process, however it ends.

    Registered after multiprocessing's own exit handler, which joins them, and so called before it.
    """
    atexit.register(_end, end_group_after_me())
    if threading.current_thread() is threading.main_thread():
        # torchrun ends the other processes with SIGTERM when one has failed.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        # Servers are forked, and the router never returns to Python to see a signal.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _end(guard: subprocess.Popen[bytes] | None = None) -> None:
    if threading.current_thread() is threading.main_thread():
        # Who ends a whole process group asks twice: itself, and through torchrun.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    children = children_of(recursive=True)
    end_all([child for child in children if guard is None or child.pid != guard.pid], END_S)
    for process in multiprocessing.active_children():
        process.join(END_S)
    if guard is not None:
        guard.kill()
        guard.wait()


def watch() -> None:
    """Stop this process when a part of its servers is gone, in a thread; to be called when they
    are there."""
    parts = _parts()
    if parts:
        threading.Thread(target=_watch, args=(parts,), name="gem-servers", daemon=True).start()


def _parts() -> dict[psutil.Process, psutil.Process]:
    """The parts of the servers of this process, each with its server."""
    return {
        part: server
        for server in children_of()
        for part in children_of(server, recursive=True)
        if name_of(part).startswith(PART)
    }


def _watch(parts: dict[psutil.Process, psutil.Process]) -> None:
    missing_since: float | None = None
    while True:
        time.sleep(POLL_S)
        gone = [part for part, server in parts.items() if not alive(part) and alive(server)]
        if not gone:
            missing_since = None
            continue
        missing_since = missing_since or time.monotonic()
        if time.monotonic() - missing_since >= PATIENCE_S:
            break
    pids = ", ".join(str(part.pid) for part in gone)
    sys.stderr.write(
        f"gem-rl2: a process of SGLang has ended (process id {pids}); its server would answer "
        "nothing any more, so the run stops\n"
    )
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_S)
    # The main thread waits for something that no signal ends.
    _end()
    os._exit(1)
