"""Spares: processes forked in advance, each of which becomes one program or a session's keeper.

A spare is a fork of a server in namespaces of its own. It has never run a program and holds two of
its server's descriptors: the socket of requests and the socket on which it sends `TAKEN`. It takes
one request, drops its remaining privileges and becomes the program, without these descriptors.
"""

from __future__ import annotations

import _socket
import os
import time

from . import confine, program, session
from .beneath import beneath
from .protocol import REQUEST, TAKEN, failure, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_MB = 1 << 20
_DISK_MB = 64
"""Size of a spare's /tmp; for a request with another disk limit it is mounted again."""
# Descriptor of the report while a program is prepared; 0 to 2 are its streams.
_REPORT = 3


class Origin:
    """What all spares of a server share."""

    def __init__(
        self, requests: _socket.socket, taken: _socket.socket, uids: int, size: int, filter: bytes
    ) -> None:
        """Store the parameters.

        Args:
            requests: Socket of requests: `REQUEST` with the descriptors of the report, the source,
                stdin, stdout and stderr.
            taken: Socket on which spares send `TAKEN` to the server.
            uids: Number of user ids for programs (0: only one).
            size: Address space of the server, in bytes.
            filter: The programs' system call filter.
        """
        self.requests = requests
        self.taken = taken
        self.server = os.pidfd_open(os.getpid())
        self.others = confine.beside(requests.fileno(), taken.fileno(), self.server)
        self.uids = uids
        self.size = size
        self.filter = confine.Filter(filter)


@beneath
def wait(origin: Origin, number: int) -> NoReturn:
    """Be the spare `number` in this fork, then a program."""
    problem = b""
    try:
        confine.end_with_parent(origin.server)
        for bounds in origin.others:
            confine.close_range(*bounds)
        _set_up(origin, number)
        os.close(origin.server)
        program.prepare()
    except BaseException as error:
        problem = failure(error)
    request, descriptors = receive(origin.requests)
    if not request:
        os._exit(0)
    report, code, *streams = descriptors
    if problem:
        os.write(report, problem)
        os._exit(1)
    cpu_s, own_s, wall_s, memory_mb, *_ = REQUEST.unpack(request)
    now = time.monotonic(), time.process_time()
    # Raises if the server died; the spare then exits, as nothing would enforce the limits.
    send(origin.taken, TAKEN.pack(number, *now, cpu_s, own_s, wall_s, memory_mb), [report])
    try:
        source = program.contents(code)
        limits = _confine(origin, request, report, streams)
        confine.limit_resources(*limits)
    except BaseException as error:
        _fail(report, error)
    os.close(_REPORT)
    program.run(source, memory_mb)


@beneath
def keep(origin: Origin, number: int, request: bytes, channel: int) -> NoReturn:
    """Be the keeper of a session in this fork; `channel` is its socket to the server."""
    try:
        _set_up(origin, number)
        null = os.open("/dev/null", os.O_RDWR)
        limits = _confine(origin, request, channel, [null] * 3)
    except BaseException as error:
        _fail(channel, error)
    _, _, _, memory_mb, _, _, _, seed, *_ = REQUEST.unpack(request)
    session.keep(
        _socket.socket(fileno=_REPORT), seed, memory_mb, lambda: confine.limit_resources(*limits)
    )


def _set_up(origin: Origin, number: int) -> None:
    # A process group of its own: signals to a group cross PID namespaces.
    os.setsid()
    confine.unshare(confine.NEWNS)
    if origin.uids:
        confine.become(1 + number % origin.uids)
        # The change of user id has cleared it.
        confine.end_with_parent(origin.server)
    confine.leave_proc()
    confine.private_folder(_DISK_MB)


def _confine(
    origin: Origin, request: bytes, report: int, streams: list[int]
) -> tuple[int, int, int, int]:
    """Keep only the streams (as 0 to 2) and the report (as `_REPORT`); drop all privileges.

    Returns:
        The arguments for `confine.limit_resources`, which the caller sets.
    """
    cpu_s, _, _, memory_mb, disk_mb, processes, *_ = REQUEST.unpack(request)
    if disk_mb != _DISK_MB:
        confine.private_folder(disk_mb)
    session.use(streams)
    os.dup2(report, _REPORT)
    confine.close_range(_REPORT + 1)
    # RLIMIT_NPROC counts per user namespace: this gives each program a count of its own.
    confine.unshare(confine.NEWUSER)
    confine.drop_capabilities()
    origin.filter.install()
    os.chdir("/tmp")
    # The server ends the program as a whole; the kernel would end one process a little later.
    return origin.size + memory_mb * _MB, disk_mb * _MB, processes, int(cpu_s) + 2


def _fail(report: int, error: BaseException) -> NoReturn:
    """Report why the program could not be started, and exit."""
    try:
        os.write(report, failure(error))
    except OSError:
        # `_confine` has already moved the descriptor.
        os.write(_REPORT, failure(error))
    finally:
        os._exit(1)
