"""Stand-in for Courier, the RPC library of Launchpad, which has no wheel for this Python version.

The part that Launchpad and oat use, over `multiprocessing.connection` on one machine: a call sends
pickled arguments and receives a result or a traceback. Connections are reused.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import connection as channels
from multiprocessing.connection import Connection, Listener
from typing import Any

import cloudpickle

PATIENCE_S = 600.0
"""Longest time that a client waits for a server to listen."""


class Client:
    """Calls the methods that a server has bound: `client.name(...)`, `client.futures.name(...)`."""

    def __init__(self, server_address: str, **options: Any) -> None:
        self._address = str(server_address)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self._address,)

    @property
    def address(self) -> str:
        """Host and port of the server."""
        return self._address

    @property
    def futures(self) -> Futures:
        """The same methods, returning futures."""
        return Futures(self)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self._call(method, args, kwargs)

    def _call(self, method: str, args: Any, kwargs: Any) -> Any:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connect()
        try:
            connection.send_bytes(cloudpickle.dumps((method, args, kwargs)))
            done, answer = cloudpickle.loads(connection.recv_bytes())
        except (EOFError, OSError) as error:
            connection.close()
            raise RuntimeError(f"{method}: the server at {self._address} is gone") from error
        with self._lock:
            self._idle.append(connection)
        if not done:
            raise RuntimeError(answer)
        return answer

    def _connect(self) -> Connection:
        host, _, port = self._address.rpartition(":")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return channels.Client((host, int(port)))
            except (ConnectionError, EOFError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


class Futures:
    """A client's methods without blocking: they return futures."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, method: str) -> Callable[..., Future[Any]]:
        def start(*args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()

            def run() -> None:
                try:
                    future.set_result(self._client._call(method, args, kwargs))
                except BaseException as error:  # raised by the future's result()
                    future.set_exception(error)

            threading.Thread(target=run, daemon=True).start()
            return future

        return start


class Server:
    """Answers the calls of clients, each connection in a thread of its own."""

    def __init__(self, name: str | None = None, port: int | None = None, **options: Any) -> None:
        self._port = port
        self._methods: dict[str, Callable[..., Any]] = {}
        self._listener: Listener | None = None

    @property
    def port(self) -> int | None:
        """The port it listens on."""
        return self._port

    def Bind(self, name: str, function: Callable[..., Any]) -> None:
        """Let clients call a function."""
        self._methods[name] = function

    BindHandler = Bind

    def Start(self) -> None:
        """Begin to listen."""
        listener = Listener(("localhost", int(self._port or 0)), backlog=64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def Stop(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()

    def Join(self) -> None:
        """Nothing is left to wait for."""

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    method, args, kwargs = cloudpickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    return
                connection.send_bytes(self._answer(method, args, kwargs))

    def _answer(self, method: str, args: Any, kwargs: Any) -> bytes:
        try:
            return bytes(cloudpickle.dumps((True, self._methods[method](*args, **kwargs))))
        except BaseException:  # sent to the client, which raises it
            return bytes(cloudpickle.dumps((False, f"{method}:\n{traceback.format_exc()}")))
