"""What a process of `ProcessExecutor` runs: frames from a socket, environments in threads.

The standard input is `/dev/null`. Programs that an environment starts inherit it, and not the
socket: they cannot read the requests, or keep the socket open when this process has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from functools import partial

from gem.executors.host import EnvHost
from gem.workers import pool as graders
from gem.workers.process import limit

_LENGTH = struct.Struct("!I")
_CLOSE_S = 4.0
"""How long environments may take to close."""


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def main(descriptor: str, memory_mb: str, workers: str) -> None:
    """Serve environments until the socket ends.

    Args:
        descriptor: Number of the socket.
        memory_mb: Limit on the address space; empty for none.
        workers: Number of processes that share this machine's cores.
    """
    # The executor decides when this process ends, also when a user interrupts both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    if hasattr(os, "register_at_fork"):
        # Not the object's own `close`: that waits until nobody reads from it.
        os.register_at_fork(after_in_child=partial(_close, int(descriptor)))
    graders.shared_by = int(workers)
    if memory_mb:
        limit("AS", int(memory_mb) * 2**20)

    def send(frame: bytes) -> None:
        # The executor may have ended.
        with contextlib.suppress(OSError):
            connection.sendall(_LENGTH.pack(len(frame)) + frame)

    host = EnvHost(send)
    send(b"[]")  # ready
    with contextlib.suppress(OSError), connection.makefile("rb") as stream:
        while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            host.receive(stream.read(length))
    host.close(wait_s=_CLOSE_S)
    # Threads of environments that hang cannot be joined.
    os._exit(0)
