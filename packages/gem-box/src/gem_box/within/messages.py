"""Messages between the caller, the keeper and the first process: a JSON object and descriptors."""

from __future__ import annotations

import array
import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_LONGEST = 1 << 16
_DESCRIPTORS = 64


def pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair of message sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message and descriptors; raises OSError."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([json.dumps(message).encode()], rights if descriptors else [])


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a message, None at the end, and the attached descriptors; raises OSError."""
    room = socket.CMSG_SPACE(_DESCRIPTORS * 4)
    data, extra, _, _ = channel.recvmsg(_LONGEST, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for _, _, each in extra:
        descriptors.frombytes(each[: len(each) - len(each) % 4])
    return (json.loads(data) if data else None), list(descriptors)


def close(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
