"""What runners share: attempts to run a program, and the limits of a process of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from gem.admission import Core
from gem.errors import BusyMachineError, UnreachableError
from gem_sandbox.base import Limits

_T = TypeVar("_T")

_ATTEMPTS = 3
_PAUSE_S = 0.2
_LOOK_S = 0.05


class NotSentError(OSError):
    """The sandbox had ended before the request was sent."""


def attempted(run: Callable[[Core], _T]) -> _T:
    """Call `run`; if the sandbox fails, call it again with a fresh sandbox.

    `run` acquires the core when its program begins. No program can end a sandbox, so a second
    failure is the machine's. A program that got too little CPU time runs again while nothing else
    does.

    Raises:
        BusyMachineError: The program got too little CPU time twice.
        UnreachableError: The sandbox failed twice while the program may have run, or ended
            `_ATTEMPTS` times before the request was sent.
    """
    failed = alone = False
    for _ in range(_ATTEMPTS):
        try:
            with Core(alone=alone) as core:
                return run(core)
        except NotSentError:
            continue
        except UnreachableError as error:
            if failed:
                raise
            failed, alone = True, isinstance(error, BusyMachineError)
            time.sleep(_PAUSE_S)
    raise UnreachableError(f"the sandbox ended {_ATTEMPTS} times before a program began")


def busy(cpu_s: float, seconds: float) -> BusyMachineError:
    """Return the error of a run that was given up."""
    return BusyMachineError(
        f"a program had a CPU for {cpu_s:.1f} s within {seconds:.0f} s, and did not sleep: too "
        "much else runs on this machine"
    )


class Measure(Protocol):
    """What `watch` needs of a clock; see `gem.workers.clock.Clock`."""

    cpu_s: float
    own_s: float
    wants: bool
    asleep: bool

    def look(self) -> None:
        """Measure the time since the last look."""


def watch(clock: Measure, limits: Limits, core: Core, ended: Callable[[float], object]) -> bool:
    """Watch a program until it ends or hits a limit of time; return whether it hit one.

    Where there is no /proc, own time is wall time.

    Args:
        clock: Has just begun to measure the program.
        limits: Its limits.
        core: Released when the program sleeps.
        ended: Waits for the end for so many seconds; returns whether it came.

    Raises:
        BusyMachineError: The program got too little CPU time.
    """
    began = time.monotonic()
    while not ended(_LOOK_S):
        clock.look()
        if clock.cpu_s >= limits.cpu_s or (clock.own_s >= limits.own_s and not clock.wants):
            return True
        if clock.asleep:
            core.release()
        seconds = time.monotonic() - began
        if seconds >= limits.wall_s:
            raise busy(clock.cpu_s, seconds)
    return False
