"""The warm interpreters inside the sandbox: every program runs in a fork of one of them.

Processes without threads that never run a program themselves. They read nothing from programs; from
outside comes a message for each program, with descriptors: where to report, the program, its stdin,
its stdout and stderr. Back goes a report of its end, or the words in which it could not be started.

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

from . import confine, program
from .protocol import REPORT, REQUEST

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


class _Call:
    """A program that is running."""

    def __init__(self, pid: int, report: _socket.socket, began: float, request: bytes) -> None:
        wall_s, memory_mb, _, _ = REQUEST.unpack(request)
        self.pid = pid
        self.report = report
        self.began = began
        self.deadline: float = began + wall_s
        self.memory: int = memory_mb * _MB
        self.limit_hit = b""


def main() -> None:
    """Serve until the other side hangs up.

    Arguments: the number of user ids for programs (0: there is only one), the descriptors for
    requests to each of the interpreters, and the modules. The first interpreter has imported
    nothing, the second what is common, each further one a module more.
    """
    uids, descriptors, *modules = sys.argv[1:]
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
    _Server(requests[level], int(uids), namespace, proc, filters[1]).serve()


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
        self.proc = proc
        self.filter = filter
        self.size, self.resident = self._bytes("self", 0), self._bytes("self", 1)
        self.poll = select.poll()
        self.calls: dict[int, _Call] = {}
        self.by_report: dict[int, _Call] = {}
        self.started = 0
        confine.hide()

    def serve(self) -> None:
        self.poll.register(self.requests.fileno(), select.POLLIN)
        watched = time.monotonic()
        while True:
            for descriptor, _ in self.poll.poll(self._patience()):
                if descriptor == self.requests.fileno():
                    if not self._accept():
                        return
                elif descriptor in self.calls:
                    self._reap(descriptor)
                elif descriptor in self.by_report:
                    # Whoever asked has no more use for it.
                    self.poll.modify(descriptor, 0)
                    self._kill(self.by_report[descriptor], b"")
            now = time.monotonic()
            watch = now - watched >= _WATCH_S
            watched = now if watch else watched
            for call in self.calls.values():
                if now >= call.deadline:
                    self._kill(call, b"time")
                elif watch and now - call.began >= _WATCH_S and self._memory(call) > call.memory:
                    self._kill(call, b"memory")
            if watch:
                # Counting takes at most a tenth of the time, however many processes there are.
                watched = max(watched, time.monotonic() + 9 * (time.monotonic() - now) - _WATCH_S)

    def _patience(self) -> float | None:
        """Return the milliseconds to wait for something to happen."""
        if not self.calls:
            return None
        until = min(call.deadline for call in self.calls.values()) - time.monotonic()
        return max(0.0, min(until, _WATCH_S)) * 1000 + 0.5

    def _accept(self) -> bool:
        """Start the program that is asked for; return False when nobody will ask any more."""
        request, extra, _, _ = self.requests.recvmsg(256, _socket.CMSG_SPACE(5 * 4))
        if not request:
            return False
        descriptors = struct.unpack("=5i", extra[0][2])
        report = _socket.socket(fileno=descriptors[0])
        try:
            self._start(request, report, descriptors[1:])
        except OSError as error:
            _send(report, str(error).encode())
            report.close()
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        return True

    def _start(self, request: bytes, report: _socket.socket, streams: tuple[int, ...]) -> None:
        began = time.monotonic()
        self.started += 1
        confine.unshare(confine.NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    self._run(request, report, streams)
                finally:
                    os._exit(1)
        finally:
            confine.rejoin(self.namespace, confine.NEWPID)
        call = _Call(pid, report, began, request)
        descriptor = os.pidfd_open(pid)
        self.calls[descriptor] = call
        self.by_report[report.fileno()] = call
        self.poll.register(descriptor, select.POLLIN)
        self.poll.register(report.fileno(), select.POLLIN)

    def _run(self, request: bytes, report: _socket.socket, streams: tuple[int, ...]) -> None:
        """Become the program; never returns."""
        try:
            wall_s, memory_mb, disk_mb, processes = REQUEST.unpack(request)
            confine.unshare(confine.NEWNS)
            confine.private_folder(disk_mb)
            code, stdin, stdout, stderr = streams
            source = _contents(code)
            for target, descriptor in enumerate((stdin, stdout, stderr, report.detach())):
                os.dup2(descriptor, target, inheritable=target < _REPORT)
            confine.close_from(_REPORT + 1)
            if self.uids:
                confine.become(1 + self.started % self.uids)
            # Processes are counted by user namespace: each program has its own count.
            confine.unshare(confine.NEWUSER)
            confine.limit_resources(
                self.size + memory_mb * _MB,
                disk_mb * _MB,
                processes,
                int(wall_s * (os.cpu_count() or 1)) + 2,
            )
            confine.drop_capabilities()
            confine.install(self.filter)
            os.chdir("/tmp")
        except BaseException as error:
            descriptor = report.fileno()
            os.write(_REPORT if descriptor < 0 else descriptor, str(error).encode()[:256])
            os._exit(1)
        os.close(_REPORT)
        program.run(source)

    def _reap(self, descriptor: int) -> None:
        call = self.calls.pop(descriptor)
        self.poll.unregister(descriptor)
        self.poll.unregister(call.report.fileno())
        del self.by_report[call.report.fileno()]
        os.close(descriptor)
        _, status = os.waitpid(call.pid, 0)
        exit_code = os.waitstatus_to_exitcode(status)
        _send(call.report, REPORT.pack(exit_code, time.monotonic() - call.began, call.limit_hit))
        call.report.close()

    def _kill(self, call: _Call, limit: bytes) -> None:
        """End a program and, as it is the first of its process namespace, all that it started."""
        call.limit_hit = call.limit_hit or limit
        call.deadline = float("inf")
        # It is reaped here alone: there is a process of this id until then.
        os.kill(call.pid, 9)

    def _memory(self, call: _Call) -> int:
        """Return the bytes that a program of several processes holds; 0 for a single one, which
        the kernel limits."""
        pids = self._tree(call.pid)
        # What all share with this interpreter is not theirs.
        rough = sum(max(0, self._bytes(pid, 1) - self.resident) for pid in pids)
        if len(pids) < 2 or rough <= call.memory:
            return 0
        total = 0
        for pid in pids:
            # Pages that processes share count once.
            for line in self._read(f"{pid}/smaps_rollup").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) << 10
        return total

    def _tree(self, root: int) -> list[int]:
        """Return the ids of a process and of all below it."""
        found = [root]
        for pid in found:
            try:
                folder = os.open(f"{pid}/task", os.O_RDONLY, dir_fd=self.proc)
            except OSError:
                continue
            try:
                threads = os.listdir(folder)
            finally:
                os.close(folder)
            for thread in threads:
                found.extend(map(int, self._read(f"{pid}/task/{thread}/children").split()))
        return found

    def _bytes(self, pid: int | str, field: int) -> int:
        """Return a field of a process's statm in bytes."""
        fields = self._read(f"{pid}/statm").split() or ["0", "0"]
        return int(fields[field]) * os.sysconf("SC_PAGE_SIZE")

    def _read(self, path: str) -> str:
        """Return a file of /proc; nothing if the process has ended."""
        try:
            with open(os.open(path, os.O_RDONLY, dir_fd=self.proc)) as file:
                return file.read()
        except OSError:
            return ""


def _contents(descriptor: int) -> bytes:
    size, parts = os.fstat(descriptor).st_size, b""
    while len(parts) < size:
        parts += os.pread(descriptor, size - len(parts), len(parts))
    return parts


def _send(report: _socket.socket, message: bytes) -> None:
    try:
        report.send(message)
    except OSError:
        # Whoever asked is gone.
        return
