"""Start a trainer's launcher and end everything it started, daemons included.

Launchers such as ray's start processes that leave the launcher's process group or outlive it. A
family of processes is therefore recognised by three things: its session, descent (noted while the
launcher runs, because an orphan's parent is lost), and a marker in the environment, which every
child inherits. Without `/proc` there are only process group and descent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

MARKER = "GEM_RUN_ID"
_KILL_S = 10.0
"""How long to insist on SIGKILL: a process that waits for a dead disk cannot be killed."""


@dataclass(frozen=True)
class Process:
    """A running process; its start tells it from a later one with the same number."""

    pid: int
    started: str
    parent: int = field(compare=False)
    """Changes when the parent ends."""
    session: int = field(compare=False)
    """Session, or process group where only that is known."""


class Family:
    """A launcher and all that it started."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], log: BinaryIO, cwd: Path | None = None
    ) -> None:
        """Start the launcher in a session of its own, without input.

        Args:
            argv: Command line.
            env: Its whole environment.
            log: Takes standard output and error.
            cwd: Working folder; None is this process's.

        Raises:
            OSError: It cannot be started.
        """
        self._marker = uuid.uuid4().hex
        # Programs that rename themselves (ray, vLLM) otherwise overwrite what /proc shows of their
        # environment, and with it the marker.
        marked = {**env, MARKER: self._marker, "SPT_NOENV": "1"}
        self._known: set[Process] = set()
        self.launcher = subprocess.Popen(
            argv,
            env=marked,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.note()

    def note(self) -> None:
        """Note who belongs to the family now; call it from time to time."""
        self._members()

    def alive(self) -> list[int]:
        """Return the processes of the family that still run, the launcher among them."""
        members = self._members()
        return members + [
            p.pid
            for p in _processes()
            if p.pid not in members and _has_in_environment(p.pid, f"{MARKER}={self._marker}")
        ]

    def end(self, *, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> int:
        """Ask all to end (SIGTERM), then make them (SIGKILL).

        Args:
            grace_s: Seconds to end in good order.
            hurry: Asked again and again; true ends the wait early.

        Returns:
            How many processes were still there when it was called.
        """
        there = len(self.alive())
        self._signal(signal.SIGTERM)
        self._wait(grace_s, hurry)
        # A process that is being killed may still start another one: look again.
        deadline = time.monotonic() + _KILL_S
        while self.alive() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            self._wait(0.2, lambda: False)
        return there

    def _wait(self, seconds: float, hurry: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not hurry():
            self.launcher.poll()  # collects the launcher, which else would stay as a zombie
            if not self.alive():
                return
            time.sleep(0.05)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _members(self) -> list[int]:
        """The running processes that are family by session, descent or memory."""
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


def _processes() -> Iterator[Process]:
    """All processes that are not zombies."""
    if not Path("/proc/self/stat").exists():
        yield from _processes_by_ps()
        return
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            stat = Path(entry.path, "stat").read_text(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        # The second field, the command in brackets, may itself hold spaces and brackets.
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
    except OSError:  # no /proc, another user's, or it ended meanwhile
        return False
