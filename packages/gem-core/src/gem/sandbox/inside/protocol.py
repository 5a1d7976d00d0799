"""The messages between the executor, the sandbox and what runs in it."""

from __future__ import annotations

import _socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

REQUEST = struct.Struct("=dIIIQQIII?")
"""Wall limit in seconds, memory and disk limits in MB, processes; then, of a session: its key (0
for a program by itself), the seed of its random numbers, the state to go on from (0: the one that
it begins with), the number of the state to be made (0: end the session), how many programs came
before, and whether the state to go on from is needed again."""
ENDED, FAILED = b"=", b"!"
"""The first byte of what is said of a program: it ended, and a report or an answer follows; or it
could not be started, and words follow that say why."""
REPORT = struct.Struct("=cid6sI")
"""`ENDED`, exit code, seconds, the limit that ended the program, padded with zeros; the state that
the session is in."""
TAKEN = struct.Struct("=IddI")
"""From a spare to its server: its number, the time at which it has taken a request; the request's
wall limit and memory limit. With it goes the descriptor of the report."""
STEP = struct.Struct("=III?")
"""From a server to a session: the state to go on from, that to be made, programs before, needed."""
ANSWER = struct.Struct("=ciI")
"""From a session to its server: `ENDED`, exit code, the state that it is in."""
_WORDS = 250
GONE = 0xFFFFFFFF
"""Instead of a state: there is none any more."""


def pair() -> tuple[_socket.socket, _socket.socket]:
    """Return the two ends of a channel for messages."""
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)


def failure(error: BaseException | str) -> bytes:
    """Return the message that a program could not be started."""
    return FAILED + str(error).encode("utf-8", "replace")[:_WORDS]


def send(channel: _socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message and descriptors; raises OSError."""
    data = struct.pack(f"={len(descriptors)}i", *descriptors)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, data)] if descriptors else []
    channel.sendmsg([message], rights)


def receive(channel: _socket.socket, flags: int = 0) -> tuple[bytes, list[int]]:
    """Return a message, and the descriptors that came with it, at most five; raises OSError."""
    message, extra, _, _ = channel.recvmsg(256, _socket.CMSG_SPACE(5 * 4), flags)
    data = b"".join(data for _, _, data in extra)
    return message, list(struct.unpack(f"={len(data) // 4}i", data))
