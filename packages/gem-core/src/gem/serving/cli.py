"""The command `python -m gem serve`: runs the application on uvicorn until it has drained."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import socket
import sys
from typing import Any

from gem.errors import ConfigurationError
from gem.executors.named import make_executor
from gem.parameters import integer
from gem.plugins import extra
from gem.serving.app import application
from gem.serving.messages import NEEDED, TOKEN_VARIABLE
from gem.serving.offers import Limits, Offer
from gem.serving.sessions import Hub

# A character of an action takes at most six bytes in JSON.
_JSON_BYTES = 6
_ENVELOPE_BYTES = 1 << 16
_BACKLOG = 2048
_AT_LAST_S = 5


def serve(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends it at once.

    Raises:
        ConfigurationError: A value is not allowed, or the address cannot be used.
        MissingExtraError: The extra `serve` is not installed.
    """
    for module in ("starlette", "uvicorn", "websockets"):
        extra(module, NEEDED)
    given = vars(arguments)
    limits = Limits(**{name: given[name] for name in Limits.__dataclass_fields__})
    offer = Offer(arguments.ids, parameters=arguments.allow_parameters, tools=arguments.tools)
    token = arguments.token or os.environ.get(TOKEN_VARIABLE) or None
    executor = None if arguments.executor == "thread" else make_executor(arguments.executor)
    listening = listen(arguments.host, arguments.port)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    if token is None and not ipaddress.ip_address(host).is_loopback:
        print(
            f"warning: anybody who reaches {shown}:{port} can use this server; --token or "
            f"{TOKEN_VARIABLE} restricts it",
            file=sys.stderr,
        )
    one = len(offer.ids) == 1
    what, id = (offer.ids[0], offer.ids[0]) if one else (f"{len(offer.ids)} environments", "<id>")
    print(f"{what} at http://{shown}:{port}/envs/{id}", flush=True)
    try:
        asyncio.run(run(Hub(offer, limits, executor), token, listening))
    finally:
        if executor is not None:
            executor.close()
    return 0


async def run(hub: Hub, token: str | None, listening: socket.socket) -> None:
    """Serve until `hub` has drained.

    SIGTERM and SIGINT begin to drain if this is the main thread; a second one ends it at once.

    Args:
        hub: Opens the sessions.
        token: See `gem.serving.app.application`.
        listening: The socket; it is closed at the end.
    """
    import uvicorn

    # uvicorn takes a refused handshake for one that the application forgot.
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: "without completing handshake" not in record.getMessage()
    )
    limits = hub.limits
    loop = asyncio.get_running_loop()

    class Server(uvicorn.Server):  # type: ignore[misc]
        def handle_exit(self, sig: int, frame: Any) -> None:
            if hub.draining:
                super().handle_exit(sig, frame)
            else:
                loop.call_soon_threadsafe(hub.drain)

    server = Server(
        uvicorn.Config(
            application(hub, token),
            log_config=None,
            access_log=False,
            lifespan="on",
            # A client could otherwise choose the address that its limit counts under.
            proxy_headers=False,
            server_header=False,
            ws_max_size=_JSON_BYTES * limits.max_action_bytes + _ENVELOPE_BYTES,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=_AT_LAST_S,
        )
    )
    draining = asyncio.create_task(_drain(hub, server))
    try:
        await server.serve(sockets=[listening])
    finally:
        draining.cancel()


async def _drain(hub: Hub, server: Any) -> None:
    """End the server when it has drained, or has had its time."""
    await hub.begun_draining.wait()
    try:
        await asyncio.wait_for(hub.drained.wait(), hub.limits.drain_timeout_s)
    except asyncio.TimeoutError:
        if hub.sessions:
            print(f"{len(hub.sessions)} episodes had to be ended", file=sys.stderr)
    server.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigurationError: It cannot, as when the port is in use.
    """
    integer("port", port, 0, 65535)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {host}, port {port}: {error}") from error
