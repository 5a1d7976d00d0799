"""Message formats: runner to server, spare to server, server to session keeper, and back.

Imported inside the sandbox and by `gem_sandbox.bwrap_server` outside of it.
"""

from __future__ import annotations

import _socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

REQUEST = struct.Struct("=dddIIIQQIII?")
"""Runner to server: limits of CPU, own and wall time in seconds (see `clock`), of memory and disk
in MB, and of processes. Then the session fields: key (0: no session), random seed, number of the
state to fork (0: the initial one), number of the state to make (0: end the session), number of
programs before, and whether the forked state must be kept."""
ENDED, FAILED = b"=", b"!"
"""First byte of a report or answer: the program ended and the fields follow; or it could not be
started and an error text follows."""
ASLEEP = b"~"
"""Server to runner, before the report and at most once: the program waits, and not for a CPU."""
REPORT = struct.Struct("=cidd6sI")
"""Server to runner: `ENDED`, exit code, seconds of wall time and of CPU time, name of the limit
that ended the program (zero padded; `BUSY` is none of the program's), number of the session's
state."""
BUSY = b"busy"
"""In place of a limit's name: at the limit of wall time the program had not had its time."""
TAKEN = struct.Struct("=IdddddI")
"""Spare to server: its number, the time at which it took a request, the CPU time that it had used
before, the request's limits of CPU, own and wall time and of memory. The report's descriptor is
attached."""
STEP = struct.Struct("=III?")
"""Server to keeper: number of the state to fork, of the state to make, programs before, whether
the forked state must be kept."""
ANSWER = struct.Struct("=ciI")
"""Keeper to server: `ENDED`, exit code, number of the session's state."""
_WORDS = 250
GONE = 0xFFFFFFFF
"""In place of a state's number: the state is lost."""


def pair() -> tuple[_socket.socket, _socket.socket]:
    """Return a connected pair of message sockets."""
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)


def failure(error: BaseException | str) -> bytes:
    """Return the message which says that a program could not be started."""
    return FAILED + str(error).encode("utf-8", "replace")[:_WORDS]


def send(channel: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message and descriptors; raises OSError."""
    data = struct.pack(f"={len(descriptors)}i", *descriptors)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, data)] if descriptors else []
    channel.sendmsg([message], rights)


def receive(channel: _socket.socket, flags: int = 0) -> tuple[bytes, list[int]]:
    """Return a message and its attached descriptors, at most five; raises OSError."""
    message, extra, _, _ = channel.recvmsg(256, _socket.CMSG_SPACE(5 * 4), flags)
    data = b"".join(data for _, _, data in extra)
    return message, list(struct.unpack(f"={len(data) // 4}i", data))
