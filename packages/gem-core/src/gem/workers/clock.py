"""Measures what a program, with everything it started, has used of the machine; reads /proc.

Neither measure depends on what else the machine does: CPU time, and the program's own time, a clock
that stands still while the program waits for a CPU.
"""

from __future__ import annotations

import os
import time

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Clock ticks are coarse: a process born this much before the program began is the program's.
_EARLY_S = 0.02
# Most own time between two looks. After a longer one the looker had no CPU, or the machine paused.
_LONGEST_S = 1.0
# A program that was active for less than this share of the time is asleep.
_ACTIVE = 0.1
# States of a task that has ended.
_ENDED = ("Z", "X", "")


class _Process:
    """A process as one look found it."""

    def __init__(self, born: float, own: int, children: int) -> None:
        self.born = born
        """Seconds since boot."""
        self.own = own
        """CPU time in clock ticks."""
        self.children = children
        """CPU time of children that have ended and that it waited for, in clock ticks."""
        self.threads: dict[int, _Thread] = {}


class _Thread:
    def __init__(self, wants: bool, ran: int, waited: int) -> None:
        self.wants = wants
        """Whether it has a CPU or waits for one."""
        self.ran = ran
        """CPU time in nanoseconds."""
        self.waited = waited
        """Time of waiting for a CPU in nanoseconds."""


class Clock:
    """Measures one program. Its user calls `look` now and then.

    The own time is exact while one thread at a time has something to do. Otherwise a look decides
    by whether a thread could have run in that moment.

    Attributes:
        cpu_s: CPU time of all processes, of ended ones too. Missing is only a process that lived
            between two looks and that its parent did not wait for.
        own_s: Time in which the program ran or waited for something else than a CPU.
        wants: Whether it had a CPU, or waited for one, at the last look.
        asleep: Whether it did hardly anything between the last two looks.
        pids: Its processes at the last look.
    """

    def __init__(self, root: int, spent_s: float | None = 0.0, proc: int | None = None) -> None:
        """Begin to measure.

        Args:
            root: The program's first process.
            spent_s: CPU time that the root had used before; None: the root and its children so far
                are not the program, which are only processes that are born from now on.
            proc: Descriptor of /proc; None: it is opened by name.
        """
        self.cpu_s = self.own_s = 0.0
        self.wants = self.asleep = False
        self.pids = [root]
        self._spent = None if spent_s is None else spent_s * _TICKS
        self._proc = proc
        self._at = time.monotonic()
        self._began = time.clock_gettime(_BOOT) - _EARLY_S
        self._found: dict[int, _Process] = {}

    def look(self) -> None:
        """Measure the time since the last look."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        before, self._found = self._found, self._tree(self.pids[0])
        self.pids = list(self._found) or self.pids[:1]
        used = self._used(before) / _TICKS
        waited = self._waited(before, passed, used)
        self.cpu_s += used
        self.own_s += min(passed - waited, _LONGEST_S)
        threads = [each for process in self._found.values() for each in process.threads.values()]
        self.wants = any(thread.wants for thread in threads)
        self.asleep = not self.wants and used + waited < _ACTIVE * passed

    def _used(self, before: dict[int, _Process]) -> float:
        """Return the CPU time since the look before, in clock ticks."""
        used = inherited = 0.0
        for pid, now in self._found.items():
            old = before.get(pid)
            if old is not None and old.born == now.born:
                inherited += now.children - old.children
                used += now.own - old.own + now.children - old.children
            elif pid == self.pids[0] and self._spent is not None:
                used += max(0.0, now.own + now.children - self._spent)
            elif now.born >= self._began:
                used += now.own + now.children
        # What ended was counted while it lived. Its parent has its time now, unless it ignores it.
        ended = (old for pid, old in before.items() if pid not in self._found)
        lost = sum(old.own + old.children for old in ended)
        return used - min(lost, inherited)

    def _waited(self, before: dict[int, _Process], passed: float, used: float) -> float:
        """Return the seconds since the look before in which it could have run and had no CPU."""
        active, exact, wants, waited = 0, True, False, 0
        for pid, process in self._found.items():
            known = before[pid].threads if pid in before else {}
            fresh = process.born >= self._began
            for number, now in process.threads.items():
                old = known.get(number) or (_Thread(False, 0, 0) if fresh else None)
                if old is None:
                    exact = exact and not now.wants
                    wants = wants or now.wants
                elif now.wants or now.ran != old.ran or now.waited != old.waited:
                    active += 1
                    waited += now.waited - old.waited
                    wants = wants or (now.wants and number in known)
                    exact = exact and now.waited >= 0
        if exact and active <= 1:
            return waited / 1e9
        return max(0.0, passed - used) if wants else 0.0

    def _tree(self, root: int) -> dict[int, _Process]:
        """Return the program's processes: those that live, and ended ones until they are reaped."""
        found: dict[int, _Process] = {}
        pids = [root]
        for pid in pids:
            process, state = self._process(pid)
            if process is None:
                continue
            found[pid] = process
            try:
                folder = os.open(self._path(f"{pid}/task"), os.O_RDONLY, dir_fd=self._proc)
                try:
                    threads = list(map(int, os.listdir(folder)))
                finally:
                    os.close(folder)
            except OSError:
                continue
            for thread in threads:
                task = f"{pid}/task/{thread}"
                # An ended process is a zombie until its parent waits for it. So is the first thread
                # that has ended before the others, which go on.
                if len(threads) > 1:
                    state = self._read(f"{task}/stat").rpartition(")")[2][1:2]
                if state in _ENDED:
                    continue
                ran, waited, *_ = [*map(int, self._read(f"{task}/schedstat").split()), -1, -1]
                process.threads[thread] = _Thread(state == "R", ran, waited)
                pids.extend(map(int, self._read(f"{task}/children").split()))
        return found

    def _process(self, pid: int) -> tuple[_Process | None, str]:
        fields = self._read(f"{pid}/stat").rpartition(")")[2].split()
        if not fields:
            return None, ""
        user, system, child_user, child_system = map(int, fields[11:15])
        born = int(fields[19]) / _TICKS
        return _Process(born, user + system, child_user + child_system), fields[0]

    def _path(self, path: str) -> str:
        return path if self._proc is not None else f"/proc/{path}"

    def _read(self, path: str) -> str:
        """Return the content of a file of /proc; "" if the process has ended."""
        try:
            file = os.open(self._path(path), os.O_RDONLY, dir_fd=self._proc)
            # A program may give its processes any bytes as their name.
            with open(file, encoding="latin-1") as text:
                return text.read()
        except OSError:
            return ""
