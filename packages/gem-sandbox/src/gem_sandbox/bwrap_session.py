"""Sessions of the `bwrap` runner, seen from outside; `inside.session` is the other side.

The session keeps the programs so far. If the process to fork is gone, it runs them again in a
fresh sandbox and compares their output.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import secrets
import threading
from collections.abc import Callable
from typing import NamedTuple

from gem.admission import Core
from gem_sandbox.base import Limits, Result, Session
from gem_sandbox.bwrap_server import Server, Step
from gem_sandbox.inside.protocol import GONE
from gem_sandbox.running import attempted
from gem_sandbox.streams import encoded

# CPU time that the programs of a lost session may use when they run again.
_REPEAT_S = 60.0
_LOST = "the session has ended: what earlier programs did is lost, and this one was not run\n"
# Memory addresses in output differ between sandboxes; the digest ignores them.
_ADDRESS = re.compile(rb"0x[0-9a-f]+")

# All sessions draw the same random numbers, so that an episode can be played again.
_SEED = 0


class _Program(NamedTuple):
    """A program that was not killed, and the digest of its output."""

    source: bytes
    stdin: bytes
    came: bytes


class _Place:
    """The namespace, in a sandbox, that holds the session's processes at the moment."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.key = secrets.randbits(63) | 1
        self.state = 0
        self.states = 0
        self.needed: set[int] = set()


class BwrapSession(Session):
    """A session of `BwrapRunner`; see `BwrapRunner.session`."""

    def __init__(self, connect: Callable[[], Server], limits: Limits) -> None:
        """Store the parameters; nothing is started.

        Args:
            connect: Returns a running sandbox.
            limits: Limits of each program.
        """
        self._connect = connect
        self._limits = limits
        self._lock = threading.Lock()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._programs: tuple[_Program, ...] = ()
        self._place: _Place | None = None

    def run(self, code: str, stdin: str = "") -> Result:
        """Run the next program; see `Session.run`."""
        source, given = encoded(code), encoded(stdin)
        with self._lock:
            return attempted(lambda core: self._run(source, given, core))

    def _run(self, source: bytes, stdin: bytes, core: Core) -> Result:
        """Run a program in the present state; if the state is lost, return the result `_LOST`."""
        # The first attempt may find that the server ended the session, or the session itself.
        for _ in range(2):
            if self._place is not None and self._place.server.ended():
                self._leave()
            if self._place is None and not self._repeat(core):
                break
            result = self._step(source, stdin, core)
            if result is not None:
                return result
        self._leave()
        self._begin_anew()
        return Result("", _LOST, 1, 0.0)

    def _step(self, source: bytes, stdin: bytes, core: Core) -> Result | None:
        """Run a program in the current place; return None if the state to fork is gone."""
        place = self._place
        assert place is not None
        target = place.states + 1
        before = len(self._programs)
        step = Step(place.key, _SEED, place.state, target, before, place.state in place.needed)
        try:
            result, state = place.server.run(source, stdin, self._limits, 0, core, step)
        except BaseException:  # whether the program has run is not known, nor what its state is
            self._leave()
            raise
        if state == GONE:
            self._leave()
            if result.exit_code == 0:
                return None
        elif state == target:
            place.state = place.states = target
            self._programs += (_Program(source, stdin, _came(result)),)
        return result

    def _repeat(self, core: Core) -> bool:
        """Rebuild the present state by running all programs again; return whether it succeeded.

        It fails if a program's output differs this time, or if the programs use too much CPU time.
        """
        programs, left_s = self._programs, _REPEAT_S
        self._place = _Place(self._connect())
        self._programs = ()
        try:
            for program in programs:
                result = self._step(program.source, program.stdin, core)
                if result is None or _came(result) != program.came or self._place is None:
                    return False
                left_s -= result.cpu_s or 0.0
                if left_s < 0:
                    return False
            return True
        finally:
            self._programs = programs

    def _leave(self) -> None:
        place, self._place = self._place, None
        if place is not None and not place.server.ended():
            place.server.end_session(place.key)

    def snapshot(self) -> bytes:
        """Mark the present state's process to be kept; see `Session.snapshot`."""
        with self._lock:
            place = self._place
            if place is None:
                where = (0, 0)
            else:
                place.needed.add(place.state)
                where = (place.key, place.state)
            return pickle.dumps((self._programs, where), protocol=5)

    def restore(self, state: bytes) -> None:
        """Continue from a kept process, if it is in this place; see `Session.restore`."""
        programs, (key, number) = pickle.loads(state)
        with self._lock:
            if self._place is None or key != self._place.key:
                self._leave()
            else:
                self._place.state = number
            self._programs = programs

    def spawn(self) -> Session:
        """Return a session that repeats the programs of this one; see `Session.spawn`."""
        child = BwrapSession(self._connect, self._limits)
        child.restore(self.snapshot())
        return child

    def close(self) -> None:
        """End all processes of the session; see `Session.close`."""
        with self._lock:
            self._leave()
            self._begin_anew()

    def __del__(self) -> None:
        # Attributes are missing if `__init__` did not finish.
        if "_place" in self.__dict__:
            self._leave()


def _came(result: Result) -> bytes:
    """Return a digest of a program's output and exit."""
    text = encoded(f"{result.exit_code} {result.limit_hit} {result.stdout}\0{result.stderr}")
    return hashlib.sha256(_ADDRESS.sub(b"0x", text)).digest()
