"""The warm interpreters inside the sandbox: every program runs in a fork of one of them.

Processes without threads that never run a program themselves. They read nothing from programs; from
outside comes a message for each program, with descriptors: where to report, the program, its stdin,
its stdout and stderr. Back goes a report of its end, or the words in which it could not be started.
A program of a session is passed on to the session's keeper, which runs none either.

What is imported here is in every fork, and large processes fork slowly: so little is.
"""

from __future__ import annotations

import _socket
import gc
import importlib
import os
import select
import struct
import sys
import time

from . import confine, program, session
from .protocol import ANSWER, GONE, REPORT, REQUEST, STEP
from .usage import Usage, gather

_MB = 1 << 20
_WATCH_S = 0.05
# Descriptor of the report while a program is prepared; its streams are below.
_REPORT = 3
# Imported before programs that import anything.
_COMMON = """
    abc array bisect cmath collections copy ctypes dataclasses datetime decimal enum fractions
    functools heapq io itertools json math operator random re statistics string struct textwrap
    threading time traceback types typing
"""
_INTEGRANDS = (
    "x x**2 x**3 sin(x) cos(x) tan(x) exp(x) log(x) sqrt(x) 1/x 1/(x+1) 1/(x**2+1) x*sin(x) "
    "x*cos(x) x*exp(x) x**2*sin(x) x**2*cos(x) x**2*exp(x) x*log(x) exp(-x) exp(2*x) sin(x)**2 "
    "cos(x)**2 sin(2*x) x/(x**2+1) exp(x)*sin(x) sqrt(1-x**2)"
)


# What a session may take to stop a program; then it ends itself.
_STOP_S = 2.0


class _Call:
    """A program that is running."""

    def __init__(self, request: bytes, report: _socket.socket, began: float, pid: int) -> None:
        wall_s, memory_mb, *_ = REQUEST.unpack(request)
        self.pid = pid
        self.report = report
        self.began = began
        self.deadline: float = began + wall_s
        self.memory: int = memory_mb * _MB
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


def main() -> None:
    """Serve until the other side hangs up.

    Arguments: the number of user ids for programs (0: there is only one), the most sessions of an
    interpreter that wait for their next program, the seconds that they wait, the descriptors for
    requests to each of the interpreters, and the modules. The first interpreter has imported
    nothing, the second what is common, each further one a module more.
    """
    uids, sessions, idle_s, descriptors, *modules = sys.argv[1:]
    # Programs import as an isolated interpreter does.
    sys.path.remove("/gem")
    requests = [_socket.socket(fileno=int(descriptor)) for descriptor in descriptors.split(",")]
    namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    proc = confine.leave_proc()
    program.make_streams()
    filters = confine.filters()
    confine.install(filters[0])
    level = 0
    while level < len(requests) - 1 and os.fork() == 0:
        _import([_COMMON, *modules][level])
        level += 1
    if "sympy" in sys.modules:
        _warm_up()
    for other in range(len(requests)):
        if other != level:
            requests[other].close()
    # Collections would copy the pages that all forks share.
    gc.collect()
    gc.disable()
    gc.freeze()
    gather(proc)
    server = _Server(requests[level], int(uids), namespace, proc, filters[1])
    server.most, server.idle_s = int(sessions), float(idle_s)
    server.serve()


def _import(modules: str) -> None:
    for module in modules.split():
        try:
            importlib.import_module(module)
        except ImportError:
            continue


def _warm_up() -> None:
    """Fill the caches that sympy fills when it is first used, and for textbook functions of x."""
    sympy = importlib.import_module("sympy")
    x = sympy.Symbol("x")
    for text in _INTEGRANDS.split():
        sympy.integrate(sympy.sympify(text), x)
    sympy.integrate(sympy.exp(-x) * x, (x, 0, sympy.oo))
    sympy.solve(x**3 - 2 * x + 1, x)
    sympy.solve(x**2 - 4, x)
    sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2)
    sympy.diff(sympy.sin(x) * sympy.exp(x) / x, x)
    str(sympy.factor(x**4 - 1) + sympy.limit(sympy.sin(x) / x, x, 0) + sympy.sqrt(8).evalf())


class _Server:
    def __init__(
        self, requests: _socket.socket, uids: int, namespace: int, proc: int, filter: bytes
    ) -> None:
        self.requests = requests
        self.uids = uids
        self.namespace = namespace
        self.usage = Usage(proc)
        self.filter = filter
        self.poll = select.poll()
        # By descriptor: processes, reports, and what sessions say.
        self.ends: dict[int, _Call | _Session] = {}
        self.by_report: dict[int, _Call] = {}
        self.answers: dict[int, _Session] = {}
        self.sessions: dict[int, _Session] = {}
        self.started = 0
        self.most, self.idle_s = 0, 0.0
        confine.hide()

    def serve(self) -> None:
        self.poll.register(self.requests.fileno(), select.POLLIN)
        watched = time.monotonic()
        while True:
            for descriptor, _ in self.poll.poll(self._patience()):
                if descriptor == self.requests.fileno():
                    if not self._accept():
                        return
                elif descriptor in self.answers:
                    self._answered(self.answers[descriptor])
                elif descriptor in self.ends:
                    self._reap(descriptor)
                elif descriptor in self.by_report:
                    # Whoever asked has no more use for it.
                    self.poll.modify(descriptor, 0)
                    self._kill(self.by_report[descriptor], b"")
            now = time.monotonic()
            watch = now - watched >= _WATCH_S
            watched = now if watch else watched
            for call in self.by_report.values():
                if now >= call.deadline:
                    self._kill(call, b"time")
                elif watch and now - call.began >= _WATCH_S and self._hungry(call):
                    self._kill(call, b"memory")
            if watch:
                # Counting takes at most a tenth of the time, however many processes there are.
                watched = max(watched, time.monotonic() + 9 * (time.monotonic() - now) - _WATCH_S)
            for waiting in [each for each in self.sessions.values() if each.call is None]:
                if now - waiting.used > self.idle_s:
                    self._end(waiting)

    def _patience(self) -> float | None:
        """Return the milliseconds to wait for something to happen."""
        if not self.by_report:
            return self.idle_s * 1000 if self.sessions else None
        until = min(call.deadline for call in self.by_report.values()) - time.monotonic()
        return max(0.0, min(until, _WATCH_S)) * 1000 + 0.5

    def _accept(self) -> bool:
        """Do what is asked for; return False when nobody will ask any more."""
        request, extra, _, _ = self.requests.recvmsg(256, _socket.CMSG_SPACE(5 * 4))
        if not request:
            return False
        *_, key, _, _, target, _, _ = REQUEST.unpack(request)
        if key and not target:
            if key in self.sessions:
                self._end(self.sessions[key])
            return True
        descriptors = struct.unpack("=5i", extra[0][2])
        report = _socket.socket(fileno=descriptors[0])
        try:
            if key:
                self._step(request, report, descriptors[1:])
            else:
                self._start(request, report, descriptors[1:])
        except OSError as error:
            _send(report, str(error).encode())
            report.close()
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        return True

    def _start(self, request: bytes, report: _socket.socket, streams: tuple[int, ...]) -> None:
        began = time.monotonic()
        pid = self._fork(request, report, streams)
        self._follow(_Call(request, report, began, pid))
        self._expect_end(pid, self.by_report[report.fileno()])

    def _step(self, request: bytes, report: _socket.socket, streams: tuple[int, ...]) -> None:
        """Have a session run a program; the first one begins it."""
        began = time.monotonic()
        *_, key, _, state, target, before, needed = REQUEST.unpack(request)
        if key not in self.sessions and state == 0:
            self._begin(key, request)
        found = self.sessions.get(key)
        if found is None or found.call is not None:
            _send(report, REPORT.pack(0, 0.0, b"", GONE))
            report.close()
            return
        call = _Call(request, report, began, found.pid)
        call.session, found.call = found, call
        _send(found.channel, STEP.pack(state, target, before, needed), streams)
        self._follow(call)

    def _begin(self, key: int, request: bytes) -> None:
        waiting = [each for each in self.sessions.values() if each.call is None]
        if len(self.sessions) >= self.most and waiting:
            self._end(min(waiting, key=lambda each: each.used))
        channel, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        null = os.open("/dev/null", os.O_RDWR)
        try:
            pid = self._fork(request, theirs, (null,) * 4)
        except OSError:
            channel.close()
            raise
        finally:
            os.close(null)
            theirs.close()
        begun = _Session(key, pid, channel)
        self.sessions[key] = begun
        self.answers[channel.fileno()] = begun
        self.poll.register(channel.fileno(), select.POLLIN)
        self._expect_end(pid, begun)

    def _fork(self, request: bytes, channel: _socket.socket, streams: tuple[int, ...]) -> int:
        """Fork a process that becomes a program or a session; return its id."""
        self.started += 1
        confine.unshare(confine.NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    self._run(request, channel, streams)
                finally:
                    os._exit(1)
        finally:
            confine.rejoin(self.namespace, confine.NEWPID)
        return pid

    def _follow(self, call: _Call) -> None:
        self.by_report[call.report.fileno()] = call
        self.poll.register(call.report.fileno(), select.POLLIN)

    def _expect_end(self, pid: int, what: _Call | _Session) -> None:
        descriptor = os.pidfd_open(pid)
        self.ends[descriptor] = what
        self.poll.register(descriptor, select.POLLIN)

    def _run(self, request: bytes, report: _socket.socket, streams: tuple[int, ...]) -> None:
        """Become the program, or the keeper of a session; never returns."""
        try:
            wall_s, memory_mb, disk_mb, processes, key, seed, *_ = REQUEST.unpack(request)
            # Signals to a group of processes stop at no namespace.
            os.setsid()
            confine.unshare(confine.NEWNS)
            confine.private_folder(disk_mb)
            code, stdin, stdout, stderr = streams
            source = b"" if key else program.contents(code)
            for target, descriptor in enumerate((stdin, stdout, stderr, report.detach())):
                os.dup2(descriptor, target, inheritable=target < _REPORT)
            confine.close_from(_REPORT + 1)
            if self.uids:
                confine.become(1 + self.started % self.uids)
            # Processes are counted by user namespace: each program has its own count.
            confine.unshare(confine.NEWUSER)
            limits = (
                self.usage.size + memory_mb * _MB,
                disk_mb * _MB,
                processes,
                int(wall_s * (os.cpu_count() or 1)) + 2,
            )
            if not key:
                confine.limit_resources(*limits)
            confine.drop_capabilities()
            confine.install(self.filter)
            os.chdir("/tmp")
        except BaseException as error:
            descriptor = report.fileno()
            os.write(_REPORT if descriptor < 0 else descriptor, str(error).encode()[:256])
            os._exit(1)
        if key:
            server = _socket.socket(fileno=_REPORT)
            session.keep(server, seed, lambda: confine.limit_resources(*limits))
        os.close(_REPORT)
        program.run(source)

    def _reap(self, descriptor: int) -> None:
        ended = self.ends.pop(descriptor)
        self.poll.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(ended.pid, 0)
        if isinstance(ended, _Call):
            self._report(ended, os.waitstatus_to_exitcode(status), 0)
            return
        if ended.call is not None:
            self._report(ended.call, -9, GONE)
        self.poll.unregister(ended.channel.fileno())
        del self.answers[ended.channel.fileno()], self.sessions[ended.key]
        ended.channel.close()

    def _answered(self, which: _Session) -> None:
        """A session has run a program, or says why it cannot begin."""
        message = which.channel.recv(256)
        if not message:
            # It ends, which is seen elsewhere.
            self.poll.modify(which.channel.fileno(), 0)
            return
        call = which.call
        if call is None or len(message) != ANSWER.size:
            if call is not None:
                _send(call.report, message)
                self._forget(call)
            self._end(which)
            return
        self._report(call, *ANSWER.unpack(message))

    def _report(self, call: _Call, exit_code: int, state: int) -> None:
        took = time.monotonic() - call.began
        _send(call.report, REPORT.pack(exit_code, took, call.limit_hit, state))
        self._forget(call)

    def _forget(self, call: _Call) -> None:
        self.poll.unregister(call.report.fileno())
        del self.by_report[call.report.fileno()]
        call.report.close()
        if call.session is not None:
            call.session.call = None
            call.session.used = time.monotonic()

    def _end(self, which: _Session) -> None:
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
            _send(call.session.channel, session.STOP)

    def _hungry(self, call: _Call) -> bool:
        return self.usage.memory(call.pid, call.memory) > call.memory


def _send(channel: _socket.socket, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
    data = struct.pack(f"={len(descriptors)}i", *descriptors)
    extra = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, data)] if descriptors else []
    try:
        channel.sendmsg([message], extra)
    except OSError:
        # Whoever asked is gone.
        return
