"""The servers: warm interpreters inside the sandbox, of which every program is a fork.

A server is a process without threads. It runs no program itself and reads nothing from programs.
The runner sends one request per program, with descriptors attached: the report's socket, the
source, stdin, stdout, stderr. The answer is a report of the program's end, or an error text. A
spare (a waiting fork) takes the request of a program without a session. The server takes those of
sessions and passes them on to the session's keeper, which runs no program either.

Imports are in every fork, and large processes fork slowly: keep them few.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import resource
import select
import sys
import time

from . import confine, prepared, program, session, spare
from .beneath import beneath, hide
from .clock import Clock
from .protocol import (
    ANSWER,
    ASLEEP,
    BUSY,
    ENDED,
    FAILED,
    GONE,
    REPORT,
    REQUEST,
    STEP,
    TAKEN,
    failure,
    pair,
    receive,
    send,
)
from .usage import Usage, gather

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

_MB = 1 << 20
_THREAD_STACK_MB = 8
_WATCH_S = 0.05
_NEVER = float("inf")
# Number of spares. The server makes them when it is idle, or when none is left.
SPARES = 4
# Time for a keeper to stop a program; after that the server kills the session. Long, for the keeper
# may have to wait for a CPU; the program is stopped at once.
_STOP_S = 30.0
# While no process can be created, requests wait this long for running programs to end.
_FULL_S = 20.0
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC)


class _Call:
    """A running program, or a spare, which waits for one."""

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid
        # Descriptor for the report; -1 for a spare.
        self.report = -1
        self.began = self.deadline = _NEVER
        self.clock: Clock | None = None
        # Limits: CPU time, own time, bytes.
        self.cpu_s = self.own_s = 0.0
        self.memory = 0
        # CPU time at the begin; of all its processes at the end, where the kernel knows it.
        self.spent_s = 0.0
        self.used_s = 0.0
        self.slept = False
        self.limit_hit = b""
        self.stopping = False
        self.session: _Session | None = None


class _Session:
    """A session: its keeper's process and channel, and the call that it runs, if any."""

    def __init__(self, key: int, pid: int, channel: _socket.socket) -> None:
        self.key = key
        self.pid = pid
        self.channel = channel
        self.call: _Call | None = None
        self.used = time.monotonic()
        # Killed, but not reaped yet.
        self.ending = False


def main() -> None:
    """Serve until the runner hangs up.

    Arguments: number of user ids for programs (0: only one), most idle sessions, seconds that a
    session may be idle, request descriptors (one per server, and one for sessions), modules.

    Forks one server per import level: the first has imported nothing, the second `COMMON`, each
    further one a module more. The last one has all sessions, as their later programs may import
    any of the modules.
    """
    uids, sessions, idle_s, descriptors, *modules = sys.argv[1:]
    # Packages are in a folder of their own; those of the interpreter are hidden.
    apart = ("/sandbox", "/site-packages", "/dist-packages")
    sys.path[:] = [path for path in sys.path if not path.endswith(apart)]
    sockets = [_socket.socket(fileno=int(descriptor)) for descriptor in descriptors.split(",")]
    *requests, steps = sockets
    # Each running program and each session holds descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # The memory limit is the stack's.
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (most, most))
    namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    confine.keep_capabilities()
    confine.limit_thread_stacks(_THREAD_STACK_MB * _MB)
    program.make_streams()
    filters = confine.filters()
    confine.Filter(filters[0]).install()
    level = 0
    while level < len(requests) - 1 and os.fork() == 0:
        prepared.load([prepared.COMMON, *modules][level])
        level += 1
    prepared.warm_up()
    kept = [requests[level], steps] if level == len(requests) - 1 else [requests[level]]
    for other in sockets:
        if other not in kept:
            other.close()
    # A garbage collection in a fork would write to, and so copy, pages shared with the server.
    hide()
    program.remember()
    gc.collect()
    gc.disable()
    gc.freeze()
    gather(proc)
    server = _Server(kept, int(uids), namespace, proc, filters[1])
    server.most, server.idle_s = int(sessions), float(idle_s)
    server.serve()


class _Server:
    def __init__(
        self, sockets: list[_socket.socket], uids: int, namespace: int, proc: int, filter: bytes
    ) -> None:
        self.requests, *self.steps = sockets
        self.namespace = namespace
        self.usage = Usage(proc)
        self.taken, theirs = pair()
        self.taken.setblocking(False)
        self.origin = spare.Origin(self.requests, theirs, uids, self.usage.size, filter)
        self.poll = select.poll()
        # By descriptor: what to do at its events; true ends the server.
        self.handlers: dict[int, Callable[[], object]] = {}
        # By report.
        self.running: dict[int, _Call] = {}
        # Spares by number, sessions by key.
        self.spares: dict[int, _Call] = {}
        self.sessions: dict[int, _Session] = {}
        # Descriptors to be closed.
        self.done: list[int] = []
        self.started = 0
        self.most, self.idle_s = 0, 0.0
        # Times: of the next `_watch`, of the next memory count, until which no spare is made.
        self.alarm, self.count, self.pause = _NEVER, 0.0, 0.0
        # Time since which no process could be created.
        self.full_since = _NEVER
        confine.hide()

    @beneath
    def serve(self) -> None:
        # Mask 0: only hang-up is wanted here; spares read the requests.
        self._expect(self.requests.fileno(), lambda: True, 0)
        self._expect(self.taken.fileno(), self._hear)
        for steps in self.steps:
            self._expect(steps.fileno(), self._accept)
        while True:
            now = time.monotonic()
            lacking = len(self.spares) < SPARES and now >= self.pause
            patience = None
            if lacking or self.alarm < _NEVER:
                patience = 0 if lacking else max(0.0, self.alarm - now) * 1000 + 0.5
            events = self.poll.poll(patience)
            if lacking and not (events and self.spares):
                self._make_spare()
            for descriptor, _ in events:
                handle = self.handlers.get(descriptor)
                if handle is not None and handle():
                    return
            # Close only now: later events of this poll may still name these descriptors.
            while self.done:
                os.close(self.done.pop())
            if time.monotonic() >= self.alarm:
                self._watch()

    def _expect(
        self, descriptor: int, handle: Callable[[], object], events: int = select.POLLIN
    ) -> None:
        self.handlers[descriptor] = handle
        self.poll.register(descriptor, events)

    def _leave(self, descriptor: int) -> None:
        del self.handlers[descriptor]
        self.poll.unregister(descriptor)
        self.done.append(descriptor)

    def _watch(self) -> None:
        """Kill calls over a limit, end idle sessions; set the next alarm."""
        now = time.monotonic()
        self.alarm = self.pause if now < self.pause else _NEVER
        count = now >= self.count
        for call in self.running.values():
            if count and now - call.began >= _WATCH_S and not call.limit_hit:
                self._measure(call)
            if now >= call.deadline:
                self._kill(call, BUSY)
            self.alarm = min(self.alarm, call.deadline)
        if count:
            # Measuring takes at most a tenth of the server's time.
            self.count = now + max(_WATCH_S, 10 * (time.monotonic() - now))
        if self.running:
            self.alarm = min(self.alarm, self.count)
        for waiting in self.sessions.values():
            if waiting.call is None and now - waiting.used > self.idle_s:
                self._end(waiting)
            elif waiting.call is None:
                self.alarm = min(self.alarm, waiting.used + self.idle_s)

    def _measure(self, call: _Call) -> None:
        """Kill a call over its limit of time or memory; tell the runner of one that sleeps."""
        clock = call.clock
        assert clock is not None
        clock.look()
        # One that wants a CPU shows soon what it does with it: it ends, uses it, or sleeps again.
        if clock.cpu_s >= call.cpu_s or (clock.own_s >= call.own_s and not clock.wants):
            self._kill(call, b"time")
        elif self.usage.memory(clock.pids, call.memory) > call.memory:
            self._kill(call, b"memory")
        elif clock.asleep and not call.slept:
            call.slept = True
            _say(call.report, ASLEEP)

    @beneath
    def _make_spare(self) -> None:
        try:
            pid = self._fork(lambda: spare.wait(self.origin, self.started))
            made = _Call(self.started, pid)
            self._expect_end(pid, made)
            self.spares[made.number] = made
            self.full_since = _NEVER
        except OSError as error:
            self._pause()
            now = time.monotonic()
            self.full_since = min(self.full_since, now)
            waits = error.errno in _NO_ROOM and now - self.full_since < _FULL_S
            if not self.spares and not waits:
                self._refuse(error)

    def _pause(self) -> None:
        """Make no spares for a moment after one could not be made or died."""
        self.pause = time.monotonic() + _WATCH_S
        self.alarm = min(self.alarm, self.pause)

    def _refuse(self, error: OSError) -> None:
        """Answer one pending request, if any, with an error."""
        try:
            _, descriptors = receive(self.requests, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if descriptors:
            _say(descriptors[0], failure(error))
        self.done += descriptors

    def _hear(self) -> None:
        """Read `TAKEN` messages and start to watch the programs that these spares became."""
        while True:
            try:
                message, descriptors = receive(self.taken)
            except BlockingIOError:
                return
            number, began, spent_s, *limits = TAKEN.unpack(message)
            call = self.spares.pop(number)
            call.spent_s = spent_s
            call.clock = Clock(call.pid, spent_s, self.usage.proc)
            self._follow(call, descriptors[0], began, *limits)

    @beneath
    def _accept(self) -> bool:
        """Serve one request for a session; return whether the runner has hung up."""
        request, descriptors = receive(self.steps[0])
        if not request:
            return True
        *_, key, _, _, target, _, _ = REQUEST.unpack(request)
        if not target:
            if key in self.sessions:
                self._end(self.sessions[key])
            return False
        try:
            self._step(request, descriptors[0], descriptors[1:])
        except OSError as error:
            _say(descriptors[0], failure(error))
            self.done.append(descriptors[0])
        self.done += descriptors[1:]
        return False

    @beneath
    def _step(self, request: bytes, report: int, streams: list[int]) -> None:
        """Pass a program on to its session's keeper, starting the session if it is the first."""
        *limits, _, _, key, _, state, target, before, needed = REQUEST.unpack(request)
        if key not in self.sessions and state == 0:
            self._begin(key, request)
        found = self.sessions.get(key)
        if found is None or found.call is not None:
            _say(report, REPORT.pack(ENDED, 0, 0.0, 0.0, b"", GONE))
            self.done.append(report)
            return
        call = _Call(0, found.pid)
        call.session, found.call = found, call
        call.clock = Clock(call.pid, None, self.usage.proc)
        _tell(found.channel, STEP.pack(state, target, before, needed), streams)
        self._follow(call, report, time.monotonic(), *limits)

    @beneath
    def _begin(self, key: int, request: bytes) -> None:
        living = [each for each in self.sessions.values() if not each.ending]
        waiting = [each for each in living if each.call is None]
        if len(living) >= self.most and waiting:
            self._end(min(waiting, key=lambda each: each.used))
        channel, theirs = pair()
        descriptor = theirs.fileno()
        try:
            pid = self._fork(lambda: spare.keep(self.origin, self.started, request, descriptor))
            begun = _Session(key, pid, channel)
            self._expect_end(pid, begun)
        except OSError:
            channel.close()
            raise
        finally:
            theirs.close()
        self.sessions[key] = begun
        self._expect(channel.fileno(), lambda: self._answered(begun))

    @beneath
    def _fork(self, be: Callable[[], NoReturn]) -> int:
        """Fork PID 1 of a new PID namespace and call `be` in it; return its pid."""
        self.started += 1
        confine.unshare(confine.NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    be()
                finally:
                    os._exit(1)
        finally:
            confine.rejoin(self.namespace, confine.NEWPID)
        return pid

    def _follow(
        self,
        call: _Call,
        report: int,
        began: float,
        cpu_s: float,
        own_s: float,
        wall_s: float,
        memory_mb: int,
    ) -> None:
        """Start to watch a running program's limits and report."""
        call.report, call.began, call.deadline = report, began, began + wall_s
        call.cpu_s, call.own_s, call.memory = cpu_s, own_s, memory_mb * _MB
        self.alarm = min(self.alarm, call.deadline, began + _WATCH_S)
        self.running[report] = call
        self._expect(report, lambda: self._hung_up(call))

    def _hung_up(self, call: _Call) -> None:
        """Kill a program whose result the runner does not want."""
        self.poll.modify(call.report, 0)
        self._kill(call, b"")

    def _expect_end(self, pid: int, what: _Call | _Session) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise
        self._expect(descriptor, lambda: self._ended(what, descriptor))

    def _ended(self, ended: _Call | _Session, descriptor: int) -> None:
        self._leave(descriptor)
        _, status, used = os.wait4(ended.pid, 0)
        if isinstance(ended, _Call):
            ended.used_s = used.ru_utime + used.ru_stime - ended.spent_s
            if ended.report < 0:
                # Its `TAKEN` message may not have been read yet.
                self._hear()
            if ended.report < 0:
                del self.spares[ended.number]
                self._pause()
            else:
                self._report(ended, os.waitstatus_to_exitcode(status), 0)
            return
        if ended.call is not None:
            self._report(ended.call, -9, GONE)
        del self.sessions[ended.key]
        self._leave(ended.channel.detach())

    def _answered(self, which: _Session) -> None:
        """Handle a keeper's answer: a program's end, or the reason why the session cannot start."""
        try:
            message = which.channel.recv(256)
        except OSError:
            # The keeper ended without reading all messages.
            message = b""
        if not message:
            # The keeper is ending: `_ended` handles it.
            self.poll.modify(which.channel.fileno(), 0)
            return
        call = which.call
        if call is not None and message.startswith(ENDED) and len(message) == ANSWER.size:
            _, exit_code, state = ANSWER.unpack(message)
            self._report(call, exit_code, state)
            return
        if call is not None and message.startswith(FAILED):
            self._forget(call, message)
        self._end(which)

    def _report(self, call: _Call, exit_code: int, state: int) -> None:
        took = time.monotonic() - call.began
        clock = call.clock
        assert clock is not None
        if call.session is not None and state != GONE and took >= _WATCH_S:
            # The program's process lives on as the session's state.
            clock.look()
        used_s = max(call.used_s, clock.cpu_s)
        # A program that is over its limit hits it, whether or not a look came before its end.
        if used_s > call.cpu_s and call.limit_hit in (b"", BUSY):
            call.limit_hit = b"time"
        self._forget(call, REPORT.pack(ENDED, exit_code, took, used_s, call.limit_hit, state))

    def _forget(self, call: _Call, message: bytes) -> None:
        """Send the final report and stop tracking the call."""
        del self.running[call.report]
        _say(call.report, message)
        self._leave(call.report)
        if call.session is not None:
            call.session.call = None
            call.session.used = time.monotonic()
            self.alarm = min(self.alarm, call.session.used + self.idle_s)

    def _end(self, which: _Session) -> None:
        which.ending = True
        os.kill(which.pid, 9)

    def _kill(self, call: _Call, limit: bytes) -> None:
        """Kill a program. Without a session it is PID 1 of its namespace, so its descendants die
        too. In a session ask the keeper to stop it; the second time, kill the session."""
        call.limit_hit = call.limit_hit or limit
        if call.session is None or call.stopping:
            call.deadline = float("inf")
            # Only this server reaps it: the pid cannot have been reused.
            os.kill(call.pid, 9)
        else:
            call.stopping = True
            call.deadline = time.monotonic() + _STOP_S
            _tell(call.session.channel, session.STOP)


def _say(report: int, message: bytes) -> None:
    """Send a message to the runner; ignore that it has hung up."""
    try:  # noqa: SIM105 - a module less in every fork
        os.write(report, message)
    except OSError:
        pass


def _tell(session: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message to a keeper; ignore that it has ended, which `_ended` handles."""
    try:  # noqa: SIM105
        send(session, message, descriptors)
    except OSError:
        pass
