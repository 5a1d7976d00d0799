"""A process that is ready before anyone asks for it, and becomes what is asked for.

A spare is a fork of a server, in namespaces of its own, that has never run a program and holds none
of its server's descriptors but two: where requests come from, and where it says that it has taken
one. It takes one request, gives up the rest of its rights, and becomes the program, which gets none
of these descriptors.
"""

from __future__ import annotations

import _socket
import os
import time

from . import confine, program, session
from .protocol import REQUEST, TAKEN, failure, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_MB = 1 << 20
_DISK_MB = 64
"""Size of a spare's folder; a program that may write more or less gets another one."""
# Descriptor of the report while a program is prepared; its streams are below.
_REPORT = 3


class Origin:
    """What all forks of a server have in common."""

    def __init__(
        self, requests: _socket.socket, taken: _socket.socket, uids: int, size: int, filter: bytes
    ) -> None:
        """Note it; nothing is made.

        Args:
            requests: Where requests come from, `REQUEST` with five descriptors: where to report,
                the program, its stdin, stdout and stderr.
            taken: Where the server hears of those that are taken.
            uids: User ids for programs (0: there is only one).
            size: Address space of the server, in bytes.
            filter: That of the system calls of programs.
        """
        self.requests = requests
        self.taken = taken
        self.others = confine.beside(requests.fileno(), taken.fileno())
        self.uids = uids
        self.size = size
        self.filter = confine.Filter(filter)
        self.cores = os.cpu_count() or 1


def wait(origin: Origin, number: int) -> NoReturn:
    """Be a spare in this fork, and then a program; the number is that of the fork."""
    problem = b""
    try:
        confine.end_with_parent()
        for bounds in origin.others:
            confine.close_range(*bounds)
        _set_up(origin, number)
        main = program.prepare()
    except BaseException as error:
        problem = failure(error)
    request, descriptors = receive(origin.requests)
    if not request:
        os._exit(0)
    report, code, *streams = descriptors
    if problem:
        os.write(report, problem)
        os._exit(1)
    wall_s, memory_mb, *_ = REQUEST.unpack(request)
    # It fails if the server is gone: then this ends as well, for nobody would see to the limits.
    send(origin.taken, TAKEN.pack(number, time.monotonic(), wall_s, memory_mb), [report])
    try:
        source = program.contents(code)
        limits = _confine(origin, request, report, streams)
        confine.limit_resources(*limits)
    except BaseException as error:
        _fail(report, error)
    os.close(_REPORT)
    program.run(main, source)


def keep(origin: Origin, number: int, request: bytes, channel: int) -> NoReturn:
    """Be the keeper of a session in this fork; the channel is that to its server."""
    try:
        _set_up(origin, number)
        null = os.open("/dev/null", os.O_RDWR)
        limits = _confine(origin, request, channel, [null] * 3)
    except BaseException as error:
        _fail(channel, error)
    seed: int = REQUEST.unpack(request)[5]
    session.keep(_socket.socket(fileno=_REPORT), seed, lambda: confine.limit_resources(*limits))


def _set_up(origin: Origin, number: int) -> None:
    # Signals to a group of processes stop at no namespace.
    os.setsid()
    confine.unshare(confine.NEWNS)
    if origin.uids:
        confine.become(1 + number % origin.uids)
        # The change of the user id has undone it.
        confine.end_with_parent()
    confine.leave_proc()
    confine.private_folder(_DISK_MB)


def _confine(
    origin: Origin, request: bytes, report: int, streams: list[int]
) -> tuple[int, int, int, int]:
    """Close all but the streams and the report, which moves, and give up all rights.

    Returns:
        The limits that are to be set: see `confine.limit_resources`.
    """
    wall_s, memory_mb, disk_mb, processes, *_ = REQUEST.unpack(request)
    if disk_mb != _DISK_MB:
        confine.private_folder(disk_mb)
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    os.dup2(report, _REPORT)
    confine.close_range(_REPORT + 1)
    # Processes are counted by user namespace: each program has its own count.
    confine.unshare(confine.NEWUSER)
    confine.drop_capabilities()
    origin.filter.install()
    os.chdir("/tmp")
    cpu_s = int(wall_s * origin.cores) + 2
    return origin.size + memory_mb * _MB, disk_mb * _MB, processes, cpu_s


def _fail(report: int, error: BaseException) -> NoReturn:
    """Say why there is no program, and end."""
    try:
        os.write(report, failure(error))
    except OSError:
        # It has moved.
        os.write(_REPORT, failure(error))
    finally:
        os._exit(1)
