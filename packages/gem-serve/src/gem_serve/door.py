"""Who may hold a connection: sockets that ask nothing, large messages, answers that nobody reads.

A server has one process and one event loop for all clients. What one of them does must not keep the
others waiting: `/health` answers within a second.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

T = TypeVar("T")

REQUEST_S = 10.0
"""How long a connection may take to send a request of HTTP, and its body."""
_LIGHT = 2048
"""Characters of a message that is read without waiting for its turn."""
_SHORT_S = 0.02
"""Work that no other client notices."""
_MOST_UNSENT = 1 << 20
"""Bytes of answers that wait for a client, above which nothing more is read from it."""
_AT_A_TIME = 256
"""Connections that are taken before any of them is looked at."""
_MOST_VALUES = 50_000
_MOST_STRUCTURE = 1 << 20


def bounded(text: str) -> str:
    """Return a text of JSON that is parsed in less than a tenth of a second.

    Long strings are cheap. What costs time are many values, and numbers of many digits.

    Raises:
        ValueError: It has too many values, or too many characters outside of strings.
    """
    if len(text) > _LIGHT:
        plain = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
        values = plain.count('"') // 2
        if values <= _MOST_VALUES:
            structure = "".join(plain.split('"')[::2])
            if len(structure) > _MOST_STRUCTURE:
                raise ValueError(
                    f"{len(structure)} characters outside of strings; {_MOST_STRUCTURE} are allowed"
                )
            values += sum(map(structure.count, "[{,"))
        if values > _MOST_VALUES:
            raise ValueError(f"a message has at most {_MOST_VALUES} values")
    return text


class Turns:
    """Large messages of all connections are read one after the other, with rests between them.

    During the rests, which are as long as the work, the event loop serves everybody else.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self, text: str, function: Callable[[str], T]) -> T:
        """Return what a function of a message returns; raise what it raises."""
        if len(text) <= _LIGHT:
            return function(text)
        async with self._lock:
            began = time.monotonic()
            try:
                return function(text)
            finally:
                spent = time.monotonic() - began
                await asyncio.sleep(spent if spent > _SHORT_S else 0)


class Outgoing:
    """Answers on their way to one client."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._over = False

    def put(self, frame: bytes) -> None:
        """Send a frame of answers after those before it."""
        self._frames.append(frame)
        self._bytes += len(frame)
        self._more.set()
        if self._bytes > _MOST_UNSENT and not self._over:
            self._room.clear()

    async def room(self) -> None:
        """Wait until the client has read most of its answers, or is gone."""
        await self._room.wait()

    async def send_to(self, socket: WebSocket, send: Callable[..., Any]) -> None:
        """Send frames as they come, until the client is gone.

        Args:
            socket: The client's.
            send: Sends a text to it; returns whether it is still there.
        """
        try:
            while True:
                await self._more.wait()
                while self._frames:
                    frame = self._frames.popleft()
                    if not await send(socket, frame.decode()):
                        return
                    self._bytes -= len(frame)
                    if self._bytes <= _MOST_UNSENT:
                        self._room.set()
                    # A client that is gone is noticed by the event loop.
                    await asyncio.sleep(0)
                self._more.clear()
        finally:
            self._over = True
            self._room.set()


class Lobby:
    """Takes connections, and passes those on that send something.

    A socket that says nothing costs little here: no protocol, no task. It is closed after
    `REQUEST_S`, or earlier if there are too many.
    """

    def __init__(
        self, listening: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], most: int
    ) -> None:
        """Begin to take connections, in the running event loop.

        Args:
            listening: Where they come; `close` closes it.
            protocol: Makes the protocol of a connection that sends something.
            most: Most connections that wait here; for each further one the oldest is closed.
        """
        self._listening = listening
        self._protocol = protocol
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, float] = {}
        self._entering: set[asyncio.Task[Any]] = set()
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)
        self._timer = self._loop.call_later(1.0, self._look)

    def close(self) -> None:
        """Take no further connection, and close those that wait; safe to repeat."""
        self._timer.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()
        self._drop(len(self._silent))

    def _accept(self) -> None:
        for _ in range(_AT_A_TIME):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError:  # no descriptor is left
                self._loop.remove_reader(self._listening)
                self._drop(_AT_A_TIME)
                self._loop.call_later(0.05, self._go_on)
                return
            connection.setblocking(False)
            self._silent[connection] = self._loop.time() + REQUEST_S
            self._loop.add_reader(connection, self._enter, connection)
        self._drop(len(self._silent) - self._most)

    def _go_on(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _enter(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        if self._silent.pop(connection, None) is not None:
            entering = self._loop.create_task(self._entered(connection))
            self._entering.add(entering)
            entering.add_done_callback(self._entering.discard)

    async def _entered(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # it is gone already
            connection.close()

    def _look(self) -> None:
        now = self._loop.time()
        self._drop(sum(ends <= now for ends in self._silent.values()))
        self._timer = self._loop.call_later(1.0, self._look)

    def _drop(self, number: int) -> None:
        """Close the oldest that say nothing."""
        for connection in list(islice(self._silent, max(0, number))):
            del self._silent[connection]
            self._loop.remove_reader(connection)
            connection.close()


def doorkeeper(protocol: Any, most_idle: int, most_sockets: int) -> Any:
    """Return uvicorn's protocol of HTTP, without connections that ask nothing.

    One that sends no whole request within `REQUEST_S` is closed. If there are more than
    `most_idle`, the oldest that asks nothing is closed for each new one.

    Args:
        protocol: The class, uvicorn's of `h11` or `httptools`.
        most_idle: Most connections that are not WebSockets.
        most_sockets: Most WebSockets; further ones are closed before their handshake.
    """
    # In order of their beginnings.
    open: dict[Any, None] = {}
    limit, limit_sockets = most_idle, most_sockets

    class Door(protocol):  # type: ignore[misc]
        _seen: Any = None
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            open[self] = None
            self._timer = self.loop.call_later(REQUEST_S, self._look)
            if len(open) > limit:
                oldest = next((each for each in open if each.asks_nothing), self)
                oldest.turn_away()

        def connection_lost(self, exc: Exception | None) -> None:
            self._leave()
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, *event: Any) -> None:
            self._leave()
            if len(self.connections) - len(open) > limit_sockets:
                self.transport.abort()
                return
            super().handle_websocket_upgrade(*event)

        @property
        def asks_nothing(self) -> bool:
            """Whether no request is being answered."""
            return self.cycle is None or bool(self.cycle.response_complete)

        def turn_away(self) -> None:
            """Close the connection."""
            open.pop(self, None)
            self.transport.abort()

        def _look(self) -> None:
            if self.asks_nothing and self.cycle is self._seen:
                self.turn_away()
                return
            self._seen = self.cycle
            self._timer = self.loop.call_later(REQUEST_S, self._look)

        def _leave(self) -> None:
            open.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()

    return Door
