"""Runs of the reference trainer in processes that are forked instead of started anew.

A small run spends two fifths of its CPU time on imports. A sweep pays for them once: it loads what
the runs need, forks a process for each run, which forks the trainer. Only on Linux: elsewhere
libraries do not survive a fork.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import BinaryIO, TypeVar

T = TypeVar("T")

POSSIBLE = sys.platform == "linux"
"""Whether processes can be forked here."""
TRAINER = "gem_bench.reference"
"""Module of the trainer that can be forked, as in `python -m gem_bench.reference`."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SET_PDEATHSIG = 1
"""Of prctl(2)."""
_LOADED = ("gem_bench.__main__", "gem_bench.reference_command", "gem_bench.run", "gem_cpu.small")


class Forked:
    """A function in a forked process, with what is used here of `subprocess.Popen`."""

    def __init__(
        self,
        function: Callable[[Sequence[str]], int],
        argv: Sequence[str],
        *,
        log: BinaryIO,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Fork a process in a session of its own, without input.

        Args:
            function: Its result is the exit status.
            argv: What it is called with.
            log: File for standard output and error.
            env: All environment variables; None keeps those of this process.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        body = (function, argv, log.fileno(), env)
        self._process = multiprocessing.get_context("fork").Process(target=_body, args=body)
        # A new process begins with the signal handlers of this one, which may do nothing. A signal
        # that comes before it sets its own must wait.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        pid = self._process.ident
        assert pid is not None  # it has been started
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        """Exit status, or the negated signal; None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self.returncode

    def wait(self) -> int | None:
        """Wait for the end; return `returncode`."""
        self._process.join()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)


def load() -> bool:
    """Import what runs of the reference need, without starting a thread that a fork would miss.

    Returns:
        Whether runs can be forked: not without torch or gem-cpu, nor on another system than Linux.
        A run that is started anew says what is missing, if it needs it.
    """
    if not POSSIBLE:
        return False
    try:
        for name in _LOADED:
            importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def apart(function: Callable[..., T], *args: object) -> T:
    """Call a function in a forked process: what it starts here would not survive the next fork.

    The process ends with this one, however this one ends.
    """
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context, _end_with, (os.getpid(),)) as one:
        return one.submit(function, *args).result()


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends.

    It would wait for work for ever otherwise, with the parent's open files and locks: it has both
    ends of the pipe that work comes through.
    """
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _body(
    function: Callable[[Sequence[str]], int],
    argv: Sequence[str],
    log: int,
    env: Mapping[str, str] | None,
) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
        _set_threads()
    status = function(argv)
    atexit._run_exitfuncs()
    sys.exit(status)


def _set_threads() -> None:
    """Set torch's threads as it would at its import."""
    import torch
    from tqdm import tqdm

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads:
        torch.set_num_threads(int(threads))
    # Otherwise shared with the parent's other children; one that is killed while it has the lock
    # would stop them all.
    tqdm.set_lock(multiprocessing.get_context("fork").RLock())
