"""Starts a trainer's launcher and terminates all of its descendants, daemons included.

Launchers such as Ray's start processes that leave the launcher's process group or outlive it. So a
family of processes is recognised by session, by descent (polled while the launcher runs, because an
orphan loses its parent) and by a marker variable that every child inherits. Without `/proc`, only
by process group and descent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from gem_bench.forks import TRAINER, Forked

MARKER = "GEM_RUN_ID"
_KILL_S = 10.0
"""How long to repeat SIGKILL: a process that waits for a dead disk cannot be killed."""


@dataclass(frozen=True)
class Process:
    """A running process; the start time distinguishes it from a later one with the same pid."""

    pid: int
    started: str
    parent: int = field(compare=False)
    """Changes when the parent ends."""
    session: int = field(compare=False)
    """Session, or process group where only that is known."""


class Family:
    """A launcher and all processes that it started."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: BinaryIO,
        run_id: str,
        forked: Callable[[Sequence[str]], int] | None = None,
    ) -> None:
        """Start the launcher in its own session, without input.

        Args:
            argv: Command line.
            env: All environment variables.
            log: File for standard output and error.
            run_id: Tells this family from others; the value of `MARKER`.
            forked: The launcher's `main`, to be called in a forked process instead, with what
                follows the module's name in the command line.

        Raises:
            OSError: The launcher cannot be started.
        """
        self._run_id = run_id
        # SPT_NOENV: programs that set their process title (Ray, vLLM) otherwise overwrite
        # /proc/<pid>/environ, and with it the marker.
        marked = {**env, MARKER: run_id, "SPT_NOENV": "1"}
        self._known: set[Process] = set()
        self.launcher: Forked | subprocess.Popen[bytes]
        if forked is not None:
            arguments = argv[argv.index(TRAINER) + 1 :]
            self.launcher = Forked(forked, arguments, log=log, env=marked)
            self.note()
            return
        self.launcher = subprocess.Popen(
            argv,
            env=marked,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.note()

    def note(self) -> None:
        """Record the current members of the family; call this periodically."""
        self._members()

    def alive(self) -> list[int]:
        """Return the pids of the family's running processes, the launcher included."""
        members = self._members()
        return members + [pid for pid in of_run(self._run_id) if pid not in members]

    def end(self, *, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> int:
        """Terminate all processes: SIGTERM, then SIGKILL.

        Args:
            grace_s: Seconds between SIGTERM and SIGKILL.
            hurry: Polled; true ends the wait early.

        Returns:
            Number of processes that ran at the time of the call.
        """
        there = len(self.alive())
        self._signal(signal.SIGTERM)
        self._wait(grace_s, hurry)
        # A process may start another one before it dies: repeat.
        deadline = time.monotonic() + _KILL_S
        while self.alive() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            self._wait(0.2, lambda: False)
        return there

    def _wait(self, seconds: float, hurry: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not hurry():
            self.launcher.poll()  # reaps the launcher, which would stay a zombie otherwise
            if not self.alive():
                return
            time.sleep(0.05)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _members(self) -> list[int]:
        """Return the running processes that are family by session, by descent or as recorded."""
        table = {p.pid: p for p in _processes()}
        members: set[int] = set()
        for process in table.values():
            line = [process]
            while line[-1].parent in table and line[-1].parent not in (0, line[-1].pid):
                line.append(table[line[-1].parent])
            if any(self._is_family(p) for p in line):
                members.add(process.pid)
        self._known |= {table[pid] for pid in members}
        return sorted(members)

    def _is_family(self, p: Process) -> bool:
        return self.launcher.pid in (p.pid, p.session) or p in self._known


def of_run(run_id: str) -> list[int]:
    """Return the pids of the running processes that have a run's marker; none without `/proc`."""
    return [p.pid for p in _processes() if _has_in_environment(p.pid, f"{MARKER}={run_id}")]


def name_of(pid: int) -> str:
    """Return the name of a process; empty if it is gone or there is no `/proc`."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _processes() -> Iterator[Process]:
    """Yield all processes that are not zombies."""
    if not Path("/proc/self/stat").exists():
        yield from _processes_by_ps()
        return
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            stat = Path(entry.path, "stat").read_text(errors="replace")
        except OSError:  # the process ended meanwhile
            continue
        # The second field, the command in brackets, may itself contain spaces and brackets.
        state, parent, _, session, *rest = stat.rpartition(")")[2].split()
        if state not in "ZX":
            yield Process(int(entry.name), rest[15], int(parent), int(session))


def _processes_by_ps() -> Iterator[Process]:
    command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,lstart="]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in answer.stdout.splitlines():
        pid, parent, group, state, started = line.split(maxsplit=4)
        if not state.startswith("Z"):
            yield Process(int(pid), started, int(parent), int(group))


def _has_in_environment(pid: int, setting: str) -> bool:
    try:
        return setting.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # no /proc, another user's process, or it ended meanwhile
        return False
