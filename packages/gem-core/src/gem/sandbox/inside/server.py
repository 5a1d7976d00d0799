"""The warm interpreter inside the sandbox: every program runs in a fork of it.

One process without threads that never runs a program itself. What it reads from programs is
nothing; what it hears from outside is a request a message, with descriptors: where to report, the
program, its stdin, its stdout and stderr. It reports the end of a program as JSON.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from . import confine, program

_MB = 1 << 20
_WATCH_S = 0.05
# Descriptor of the report while a program is prepared; its streams are below.
_REPORT = 3
# Imported before the first program asks for them.
_COMMON = """
    abc array ast base64 bisect calendar cmath collections collections.abc copy csv ctypes
    dataclasses datetime decimal enum fractions functools hashlib heapq inspect io itertools json
    logging math numbers operator pathlib pickle pprint queue random re statistics string struct
    subprocess textwrap threading timeit traceback types typing unittest uuid
"""


_INTEGRANDS = (
    "x x**2 x**3 sin(x) cos(x) tan(x) exp(x) log(x) sqrt(x) 1/x 1/(x+1) 1/(x**2+1) x*sin(x) "
    "x*cos(x) x*exp(x) x**2*sin(x) x**2*cos(x) x**2*exp(x) x*log(x) exp(-x) exp(2*x) sin(x)**2 "
    "cos(x)**2 sin(2*x) x/(x**2+1) exp(x)*sin(x) sqrt(1-x**2)"
)


@dataclass
class _Call:
    """A program that is running."""

    pid: int
    report: socket.socket
    began: float
    deadline: float
    memory: int
    limit_hit: str | None = None


def main() -> None:
    """Serve until the other side hangs up.

    Arguments: the number of user ids for programs (0: there is only one), the descriptor of the
    requests to this process, that of the requests to its twin, and the modules that the twin
    imports beforehand.
    """
    uids, plain, twin, *modules = sys.argv[1:]
    # Programs import as an isolated interpreter does.
    sys.path.remove("/gem")
    for module in _COMMON.split():
        importlib.import_module(module)
    own, other = socket.socket(fileno=int(plain)), socket.socket(fileno=int(twin))
    if os.fork() == 0:
        own, other = other, own
        for module in modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        _warm_up()
    other.close()
    # Collections would copy the pages that all forks share.
    gc.collect()
    gc.disable()
    gc.freeze()
    _Server(own, int(uids)).serve()


def _warm_up() -> None:
    """Fill the caches that sympy fills when it is first used, and for textbook functions of x."""
    if "sympy" not in sys.modules:
        return
    sympy: Any = sys.modules["sympy"]
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
    def __init__(self, requests: socket.socket, uids: int) -> None:
        self.requests = requests
        self.uids = uids
        self.filter = confine.filter_program()
        self.namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self.size = _pages("/proc/self/statm", 0)
        self.poll = select.poll()
        self.calls: dict[int, _Call] = {}
        self.by_report: dict[int, _Call] = {}
        self.started = 0
        confine.hide()

    def serve(self) -> None:
        self.poll.register(self.requests, select.POLLIN)
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
                    self._kill(self.by_report[descriptor], None)
            now = time.monotonic()
            watch = now - watched >= _WATCH_S
            watched = now if watch else watched
            for call in self.calls.values():
                if now >= call.deadline:
                    self._kill(call, "time")
                elif watch and now - call.began >= _WATCH_S and _memory(call) > call.memory:
                    self._kill(call, "memory")

    def _patience(self) -> float | None:
        """Return the milliseconds to wait for something to happen."""
        if not self.calls:
            return None
        until = min(call.deadline for call in self.calls.values()) - time.monotonic()
        return max(0.0, min(until, _WATCH_S)) * 1000 + 0.5

    def _accept(self) -> bool:
        """Start the program that is asked for; return False when nobody will ask any more."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self.requests, 1 << 12, 5)
        except OSError:
            return False
        if not message:
            return False
        report = socket.socket(fileno=descriptors[0])
        try:
            self._start(json.loads(message), report, descriptors[1:])
        except OSError as error:
            _send(report, {"unstarted": str(error)})
            report.close()
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        return True

    def _start(self, limits: dict[str, Any], report: socket.socket, streams: list[int]) -> None:
        began = time.monotonic()
        self.started += 1
        confine.unshare(confine.NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                self._run(limits, report, streams)
        finally:
            confine.rejoin(self.namespace, confine.NEWPID)
        memory = limits["memory_mb"] * _MB
        call = _Call(pid, report, began, began + limits["wall_s"], memory)
        descriptor = os.pidfd_open(pid)
        self.calls[descriptor] = call
        self.by_report[report.fileno()] = call
        self.poll.register(descriptor, select.POLLIN)
        self.poll.register(report, select.POLLIN)

    def _run(self, limits: dict[str, Any], report: socket.socket, streams: list[int]) -> None:
        """Become the program; never returns."""
        try:
            confine.unshare(confine.NEWNS)
            confine.private_folders(limits["disk_mb"])
            code, stdin, stdout, stderr = streams
            source = _contents(code)
            for target, descriptor in enumerate((stdin, stdout, stderr, report.detach())):
                os.dup2(descriptor, target, inheritable=target < _REPORT)
            os.closerange(_REPORT + 1, 1 << 16)
            if self.uids:
                confine.become(1 + self.started % self.uids)
            # Processes are counted by user namespace: each program has its own count.
            confine.unshare(confine.NEWUSER)
            confine.limit_resources(
                self.size + limits["memory_mb"] * _MB,
                limits["disk_mb"] * _MB,
                limits["processes"],
                int(limits["wall_s"] * (os.cpu_count() or 1)) + 2,
            )
            confine.drop_capabilities()
            confine.install(self.filter)
            os.chdir("/tmp")
        except BaseException as error:
            if report.fileno() >= 0:
                report.send(_json({"unstarted": str(error)}))
            else:
                os.write(_REPORT, _json({"unstarted": str(error)}))
            os._exit(1)
        os.close(_REPORT)
        program.run(source)

    def _reap(self, descriptor: int) -> None:
        call = self.calls.pop(descriptor)
        self.poll.unregister(descriptor)
        self.poll.unregister(call.report)
        del self.by_report[call.report.fileno()]
        os.close(descriptor)
        _, status = os.waitpid(call.pid, 0)
        answer = {
            "exit_code": os.waitstatus_to_exitcode(status),
            "seconds": time.monotonic() - call.began,
            "limit_hit": call.limit_hit,
        }
        _send(call.report, answer)
        call.report.close()

    def _kill(self, call: _Call, limit: str | None) -> None:
        """End a program and, as it is the first of its process namespace, all that it started."""
        call.limit_hit = call.limit_hit or limit
        call.deadline = float("inf")
        with contextlib.suppress(ProcessLookupError):
            os.kill(call.pid, signal.SIGKILL)


def _memory(call: _Call) -> int:
    """Return the bytes that a program of several processes holds; 0 for a single one, which the
    kernel limits."""
    pids, total = _tree(call.pid), 0
    if len(pids) < 2:
        return 0
    with contextlib.suppress(OSError, ValueError):
        if sum(_pages(f"/proc/{pid}/statm", 1) for pid in pids) <= call.memory:
            return 0
    for pid in pids:
        # Pages that processes share count once.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as rollup:
            total += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) * 1024
    return total


def _tree(root: int) -> list[int]:
    """Return the ids of a process and of all below it."""
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as children:
                    found.extend(map(int, children.read().split()))
    return found


def _pages(path: str, field: int) -> int:
    with open(path) as statm:
        return int(statm.read().split()[field]) * os.sysconf("SC_PAGE_SIZE")


def _contents(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def _send(report: socket.socket, answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        report.send(_json(answer))


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()
