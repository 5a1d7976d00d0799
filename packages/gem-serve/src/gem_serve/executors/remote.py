"""`RemoteExecutor`: environments of `python -m gem serve`; needs the extra `gem-core[serve]`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any

from gem.errors import MisuseError, UnreachableError
from gem.executors.frames import FRAME_BYTES
from gem.executors.pool import PoolExecutor, Worker
from gem.foreign import described, trace
from gem.plugins import extra

logger = logging.getLogger(__name__)

WAIT_S = 30.0
"""How long a server that does not respond, or is full, is asked again and again."""
_PAUSE_S = 0.5
_LOOK_S = 1.0
BATCH_PATH = "/batch"


class RemoteExecutor(PoolExecutor):
    """Environments of a server, many on one connection.

    If a connection is lost, the episodes go on on a new one, be it to the same server or, behind
    one address, to another.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        connections: int = 1,
        wait_s: float = WAIT_S,
    ) -> None:
        """Store the parameters; connections are made when they are needed.

        Args:
            url: `http://host:port` or `https://...`.
            token: That the server wants; by default the value of `GEM_SERVE_TOKEN`, if set.
            connections: Most connections.
            wait_s: How long a server that does not respond, or is full, is asked again.

        Raises:
            ConfigurationError: The address is none.
            MissingExtraError: The extra `serve` is not installed.
        """
        from gem_serve.connection import checked_url
        from gem_serve.messages import NEEDED, TOKEN_VARIABLE

        extra("websockets.sync.client", NEEDED)
        self._url = checked_url(url)
        self._token = token or os.environ.get(TOKEN_VARIABLE) or None
        self._wait_s = wait_s
        super().__init__(connections)

    def _start(self) -> Worker:
        return _Connection(self, self._url, self._token, self._wait_s)

    def close(self) -> None:
        """Close all connections; the server closes the environments."""
        with self._lock:
            connections = [w for w in self._workers if isinstance(w, _Connection)]
        super().close()
        for connection in connections:
            connection.join()


class _Connection(Worker):
    """One connection: a thread that reads, and one that writes and looks after it."""

    def __init__(self, pool: RemoteExecutor, url: str, token: str | None, wait_s: float) -> None:
        super().__init__()
        self.frame_bytes = FRAME_BYTES
        self._pool = pool
        self._url = url
        self._token = token
        self._wait_s = wait_s
        self._unsent: SimpleQueue[str | None] = SimpleQueue()
        self._socket: Any = None
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=each, name="gem-remote", daemon=True)
            for each in (self._read, self._write)
        ]
        self._opened = threading.Event()
        for thread in self._threads:
            thread.start()

    def send(self, frame: bytes) -> None:
        self._unsent.put(frame.decode())

    def end(self, *, kill: bool = False) -> None:
        self._closing.set()
        self._unsent.put(None)

    def join(self) -> None:
        """Wait until the connection is closed."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _read(self) -> None:
        """Connect, and pass frames of answers on until the connection ends."""
        from websockets.exceptions import ConnectionClosed

        error: Exception | None = None
        why = "the connection was closed"
        with contextlib.ExitStack() as stack:
            try:
                self._socket = self._connected(stack)
                self._opened.set()
                self._pool.received(self, b"[]")
                while True:
                    self._pool.received(self, self._socket.recv())
            except (MisuseError, UnreachableError) as refused:
                why, error = str(refused), refused
            except (ConnectionClosed, OSError) as lost:
                why = f"the connection to {self._url} was lost: {lost}"
            except Exception as failed:
                why = f"{self._url} sent something that is not an answer: {described(failed)}"
                logger.warning("%s\n%s", why, trace(failed))
            finally:
                self._closing.set()
                self._opened.set()
                self._unsent.put(None)
        self._pool.ended(self, why, error)

    def _connected(self, stack: contextlib.ExitStack) -> Any:
        from gem_serve.connection import connected

        ends = time.monotonic() + self._wait_s
        while True:
            try:
                return connected(stack, self._url + BATCH_PATH, self._token)
            except UnreachableError:
                if time.monotonic() > ends or self._closing.wait(_PAUSE_S):
                    raise

    def _write(self) -> None:
        from websockets.exceptions import ConnectionClosed

        self._opened.wait()
        while self._socket is not None:
            try:
                frame = self._unsent.get(timeout=_LOOK_S)
            except Empty:
                self._pool.look()
                continue
            # The reader notices a connection that is lost.
            with contextlib.suppress(ConnectionClosed, OSError):
                if frame is None:
                    self._socket.close()
                else:
                    self._socket.send(frame)
            if frame is None:
                return
