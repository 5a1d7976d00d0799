"""Threads of environments: used again, none waits for another, none keeps a process alive."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from gem.rollout.threads import DaemonThreads


def test_an_environment_that_hangs_does_not_keep_the_process_alive() -> None:
    code = (
        "import threading\nfrom gem.rollout.threads import DaemonThreads\n"
        "DaemonThreads().submit(threading.Event().wait)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0


def test_threads_of_environments_are_used_again() -> None:
    threads = DaemonThreads()
    found = {threads.submit(threading.get_ident).result(10)}
    for _ in range(50):
        found.add(threads.submit(threading.get_ident).result(10))
    # The next call may come before a thread has said that it is idle.
    assert len(found) < 10
    gate = threading.Event()
    waiting = [threads.submit(gate.wait, 20) for _ in range(20)]
    assert threads.submit(int).result(10) == 0  # none waits for another
    gate.set()
    assert all(future.result(10) for future in waiting)


def test_what_an_environment_raises_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        DaemonThreads().submit(lambda: 1 / 0).result(10)
