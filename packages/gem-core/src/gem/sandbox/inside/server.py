"""The warm interpreters inside the sandbox: every program runs in a fork of one of them.

Processes without threads that never run a program themselves. They read nothing from programs; from
outside comes a message for each program, with descriptors: where to report, the program, its stdin,
its stdout and stderr. Back goes a report of its end, or the words in which it could not be started.
A program is taken by a spare, a fork that waits for one. One of a session comes to its server,
which passes it on to the session's keeper, which runs none either.

What is imported here is in every fork, and large processes fork slowly: so little is.
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
from .protocol import (
    ANSWER,
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
_WATCH_S = 0.05
_NEVER = float("inf")
# Forks that wait for a program. They are made when there is nothing else to do, or none is left.
SPARES = 4
# What a session may take to stop a program; then it ends itself.
_STOP_S = 2.0
# For so long whoever asks waits while there is no room for processes: programs that fill it end.
_FULL_S = 20.0
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC)


class _Call:
    """A program that runs; or a spare, which waits for one."""

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid
        # Where it is reported; -1 as long as it is a spare.
        self.report = -1
        self.began = self.deadline = _NEVER
        self.memory = 0
        self.limit_hit = b""
        self.stopping = False
        self.session: _Session | None = None


class _Session:
    """Programs that go on where the one before them ended; runs one or waits for one."""

    def __init__(self, key: int, pid: int, channel: _socket.socket) -> None:
        self.key = key
        self.pid = pid
        self.channel = channel
        self.call: _Call | None = None
        self.used = time.monotonic()
        # It has been killed, and may take a moment to be gone.
        self.ending = False


def main() -> None:
    """Serve until the other side hangs up.

    Arguments: the number of user ids for programs (0: there is only one), the most sessions that
    wait for their next program, the seconds that they wait, the descriptors for requests to each of
    the interpreters and to the sessions, and the modules. The first interpreter has imported
    nothing, the second what is common, each further one a module more; the last has the sessions,
    for nobody knows what later programs of one import, within their time.
    """
    uids, sessions, idle_s, descriptors, *modules = sys.argv[1:]
    # Programs import as an isolated interpreter does.
    sys.path.remove("/sandbox")
    sockets = [_socket.socket(fileno=int(descriptor)) for descriptor in descriptors.split(",")]
    *requests, steps = sockets
    # Each program and each session takes descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    confine.keep_capabilities()
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
    # Collections would copy the pages that all forks share.
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
        # By descriptor: processes, reports, and what sessions say.
        self.ends: dict[int, _Call | _Session] = {}
        self.by_report: dict[int, _Call] = {}
        self.answers: dict[int, _Session] = {}
        # By number and key.
        self.spares: dict[int, _Call] = {}
        self.sessions: dict[int, _Session] = {}
        # Descriptors to be closed.
        self.done: list[int] = []
        self.started = 0
        self.most, self.idle_s = 0, 0.0
        # When there is something to look after, when memory is counted again, and until when no
        # spares are made.
        self.alarm, self.count, self.pause = _NEVER, 0.0, 0.0
        # Since when no process can be made.
        self.full_since = _NEVER
        confine.hide()

    def serve(self) -> None:
        # Of the requests, that nobody will make any more.
        requests, taken = self.requests.fileno(), self.taken.fileno()
        steps = [each.fileno() for each in self.steps]
        self.poll.register(requests, 0)
        for asking in (taken, *steps):
            self.poll.register(asking, select.POLLIN)
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
                if descriptor in self.ends:
                    self._ended(descriptor)
                elif descriptor == taken:
                    self._hear()
                elif descriptor in self.by_report:
                    # Whoever asked has no more use for it.
                    self.poll.modify(descriptor, 0)
                    self._kill(self.by_report[descriptor], b"")
                elif descriptor in self.answers:
                    self._answered(self.answers[descriptor])
                elif descriptor == requests or (descriptor in steps and not self._accept()):
                    return
            # Until here their numbers stood for what else may have happened to them.
            while self.done:
                os.close(self.done.pop())
            if time.monotonic() >= self.alarm:
                self._watch()

    def _watch(self) -> None:
        """End what has had its time or too much memory; note when to look again."""
        now = time.monotonic()
        self.alarm = self.pause if now < self.pause else _NEVER
        count = now >= self.count
        for call in self.by_report.values():
            if now >= call.deadline:
                self._kill(call, b"time")
            elif count and now - call.began >= _WATCH_S and self._hungry(call):
                self._kill(call, b"memory")
            self.alarm = min(self.alarm, call.deadline)
        if count:
            # Counting takes at most a tenth of the time, however many processes there are.
            self.count = now + max(_WATCH_S, 10 * (time.monotonic() - now))
        if self.by_report:
            self.alarm = min(self.alarm, self.count)
        for waiting in self.sessions.values():
            if waiting.call is None and now - waiting.used > self.idle_s:
                self._end(waiting)
            elif waiting.call is None:
                self.alarm = min(self.alarm, waiting.used + self.idle_s)

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
        """Have no spares made for a moment, as something is wrong with them."""
        self.pause = time.monotonic() + _WATCH_S
        self.alarm = min(self.alarm, self.pause)

    def _refuse(self, error: OSError) -> None:
        """Tell whoever asks next, if there is somebody, that nothing can be started."""
        try:
            _, descriptors = receive(self.requests, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if descriptors:
            _say(descriptors[0], failure(error))
        self.done += descriptors

    def _hear(self) -> None:
        """Follow the programs that spares have become."""
        while True:
            try:
                message, descriptors = receive(self.taken)
            except BlockingIOError:
                return
            number, began, wall_s, memory_mb = TAKEN.unpack(message)
            self._follow(self.spares.pop(number), descriptors[0], began, wall_s, memory_mb)

    def _accept(self) -> bool:
        """Do what is asked of a session; return False when nobody will ask any more."""
        request, descriptors = receive(self.steps[0])
        if not request:
            return False
        *_, key, _, _, target, _, _ = REQUEST.unpack(request)
        if not target:
            if key in self.sessions:
                self._end(self.sessions[key])
            return True
        try:
            self._step(request, descriptors[0], descriptors[1:])
        except OSError as error:
            _say(descriptors[0], failure(error))
            self.done.append(descriptors[0])
        self.done += descriptors[1:]
        return True

    def _step(self, request: bytes, report: int, streams: list[int]) -> None:
        """Have a session run a program; the first one begins it."""
        wall_s, memory_mb, _, _, key, _, state, target, before, needed = REQUEST.unpack(request)
        if key not in self.sessions and state == 0:
            self._begin(key, request)
        found = self.sessions.get(key)
        if found is None or found.call is not None:
            _say(report, REPORT.pack(ENDED, 0, 0.0, b"", GONE))
            self.done.append(report)
            return
        call = _Call(0, found.pid)
        call.session, found.call = found, call
        _tell(found.channel, STEP.pack(state, target, before, needed), streams)
        self._follow(call, report, time.monotonic(), wall_s, memory_mb)

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
        self.answers[channel.fileno()] = begun
        self.poll.register(channel.fileno(), select.POLLIN)

    def _fork(self, be: Callable[[], NoReturn]) -> int:
        """Fork the first process of a namespace, which becomes something; return its id."""
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
        self, call: _Call, report: int, began: float, wall_s: float, memory_mb: int
    ) -> None:
        """Watch over a program that has begun."""
        call.report, call.began, call.deadline = report, began, began + wall_s
        call.memory = memory_mb * _MB
        self.alarm = min(self.alarm, call.deadline, began + _WATCH_S)
        self.by_report[report] = call
        self.poll.register(report, select.POLLIN)

    def _expect_end(self, pid: int, what: _Call | _Session) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise
        self.ends[descriptor] = what
        self.poll.register(descriptor, select.POLLIN)

    def _ended(self, descriptor: int) -> None:
        ended = self.ends.pop(descriptor)
        self.poll.unregister(descriptor)
        self.done.append(descriptor)
        _, status = os.waitpid(ended.pid, 0)
        if isinstance(ended, _Call):
            if ended.report < 0:
                # It may have said that it is no spare any more.
                self._hear()
            if ended.report < 0:
                del self.spares[ended.number]
                self._pause()
            else:
                self._report(ended, os.waitstatus_to_exitcode(status), 0)
            return
        if ended.call is not None:
            self._report(ended.call, -9, GONE)
        self.poll.unregister(ended.channel.fileno())
        del self.answers[ended.channel.fileno()], self.sessions[ended.key]
        self.done.append(ended.channel.detach())

    def _answered(self, which: _Session) -> None:
        """A session has run a program, or says why it cannot begin."""
        try:
            message = which.channel.recv(256)
        except OSError:
            # It has ended with orders unread.
            message = b""
        if not message:
            # It ends, which is seen elsewhere.
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
        self._forget(call, REPORT.pack(ENDED, exit_code, took, call.limit_hit, state))

    def _forget(self, call: _Call, message: bytes) -> None:
        """Say the last word about a program."""
        self.poll.unregister(call.report)
        del self.by_report[call.report]
        _say(call.report, message)
        self.done.append(call.report)
        if call.session is not None:
            call.session.call = None
            call.session.used = time.monotonic()
            self.alarm = min(self.alarm, call.session.used + self.idle_s)

    def _end(self, which: _Session) -> None:
        which.ending = True
        os.kill(which.pid, 9)

    def _kill(self, call: _Call, limit: bytes) -> None:
        """End a program and, as it is the first of its process namespace, all that it started; in
        a session, where it is not, end the session if it does not stop it."""
        call.limit_hit = call.limit_hit or limit
        if call.session is None or call.stopping:
            call.deadline = float("inf")
            # It is reaped here alone: there is a process of this id until then.
            os.kill(call.pid, 9)
        else:
            call.stopping = True
            call.deadline = time.monotonic() + _STOP_S
            _tell(call.session.channel, session.STOP)

    def _hungry(self, call: _Call) -> bool:
        return self.usage.memory(call.pid, call.memory) > call.memory


def _say(report: int, message: bytes) -> None:
    """Send something to whoever asked, unless they are gone."""
    try:  # noqa: SIM105 - a module less in every fork
        os.write(report, message)
    except OSError:
        pass


def _tell(session: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send something to a session, unless it has ended, which is seen elsewhere."""
    try:  # noqa: SIM105
        send(session, message, descriptors)
    except OSError:
        pass
