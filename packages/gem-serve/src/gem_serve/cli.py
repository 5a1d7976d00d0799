"""The command `python -m gem serve`: runs the application on uvicorn until it has drained."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gem.errors import ConfigurationError
from gem.executors.named import make_executor
from gem.parameters import integer
from gem.plugins import extra
from gem_serve.app import application
from gem_serve.door import Lobby, doorkeeper
from gem_serve.messages import NEEDED, TOKEN_VARIABLE
from gem_serve.offers import Limits, Offer
from gem_serve.sessions import Hub

# A character of an action takes at most six bytes in JSON.
_JSON_BYTES = 6
_ENVELOPE_BYTES = 1 << 16
_BACKLOG = 4096
_MOST_IDLE = 1024
_REFUSED = 64
"""WebSockets that are told that the server is full."""
_DESCRIPTORS = 256
"""Of the interpreter, the executor and refused clients."""
_AT_LAST_S = 5


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    about = "serve environments over HTTP and WebSocket, for remote: ids and OpenEnv's clients"
    parser = argparse.ArgumentParser(prog="python -m gem serve", description=about)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="default: this machine only")
    add("--port", type=int, default=8000, help="0: a free one (default: 8000)")
    add("--token", help="that clients must send; GEM_SERVE_TOKEN is not seen in the process list")
    about = "ids to offer, such as 'game:*' (default: all)"
    add("--ids", nargs="+", default=[], metavar="PATTERN", help=about)
    about = "tools that clients may add to an environment at this server (default: none)"
    add("--tools", nargs="+", default=[], metavar="TOOL", help=about)
    about = "clients may set parameters; these can name files, programs and addresses"
    add("--allow-parameters", action="store_true", help=about)
    about = "where environments run: thread, process[:workers], ray[:workers] (default: thread)"
    add("--executor", default="thread", metavar="NAME", help=about)
    about = "environments at a time (default: 1024)"
    add("--max-envs", type=int, default=1024, metavar="N", help=about)
    about = "environments of one client address (default: 0, no limit)"
    add("--max-envs-per-client", type=int, default=0, metavar="N", help=about)
    about = "end sessions without a message for so long (default: 1800)"
    add("--session-timeout-s", type=float, default=1800.0, metavar="S", help=about)
    about = "limit of one reset or step (default: 600)"
    add("--step-timeout-s", type=float, default=600.0, metavar="S", help=about)
    about = "after SIGTERM, running episodes have so long to end (default: 60)"
    add("--drain-timeout-s", type=float, default=60.0, metavar="S", help=about)
    about = "size of an action as UTF-8 (default: 1048576)"
    add("--max-action-bytes", type=int, default=1 << 20, metavar="N", help=about)
    return serve(parser.parse_args(argv))


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
    limits, most_idle = fitting(limits)
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
        asyncio.run(run(Hub(offer, limits, executor), token, listening, most_idle))
    finally:
        if executor is not None:
            executor.close()
    return 0


def fitting(limits: Limits) -> tuple[Limits, int]:
    """Return limits that this process's descriptors allow, and its most idle connections.

    An environment may have a WebSocket of its own, and as many connections may share environments.
    The soft limit of descriptors is raised as far as the hard one allows; what does not fit then is
    less environments, with a warning: a server without descriptors answers nobody.
    """
    try:
        import resource
    except ImportError:  # this platform has no such limit
        return limits, _MOST_IDLE
    needed = 2 * (limits.max_envs + _MOST_IDLE) + _DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    if soft != endless and soft < needed:
        wanted = needed if hard == endless else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == endless or soft >= needed:
        return limits, _MOST_IDLE
    most_idle = min(_MOST_IDLE, soft // 8)
    most = max(1, (soft - _DESCRIPTORS) // 2 - most_idle)
    if most >= limits.max_envs:
        return limits, most_idle
    print(
        f"warning: this process may have {soft} open files (ulimit -n), enough for {most} "
        f"environments; --max-envs {limits.max_envs} needs {needed}",
        file=sys.stderr,
    )
    return replace(limits, max_envs=most), most_idle


async def run(
    hub: Hub, token: str | None, listening: socket.socket, most_idle: int = _MOST_IDLE
) -> None:
    """Serve until `hub` has drained.

    SIGTERM and SIGINT begin to drain if this is the main thread; a second one ends it at once.

    Args:
        hub: Opens the sessions.
        token: See `gem_serve.app.application`.
        listening: The socket; it is closed at the end.
        most_idle: Most connections that say nothing, and most that are not WebSockets; if there
            are more, the oldest of those that ask nothing are closed.
    """
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

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

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            self.lobby = Lobby(listening, self.protocol, most_idle)

        def protocol(self) -> asyncio.BaseProtocol:
            made: asyncio.BaseProtocol = self.config.http_protocol_class(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )
            return made

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            self.lobby.close()
            await super().shutdown(sockets)

    server = Server(
        uvicorn.Config(
            application(hub, token),
            http=doorkeeper(AutoHTTPProtocol, most_idle, 2 * limits.max_envs + _REFUSED),
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
        # uvicorn listens nowhere: connections come from the lobby.
        await server.serve(sockets=[])
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
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {host}, port {port}: {error}") from error
    # Connections inherit it. asyncio sets it only where the socket says that its protocol is TCP.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
