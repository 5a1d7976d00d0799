"""Local servers as context managers: started on entry, killed on exit."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

START_TIMEOUT_S = 60.0
_POLL_S = 0.1


class ServerError(RuntimeError):
    """A server did not start; the message has the end of its standard error."""


@contextmanager
def time_server() -> Iterator[str]:
    """Run the MCP server of times and dates; yields its address.

    Raises:
        ServerError: The server ended at once, or does not listen after `START_TIMEOUT_S`.
    """
    port = free_port()
    command = [sys.executable, "-m", "gem_cpu.time_server", "--port", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        _wait_for(process, port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_for(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the server ended: {(process.communicate()[1] or '')[-2000:]}")
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(_POLL_S)
    raise ServerError(f"no server listens at port {port} after {START_TIMEOUT_S:g} s")
