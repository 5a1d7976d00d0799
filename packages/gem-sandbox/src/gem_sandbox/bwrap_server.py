"""One bubblewrap sandbox with warm interpreters, seen from outside: start it, send it programs.

`inside.server` is the other side; `inside.protocol` has the messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from gem.admission import Core
from gem.errors import UnreachableError
from gem_sandbox.base import Limits, Result
from gem_sandbox.inside.protocol import ASLEEP, BUSY, ENDED, FAILED, REPORT, REQUEST
from gem_sandbox.running import NotSentError, busy
from gem_sandbox.streams import Outputs, in_memory
from gem_sandbox.view import PACKAGES, view

_START = "import sys; sys.path[0] = '/sandbox'; sys.path.append(sys.argv.pop(1)); from inside import server; server.main()"  # noqa: E501
_START_S = 60.0
# If no report comes this long after the program's limit of wall time, the server is stuck.
_GRACE_S = 60.0
_UIDS = 4096
# Most idle sessions of a sandbox, and seconds that one may be idle: beyond that the server ends
# them. If used again they repeat their programs.
_SESSIONS = 256
_IDLE_S = 900.0
_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL"),
    *("--new-session", "--die-with-parent", "--hostname", "sandbox"),
    # What a shell adds to the environment.
    *(word for name in ("PWD", "OLDPWD", "SHLVL", "_") for word in ("--unsetenv", name)),
)
# The kernel leaves room for the stack when a program starts, as much as is allowed then: 64 GB, in
# kB, of which the memory limit lets programs use their share. With no limit at all the kernel lays
# memory out in another way, in which forks are slower.
_STACK = 'ulimit -S -s 67108864 2>/dev/null || ulimit -S -s "$(ulimit -H -s)" 2>/dev/null'
_WITH_STACK = ("/bin/sh", "-c", f'{_STACK}; exec "$@"', "sh")
_ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Sets of strings iterate in the same order in every run.
    "PYTHONHASHSEED": "0",
    # Judges know no limit of the digits of integers.
    "PYTHONINTMAXSTRDIGITS": "0",
    # Resolve library symbols at start, not in every fork.
    "LD_BIND_NOW": "1",
    "SYMPY_CACHE_SIZE": "20000",
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # Each further malloc arena reserves 64 MB of the program's address space limit.
    "MALLOC_ARENA_MAX": "1",
}


class Step(NamedTuple):
    """The session fields of a `REQUEST`; see there."""

    key: int
    seed: int
    state: int
    target: int
    before: int
    needed: bool


_ALONE = Step(0, 0, 0, 0, 0, False)


class Server:
    """One sandbox: a bwrap process with interpreters in it, each with one import level more."""

    def __init__(self, distributions: tuple[str, ...] | None, modules: tuple[str, ...]) -> None:
        self.broken = False
        seen = view(distributions, modules)
        # A socket pair for each interpreter, and one for the sessions of the last.
        pairs = [_sockets() for _ in range(3 + len(modules))]
        *self.requests, self.steps = [ours for ours, _ in pairs]
        theirs = [end for _, end in pairs]
        as_root = os.geteuid() == 0
        uids = _UIDS if as_root else 0
        mapping = _Mapping() if as_root else None
        descriptors = [end.fileno() for end in theirs]
        passed = [*descriptors, *(mapping.theirs if mapping else ())]
        command = [*_WITH_STACK, "bwrap", *_ISOLATION]
        command += [*(mapping.options if mapping else ()), *seen.options]
        inside = ["--chdir", "/tmp", seen.executable, "-s", "-c", _START, PACKAGES]
        inside += [str(uids), str(_SESSIONS), str(_IDLE_S), ",".join(map(str, descriptors))]
        try:
            with seen.copied() as (copies, files):
                self.process = subprocess.Popen(
                    [*command, *copies, *seen.last, *inside, *modules],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[*passed, *files],
                    env={**_ENVIRONMENT, "LD_LIBRARY_PATH": "/python/lib"},
                    cwd="/",
                )
        except OSError as error:
            raise UnreachableError(f"cannot start bwrap: {error}") from error
        finally:
            for end in theirs:
                end.close()
            if mapping:
                mapping.close_theirs()
        try:
            if mapping:
                mapping.apply()
            # Fails here, before a policy's program runs, if the kernel does not allow confinement.
            with Core() as core:
                self.run(b"print(1)", b"", Limits(cpu_s=5.0), 0, core)
        except (OSError, ValueError) as error:
            self.process.kill()
            said = self.process.communicate()[1].decode("utf-8", "replace").strip()
            self.end()
            raise UnreachableError(
                f"the bubblewrap sandbox does not start: {said or error}; "
                "`python -m gem doctor` says what this machine lacks"
            ) from error

    def run(
        self,
        source: bytes,
        stdin: bytes,
        limits: Limits,
        level: int,
        core: Core,
        step: Step = _ALONE,
    ) -> tuple[Result, int]:
        """Run a program; return its result and the number of its session's state.

        The core is held from when the program is sent until it ends or sleeps.

        Raises:
            BusyMachineError: The program got too little CPU time.
            NotSentError: The sandbox had ended before the request was sent.
            UnreachableError: The sandbox ended during the run, or cannot start programs.
        """
        report, theirs = _sockets()
        with contextlib.ExitStack() as stack:
            stack.enter_context(report)
            outputs = stack.enter_context(Outputs(limits.output_bytes))
            with theirs, in_memory(source) as code, in_memory(stdin) as given:
                request = _request(limits, step)
                descriptors = [theirs.fileno(), code, given, *outputs.theirs]
                try:
                    asked = self.steps if step.key else self.requests[level]
                    core.acquire()
                    socket.send_fds(asked, [request], descriptors)
                except OSError as error:
                    self.broken = True
                    raise NotSentError(str(error)) from error
            outputs.close_theirs()
            answer = self._await(report, outputs, limits, core, alone=not step.key)
        if not answer.startswith(ENDED):
            words = answer[len(FAILED) :].decode("utf-8", "replace")
            raise UnreachableError(f"the sandbox cannot start programs: {words}")
        _, exit_code, seconds, cpu_s, ended, state = REPORT.unpack(answer)
        stdout, stderr = outputs.texts()
        if ended.rstrip(b"\0") == BUSY:
            raise busy(cpu_s, seconds)
        limit_hit = ended.rstrip(b"\0").decode() or None
        if outputs.cut:
            limit_hit = limit_hit or "output"
        elif exit_code and "MemoryError" in stderr.rstrip().rpartition("\n")[2][:60]:
            limit_hit = limit_hit or "memory"
        return Result(stdout, stderr, exit_code, seconds, limit_hit, cpu_s), state

    def end_session(self, key: int) -> None:
        """End a session, if the server has it."""
        with contextlib.suppress(OSError):
            self.steps.send(_request(Limits(), _ALONE._replace(key=key)))

    def _await(
        self, report: socket.socket, outputs: Outputs, limits: Limits, core: Core, alone: bool
    ) -> bytes:
        """Collect output until the server reports the program's end; return the report."""
        outputs.poll.register(report, select.POLLIN)
        began, patience = time.monotonic(), _START_S + limits.wall_s + _GRACE_S
        stopped = False
        while True:
            left = patience - (time.monotonic() - began)
            for descriptor, _ in outputs.poll.poll(max(0.0, left) * 1000):
                if descriptor == report.fileno():
                    message = report.recv(1 << 16)
                    if not message:
                        self.broken = True
                        raise UnreachableError("the sandbox ended while it ran a program")
                    core.release()
                    if message == ASLEEP:
                        continue
                    outputs.poll.unregister(report)
                    # All writers have ended or (in a session) are stopped.
                    outputs.drain(to_its_end=alone)
                    return message
                outputs.read(descriptor)
            if outputs.cut and not stopped:
                stopped = True
                report.shutdown(socket.SHUT_WR)
            if left <= 0:
                self.broken = True
                raise UnreachableError("the sandbox does not answer")

    def ended(self) -> bool:
        """Whether it takes no more programs. Checks the process, as sockets may outlive it."""
        return self.broken or self.process.poll() is not None

    def end(self) -> None:
        self._hang_up()
        # Closing the sockets makes the server exit; killing bwrap ends the rest of the sandbox.
        # Leaving the block waits for its end.
        with self.process:
            self.process.kill()

    def forget(self) -> None:
        self._hang_up()
        self.process.returncode = 0

    def _hang_up(self) -> None:
        self.broken = True
        for end in (*self.requests, self.steps):
            end.close()


def _request(limits: Limits, step: Step) -> bytes:
    times = limits.cpu_s, limits.own_s, limits.wall_s
    return REQUEST.pack(*times, limits.memory_mb, limits.disk_mb, limits.processes, *step)


class _Mapping:
    """User id map of a sandbox started by root: programs get ids that own no files.

    Root inside is root outside, so that the servers can read the interpreter's folder anywhere;
    no program runs as root.
    """

    def __init__(self) -> None:
        self._info, info = os.pipe()
        block, self._block = os.pipe()
        self.theirs = (info, block)
        self.options = ["--info-fd", str(info), "--userns-block-fd", str(block)]

    def apply(self) -> None:
        with os.fdopen(self._info) as info, os.fdopen(self._block, "wb") as block:
            pid = json.loads(info.read())["child-pid"]
            first = _free_uids()
            for kind in ("gid", "uid"):
                Path(f"/proc/{pid}/{kind}_map").write_text(f"0 0 1\n1 {first} {_UIDS}\n")
            block.write(b"1")

    def close_theirs(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)


def _free_uids() -> int:
    """Return the first of a range of unused user ids, near the end of this namespace's range."""
    inside, _, count = map(int, Path("/proc/self/uid_map").read_text().split("\n")[0].split())
    return inside + count - 2 * _UIDS


def _sockets() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
