"""The routes of a server, on Starlette: OpenEnv's of every environment, health and metrics.

Many environments share a connection at `/batch`. The routes of one begin with `/envs/<id>`;
OpenEnv's clients take that as their base URL. If the server offers one id only, its routes are also
those without a prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from gem.errors import UnreachableError
from gem.executors.threads import env_threads
from gem.plugins import extra
from gem.registry import spec
from gem.version import __version__
from gem_serve.batches import Batch
from gem_serve.door import REQUEST_S, Outgoing, Turns, bounded
from gem_serve.executors.remote import BATCH_PATH
from gem_serve.messages import (
    ACTION_SCHEMA,
    MOST_ANSWER_BYTES,
    NEEDED,
    OBSERVATION_SCHEMA,
    STATE_SCHEMA,
    dumps,
    fault,
    loads,
)
from gem_serve.offers import Refusal
from gem_serve.sessions import Hub, Session, SessionFailedError, in_loop

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send
    from starlette.websockets import WebSocket

_EXPIRE_EVERY_S = 1.0
_MOST_BODY_BYTES = 1 << 16
# Codes of WebSocket for an ended session: it broke a rule, the server fails, try again later.
_CLOSE_CODES = {"idle": 1008, "failed": 1011, "drained": 1012, "refused": 1013}
_MOST_REASON_BYTES = 120
_HTTP_VERSION = "1.0.0"
"""Of OpenEnv's standard for HTTP."""


def application(hub: Hub, token: str | None = None) -> Starlette:
    """Return the ASGI application of a server.

    Args:
        hub: Opens its sessions.
        token: That clients must send as `Authorization: Bearer <token>`; `/health` needs none.
            Without a token, requests of web pages (with the header `Origin`) are refused, as any
            page could otherwise use a server on the machine that shows it.

    Raises:
        MissingExtraError: The extra `serve` is not installed.
    """
    extra("starlette", NEEDED)
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Route, WebSocketRoute

    routes = _Routes(hub)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        expiring = asyncio.create_task(_expire(hub))
        yield
        expiring.cancel()

    found: list[Any] = [
        Route("/health", routes.health),
        Route("/metrics", routes.metrics),
        Route("/envs", routes.envs),
        WebSocketRoute(BATCH_PATH, routes.batch),
    ]
    for prefix in ("", "/envs/{id}"):
        found += [
            Route(f"{prefix}/health", routes.health),
            Route(f"{prefix}/schema", routes.schema),
            Route(f"{prefix}/metadata", routes.metadata),
            Route(f"{prefix}/openapi.json", routes.openapi),
            Route(f"{prefix}/state", routes.state),
            Route(f"{prefix}/reset", routes.reset, methods=["POST"]),
            Route(f"{prefix}/step", routes.step, methods=["POST"]),
            Route(f"{prefix}/mcp", routes.mcp, methods=["POST"]),
            WebSocketRoute(f"{prefix}/ws", routes.session),
        ]
    return Starlette(
        routes=found,
        middleware=[Middleware(_Guard, hub=hub, token=token)],
        exception_handlers={Refusal: routes.refused, Exception: routes.failed},
        lifespan=lifespan,
    )


class _Guard:
    """Refuses requests without the token; ASGI middleware."""

    def __init__(self, app: ASGIApp, hub: Hub, token: str | None) -> None:
        self._app = app
        self._hub = hub
        self._wanted = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not scope["path"].endswith("/health"):
            problem = self._problem(dict(scope["headers"]))
            if problem is not None:
                await self._refuse(problem, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, headers: dict[bytes, bytes]) -> Refusal | None:
        if self._wanted is None:
            if b"origin" not in headers:
                return None
            return Refusal(403, "SESSION_ERROR", "web pages may use servers with a token only")
        given = headers.get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")  # the scheme in any case, as HTTP has it
        if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._wanted):
            return None
        what = "another token" if given else "no token (Authorization: Bearer ...)"
        return Refusal(401, "SESSION_ERROR", f"this server needs a token; the request has {what}")

    async def _refuse(self, why: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.websockets import WebSocket

        self._hub.metrics.count("refusals", code=str(why.status))
        if scope["type"] == "http":
            await _answer(why.data, why.status)(scope, receive, send)
        else:
            await WebSocket(scope, receive, send).send_denial_response(
                _answer(why.data, why.status)
            )


class _Routes:
    """What each route answers."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._turns = Turns()

    async def health(self, request: Request) -> Response:
        """200 while sessions may begin, 503 while the server is draining."""
        if self._hub.draining:
            return _answer({"status": "unhealthy", "reason": "draining"}, 503)
        return _answer({"status": "healthy"})

    async def metrics(self, request: Request) -> Response:
        """Numbers in the format of Prometheus."""
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(
            self._hub.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def envs(self, request: Request) -> Response:
        """The ids that the server offers."""
        return _answer({"ids": self._hub.offer.ids})

    async def schema(self, request: Request) -> Response:
        """JSON schemas of actions, observations and states."""
        self._id(request)
        return _answer(
            {
                "action": ACTION_SCHEMA,
                "observation": OBSERVATION_SCHEMA,
                "reset_observation": OBSERVATION_SCHEMA,
                "state": STATE_SCHEMA,
            }
        )

    async def metadata(self, request: Request) -> Response:
        """OpenEnv's description of an environment."""
        id = self._id(request)
        # In a thread, as it imports the environment's module.
        description = await env_threads().run(_description, id)
        return _answer({"name": id, "description": description, "version": __version__})

    async def openapi(self, request: Request) -> Response:
        """The routes, as far as OpenEnv's validation looks at them."""
        self._id(request)
        paths = ("reset", "step", "state", "schema", "metadata", "health", "mcp")
        return _answer(
            {
                "openapi": "3.1.0",
                "info": {"title": "GEM", "version": _HTTP_VERSION},
                "paths": {f"/{path}": {} for path in paths},
            }
        )

    async def state(self, request: Request) -> Response:
        """The state before an episode: requests of HTTP have no session."""
        return _answer({"episode_id": None, "step_count": 0, "env_id": self._id(request)})

    async def reset(self, request: Request) -> Response:
        """The first observation of an episode that nobody plays."""
        from starlette.requests import ClientDisconnect

        try:
            body = await asyncio.wait_for(_body(request), REQUEST_S)
        except ClientDisconnect:
            return _answer({}, 400)  # nobody reads it
        except asyncio.TimeoutError:
            message = f"the body did not arrive within {REQUEST_S:g} s"
            raise Refusal(408, "VALIDATION_ERROR", message) from None
        try:
            data = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refusal(400, "INVALID_JSON", f"not JSON: {error}") from error
        if not isinstance(data, dict):
            raise Refusal(400, "VALIDATION_ERROR", "a reset takes a mapping")
        session = self._hub.open(self._id(request), _client(request))
        try:
            return _answer(await session.reset(data))
        except SessionFailedError as failed:
            return _answer(failed.data, 500)
        finally:
            session.close("closed")

    async def step(self, request: Request) -> Response:
        """Refused: requests of HTTP have no session."""
        url = f"/envs/{self._id(request)}/ws"
        raise Refusal(409, "SESSION_ERROR", f"steps need a session: open a WebSocket at {url}")

    async def mcp(self, request: Request) -> Response:
        """The answer of JSON-RPC that there is no such method."""
        self._id(request)
        error = {"code": -32601, "message": "this environment is not used through MCP"}
        return _answer({"jsonrpc": "2.0", "id": None, "error": error})

    async def refused(self, request: Request, error: Exception) -> Response:
        """The answer to a refused request."""
        assert isinstance(error, Refusal)
        self._hub.metrics.count("refusals", code=str(error.status))
        return _answer(error.data, error.status)

    async def failed(self, request: Request, error: Exception) -> Response:
        """The answer where the server itself fails."""
        return _answer({**fault(error), "code": "EXECUTION_ERROR"}, 500)

    async def session(self, socket: WebSocket) -> None:
        """One environment for the time of a connection."""
        try:
            id = self._id(socket)
            session = self._hub.open(id, _client(socket))
        except Refusal as refusal:
            self._hub.metrics.count("refusals", code=str(refusal.status))
            if refusal.status in (403, 404):
                await socket.send_denial_response(_answer(refusal.data, refusal.status))
                return
            # OpenEnv's clients show the message of an error, but not that of a refused handshake.
            await socket.accept()
            await _send(socket, dumps("error", {**refusal.data, "over": True}))
            await _close(socket, "refused", str(refusal))
            return
        ending = asyncio.create_task(_end(socket, session))
        reason = "gone"
        try:
            await socket.accept()
            reason = await self._talk(socket, session)
            if session.ended.done():
                await ending
                reason, _ = session.ended.result()
        finally:
            ending.cancel()
            session.close(reason)

    async def batch(self, socket: WebSocket) -> None:
        """Many environments for the time of a connection."""
        loop, answers = asyncio.get_running_loop(), Outgoing()
        try:
            batch = Batch(
                self._hub, _client(socket), lambda frame: in_loop(loop, answers.put, frame)
            )
        except Refusal as refusal:
            self._hub.metrics.count("refusals", code=str(refusal.status))
            await socket.send_denial_response(_answer(refusal.data, refusal.status))
            return
        tasks = [asyncio.create_task(answers.send_to(socket, _send))]
        try:
            await socket.accept()
            tasks.append(asyncio.create_task(_end_batch(socket, batch)))
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                await self._turns.take(message.get("text") or "", batch.receive)
                # A client that does not read its answers is not read either.
                await answers.room()
                await batch.room()
        except Refusal as refusal:
            self._hub.metrics.count("refusals", code=str(refusal.status))
            await _close(socket, "failed", str(refusal))
        finally:
            for task in tasks:
                task.cancel()
            batch.close()

    async def _talk(self, socket: WebSocket, session: Session) -> str:
        """Answer messages until the session ends; return what ended it, if not the server did."""
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect" or session.ended.done():
                return "gone"
            text = message.get("text") or ""  # a binary message is none of JSON
            try:
                kind, data = await self._turns.take(text, _message)
                if kind == "close":
                    await _close(socket, "closed", "")
                    return "closed"
                answer = await self._answered(session, kind, data)
            except Refusal as refusal:
                answer = self._refusal(refusal)
            except SessionFailedError as failed:
                await _send(socket, dumps("error", failed.data))
                await _close(socket, "failed", str(failed))
                return "failed"
            if not await _send(socket, answer):
                return "gone"
            session.end_if_drained()

    async def _answered(self, session: Session, kind: str, data: dict[str, Any]) -> str:
        """Return the answer to a message.

        Raises:
            Refusal: There is no such message, or it is not allowed now.
            SessionFailedError: The environment failed, or its answer cannot be sent.
        """
        try:
            return await self._asked(session, kind, data)
        except (Refusal, SessionFailedError):
            raise
        except Exception as error:
            raise session.failed(error) from error

    async def _asked(self, session: Session, kind: str, data: dict[str, Any]) -> str:
        if kind == "step":
            answer = dumps("observation", await session.step(data))
        elif kind == "reset":
            answer = dumps("observation", await session.reset(data))
        elif kind == "state":
            answer = dumps("state", session.state())
        elif kind == "make":
            answer = dumps("made", await session.make(data))
        elif kind == "call":
            answer = dumps("called", await session.call(data))
        else:
            known = "reset, step, state, close, make, call"
            raise Refusal(
                400, "UNKNOWN_TYPE", f"unknown message type {kind!r:.100}; known: {known}"
            )
        if len(answer) > MOST_ANSWER_BYTES:
            raise SessionFailedError(
                {
                    "message": f"the answer has {len(answer)} bytes, more than {MOST_ANSWER_BYTES}",
                    "cause": "environment",
                }
            )
        return answer

    def _refusal(self, refusal: Refusal) -> str:
        self._hub.metrics.count("refusals", code=str(refusal.status))
        return dumps("error", refusal.data)

    def _id(self, request: Request | WebSocket) -> str:
        """Return the environment's id that a route names, or that is the only one.

        Raises:
            Refusal: There is none, or it is not offered.
        """
        ids = self._hub.offer.ids
        id: str | None = request.path_params.get("id")
        if id is None:
            if len(ids) > 1:
                raise Refusal(
                    404, "SESSION_ERROR", "which environment? use /envs/<id>; /envs has all"
                )
            return ids[0]
        self._hub.offer.check_id(id)
        return id


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BODY_BYTES:
            raise Refusal(413, "VALIDATION_ERROR", f"a body has at most {_MOST_BODY_BYTES} bytes")
    return body


def _description(id: str) -> str:
    from gem.describing import summary

    return summary(spec(id).load()) or id


def _message(text: str) -> tuple[str, dict[str, Any]]:
    try:
        return loads(bounded(text))
    except ValueError as error:
        raise Refusal(400, "INVALID_JSON", f"not a message: {error}") from error


async def _end(socket: WebSocket, session: Session) -> None:
    """When the server ends a session, tell the client; the connection's next message is its end."""
    reason, message = await session.ended
    why = Refusal(503, "SESSION_ERROR", message, UnreachableError(message))
    await _send(socket, dumps("error", {**why.data, "over": True}))
    await _close(socket, reason, message)


async def _end_batch(socket: WebSocket, batch: Batch) -> None:
    await _close(socket, *await batch.ended)


async def _send(socket: WebSocket, text: str) -> bool:
    """Send a message; return False if the client is gone."""
    from starlette.websockets import WebSocketDisconnect

    try:
        await socket.send_text(text)
    except (WebSocketDisconnect, RuntimeError):  # RuntimeError: uvicorn noticed it first
        return False
    return True


async def _close(socket: WebSocket, reason: str, message: str) -> None:
    from starlette.websockets import WebSocketDisconnect

    text = message.encode()[:_MOST_REASON_BYTES].decode(errors="ignore")
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.close(_CLOSE_CODES.get(reason, 1000), text)


async def _expire(hub: Hub) -> None:
    while True:
        await asyncio.sleep(_EXPIRE_EVERY_S)
        hub.expire(time.monotonic())


def _answer(data: Any, status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(data, status)


def _client(request: Request | WebSocket) -> str:
    return request.client.host if request.client else "unknown"
