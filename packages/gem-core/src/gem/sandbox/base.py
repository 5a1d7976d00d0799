"""The executor interface: a program and its limits in, what it did out."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import ClassVar

from gem.errors import ConfigurationError

_RANGE = range(1, 1 << 31)
_LONGEST_S = 10**6


@dataclass(frozen=True)
class Limits:
    """What one run may use; every executor enforces all of them where the platform lets it.

    Raises:
        ConfigurationError: A limit is not a positive finite number, or, of all but `wall_s`, not
            an integer.
    """

    wall_s: float = 10.0
    """Seconds until the program and everything it started is killed."""
    memory_mb: int = 1024
    """Address space of the program, or of what it takes on top of a warm interpreter; all of its
    processes together where the executor can count them."""
    output_bytes: int = 1 << 20
    """Bytes kept of standard output, and as many of standard error; a program that writes more to
    one of them may be stopped. Pass more where long output is no error."""
    disk_mb: int = 64
    """Files that the program writes."""
    processes: int = 128
    """Processes and threads at a time. The stacks of threads count as memory, 8 MB each."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "wall_s":
                number = isinstance(value, Real) and not isinstance(value, bool)
                if not number or not 0 < value <= _LONGEST_S:
                    raise ConfigurationError(
                        f"{name} must be a number of seconds above 0 and at most {_LONGEST_S}, "
                        f"got {value!r}"
                    )
            elif isinstance(value, bool) or not isinstance(value, Integral) or value not in _RANGE:
                raise ConfigurationError(
                    f"{name} must be an integer from {_RANGE[0]} to {_RANGE[-1]}, got {value!r}"
                )


@dataclass(frozen=True)
class Result:
    """What a program did. A failing or killed program is a result, not an exception."""

    stdout: str
    """Decoded as UTF-8, undecodable bytes replaced; cut at the output limit, as stderr is."""
    stderr: str
    exit_code: int
    """Negative: the number of the signal that ended it."""
    seconds: float
    """Wall time from start to end."""
    limit_hit: str | None = None
    """`time`, `memory` or `output` when that limit ended or cut the run."""


class Session(ABC):
    """Programs of one episode, each of which goes on where the one before it ended.

    Variables, imports and files stay. A program that fails keeps what it did up to there, as in an
    interactive interpreter; of one that is killed, for a limit or by itself, no variable stays.
    Several threads may use it, one after the other.
    """

    @abstractmethod
    def run(self, code: str, stdin: str = "") -> Result:
        """Run the next program to its end or to a limit.

        Where what earlier programs did is lost, as when they have ended the session and cannot be
        repeated, the result says so, with exit code 1, and the session begins from nothing.

        Raises:
            UnreachableError: The program could not be run for a reason that no program has a part
                in; what was before it stands.
        """

    async def arun(self, code: str, stdin: str = "") -> Result:
        """Like `run`, without blocking the event loop."""
        return await asyncio.to_thread(self.run, code, stdin)

    @abstractmethod
    def snapshot(self) -> bytes:
        """Return the state; a pickle, to be restored only from what your own processes made."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Go on from `snapshot`, this session's own or that of another one."""

    @abstractmethod
    def spawn(self) -> Session:
        """Return an independent session in the same state."""

    @abstractmethod
    def close(self) -> None:
        """End it and all that it holds; a program after that begins from nothing."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Executor(ABC):
    """Runs Python programs. Instances can be used from several threads at once, and pickled."""

    isolates: ClassVar[frozenset[str]] = frozenset()
    """What the program is kept from, out of `files` (reading and writing the user's),
    `network`, `processes` (seeing and signalling others)."""

    @abstractmethod
    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:
        """Run a program to its end or to a limit.

        Raises:
            UnreachableError: The program could not be started at all; no fault of the program.
        """

    async def arun(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:
        """Like `run`, without blocking the event loop."""
        return await asyncio.to_thread(self.run, code, stdin, limits)

    def session(self, limits: Limits = Limits()) -> Session:
        """Begin a session, the programs of which have these limits, one by one.

        Nothing is started before the first program. All programs of a session share its files and
        what they leave behind; nothing else sees them. It is to be closed; it ends with this
        process in any case.

        Raises:
            ConfigurationError: This executor keeps nothing between programs.
        """
        raise ConfigurationError(
            f"{type(self).__name__} keeps nothing between programs; sessions need "
            "executor='bwrap' or 'monty'"
        )
