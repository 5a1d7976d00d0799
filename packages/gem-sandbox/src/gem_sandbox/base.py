"""The runner interface: `Runner`, `Session`, `Limits`, `Result`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from gem.errors import ConfigurationError
from gem.parameters import integer

ISOLATION = frozenset({"files", "network", "processes"})
"""What a runner can keep programs from; see `Runner.isolates`."""

OWN_TIMES = 2.0
"""Own time that a program may take, in multiples of its CPU time."""
WALL_TIMES = 20.0
"""Wall time after which a run is given up, in multiples of the CPU time."""
LEAST_WALL_S = 60.0

_LARGEST = (1 << 31) - 1
_LONGEST_S = 10**6


@dataclass(frozen=True)
class Limits:
    """Resource limits of one run; every runner enforces them as far as the platform allows.

    Raises:
        ConfigurationError: A limit is not a positive finite number, or a limit other than `cpu_s`
            is not an integer.
    """

    cpu_s: float = 10.0
    """Seconds of CPU time that the program may use, with everything it starts. A program may also
    take no more than `own_s`. Neither depends on what else the machine does."""
    memory_mb: int = 1024
    """Address space of the program, beyond that of a warm interpreter; of all its processes
    together if the runner can count them."""
    output_bytes: int = 1 << 20
    """Bytes kept of stdout, and as many of stderr; a program that writes more to one of them may be
    stopped. Raise it where long output is no error."""
    disk_mb: int = 64
    """Total size of the files that the program writes."""
    processes: int = 128
    """Processes and threads at a time. Each thread's stack counts as 8 MB of memory."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "cpu_s":
                number = isinstance(value, Real) and not isinstance(value, bool)
                if not number or not 0 < value <= _LONGEST_S:
                    raise ConfigurationError(
                        f"{name} must be a number of seconds above 0 and at most {_LONGEST_S}, "
                        f"got {value!r}"
                    )
            else:
                integer(name, value, 1, _LARGEST)

    @property
    def own_s(self) -> float:
        """Seconds that the program may take, without those in which it waits for a CPU: twice
        `cpu_s`. A program that sleeps, or waits for something that does not come, hits this limit.
        """
        return OWN_TIMES * self.cpu_s

    @property
    def wall_s(self) -> float:
        """Seconds after which a run that hit no limit is given up: the machine gave it no CPU. That
        is no outcome of the program; it runs again alone, and then `BusyMachineError` is raised."""
        return max(LEAST_WALL_S, WALL_TIMES * self.cpu_s)


@dataclass(frozen=True)
class Result:
    """The outcome of one run. A failing or killed program is a result, not an exception."""

    stdout: str
    """Decoded as UTF-8, undecodable bytes replaced; cut at the output limit, as stderr is."""
    stderr: str
    exit_code: int
    """Negative: the number of the signal that ended it."""
    seconds: float
    """Wall time from start to end."""
    limit_hit: str | None = None
    """`time`, `memory` or `output` when that limit ended or cut the run."""
    cpu_s: float | None = None
    """CPU time of the program and what it started; None if the runner does not measure it."""


class Session(ABC):
    """The programs of one episode, each starting in the state the previous one left.

    Variables, imports and files persist. What a failing program did before its error persists, as
    in an interactive interpreter; the variables of a killed program are lost. Several threads may
    use a session, one at a time.
    """

    @abstractmethod
    def run(self, code: str, stdin: str = "") -> Result:
        """Run the next program to its end or to a limit.

        If the state is lost (earlier programs ended the session and cannot be repeated), the
        result says so with exit code 1, and the session starts over empty.

        Raises:
            UnreachableError: The sandbox failed, through no fault of a program; the state before
                this program is kept.
        """

    async def arun(self, code: str, stdin: str = "") -> Result:
        """Like `run`, without blocking the event loop."""
        return await asyncio.to_thread(self.run, code, stdin)

    @abstractmethod
    def snapshot(self) -> bytes:
        """Return the state as a pickle; restore only pickles that your own processes made."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Continue from a `snapshot` of this or another session."""

    @abstractmethod
    def spawn(self) -> Session:
        """Return an independent session in the same state."""

    @abstractmethod
    def close(self) -> None:
        """End the session and its processes; a program run after that starts an empty session."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Runner(ABC):
    """Runs Python programs. Instances can be used from several threads at once, and pickled."""

    isolates: ClassVar[frozenset[str]] = frozenset()
    """What the program cannot reach, out of `files` (the user's), `network`, `processes` (seeing
    and signalling others). A runner that claims nothing is unsafe."""

    def __init_subclass__(cls) -> None:
        """Check the claim.

        Raises:
            ConfigurationError: `isolates` is not a subset of `ISOLATION`.
        """
        super().__init_subclass__()
        if not isinstance(cls.isolates, frozenset) or not cls.isolates <= ISOLATION:
            raise ConfigurationError(
                f"{cls.__name__}.isolates must be a frozenset of "
                f"{', '.join(map(repr, sorted(ISOLATION)))}, got {cls.isolates!r}"
            )

    @abstractmethod
    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:
        """Run a program to its end or to a limit.

        Raises:
            UnreachableError: The program could not be started, or got too little CPU time, through
                no fault of its own.
        """

    async def arun(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:
        """Like `run`, without blocking the event loop."""
        return await asyncio.to_thread(self.run, code, stdin, limits)

    def session(self, limits: Limits = Limits()) -> Session:
        """Return a session; the limits apply to each of its programs.

        Nothing is started before the first program. The programs share files and state with each
        other and with nothing else. The caller closes the session; it also ends with this process.

        Raises:
            ConfigurationError: This runner has no sessions.
        """
        raise ConfigurationError(
            f"{type(self).__name__} keeps nothing between programs; sessions need runner='bwrap'"
        )
