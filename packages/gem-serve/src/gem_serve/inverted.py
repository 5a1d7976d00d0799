"""The inverted endpoint: a local chat server whose model is whoever calls `Session.reply`.

An agent program speaks to it as to any OpenAI-compatible server. A request waits until the policy
has replied. One server for all episodes of a process; a session is found by the first part of the
URL's path, by the header `X-Session-ID`, or by the API key.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gem.errors import DataError
from gem.json_lines import parse
from gem_serve.conversation import AgentProgramError, Conversation, HistoryError

MODEL = "policy"
"""Name of the only model that the server lists; requests may name any."""
_MOST_BYTES = 64 << 20
_START_S = 60.0


@dataclass(frozen=True)
class Ended:
    """The program has ended, with whatever its owner knows of that."""

    result: Any


@dataclass(frozen=True)
class _Reply:
    message: dict[str, Any]
    finish: str


class Session:
    """One episode of a program: its requests as observations, actions as replies.

    `observe`, `reply` and `close` belong to one thread; `end` and `refuse` may be called by any.

    Attributes:
        token: Part of the URL, and the API key.
        refused: What the program asked for in vain, such as other paths of the API.
    """

    def __init__(self) -> None:
        """Open a session; it is reachable at once."""
        self.token = secrets.token_urlsafe(16)
        self.refused: list[str] = []
        self._server = _server()
        self._names = [self.token]
        self._conversation = Conversation()
        self._events: queue.Queue[dict[str, Any] | Ended | AgentProgramError] = queue.Queue()
        self._waiting: asyncio.Future[_Reply | None] | None = None
        self._server.sessions[self.token] = self

    @property
    def url(self) -> str:
        """Base URL of this session alone, such as a program wants it in `OPENAI_BASE_URL`."""
        return f"{self._server.url}/{self.token}/v1"

    @property
    def turns(self) -> int:
        """Number of replies so far."""
        return self._conversation.turns

    def also(self, name: str) -> None:
        """Take requests at `shared_url()` whose header `X-Session-ID` is this name, too."""
        self._names.append(name)
        self._server.sessions[name] = self

    def observe(self, timeout_s: float) -> str | Ended:
        """Wait for what the program does next: a request, as observation, or its end.

        Args:
            timeout_s: Limit in seconds.

        Raises:
            AgentProgramError: The program did neither in time, or what GEM cannot follow.
        """
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            raise AgentProgramError(
                f"the program neither asked the policy nor ended within {timeout_s:g} s"
            ) from None
        if isinstance(event, AgentProgramError):
            raise event
        if isinstance(event, Ended):
            if self._waiting is not None:
                raise AgentProgramError("the program ended while it waited for the policy")
            return event
        return self._conversation.observe(event)

    def reply(self, action: str) -> None:
        """Answer the request that waits, with the policy's text."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            raise AgentProgramError("the program does not wait for the policy any more")
        self._server.settle(waiting, _Reply(*self._conversation.reply(action)))

    def end(self, result: Any) -> None:
        """Say that the program has ended."""
        self._events.put(Ended(result))

    def refuse(self, error: AgentProgramError) -> None:
        """Say that the program does what GEM cannot follow; the next `observe` raises it."""
        self._events.put(error)

    def close(self) -> None:
        """Forget the session; a request that waits is answered with an error."""
        for name in self._names:
            self._server.sessions.pop(name, None)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._server.settle(waiting, None)

    async def asked(self, body: dict[str, Any], request: Request) -> _Reply | None:
        """Hand a request over and wait for the reply; None if there is none. Of the server."""
        if self._waiting is not None:
            self.refuse(
                HistoryError(
                    "the program asked again before it had the policy's reply: GEM plays "
                    "one conversation, without parallel calls"
                )
            )
            return None
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        self._events.put(body)
        # After its body, a request receives nothing but the end of its connection.
        left = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait({waiting, left}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                reply: _Reply | None = waiting.result()
                return reply
            self.refuse(AgentProgramError("the program hung up before it had the policy's reply"))
            return None
        finally:
            left.cancel()


def shared_url() -> str:
    """Return the base URL of all sessions, for programs that send `X-Session-ID`."""
    return f"{_server().url}/v1"


@dataclass
class _Server:
    """The server of this process, in a thread of its own."""

    pid: int = field(default_factory=os.getpid)
    sessions: dict[str, Session] = field(default_factory=dict)
    url: str = ""
    loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        # By name of the protocol: else asyncio does not turn off the delay of small packets, 40 ms.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        server = uvicorn.Server(config)
        started = threading.Event()

        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            started.set()
            await server.serve(sockets=[listening])

        name = "gem inverted endpoint"
        threading.Thread(target=lambda: asyncio.run(serve()), name=name, daemon=True).start()
        started.wait(_START_S)

    def settle(self, waiting: asyncio.Future[_Reply | None], reply: _Reply | None) -> None:
        """Set the result of a future that the server's loop waits for."""
        assert self.loop is not None

        def set_result() -> None:
            if not waiting.done():
                waiting.set_result(reply)

        self.loop.call_soon_threadsafe(set_result)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        response = await self._response(request)
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        begin, _, path = request.url.path.strip("/").partition("/")
        if begin == "v1":
            key = request.headers.get("authorization", "").removeprefix("Bearer ")
            named = request.headers.get("x-session-id") or key
        else:
            named, path = begin, path.removeprefix("v1/")
        session = self.sessions.get(named)
        if session is None:
            return _error(410, "there is no such episode, or it is over")
        asked = f"{request.method} {path}"
        if asked == "GET models":
            listed = {"id": MODEL, "object": "model", "created": 0, "owned_by": "gem"}
            return JSONResponse({"object": "list", "data": [listed]})
        if asked != "POST chat/completions":
            session.refused.append(asked)
            return _error(404, f"{asked}: GEM answers chat/completions only")
        body = await _body(request)
        if not isinstance(body, dict):
            return _error(400, "the body is not a JSON object")
        reply = await session.asked(body, request)
        if reply is None:
            return _error(410, "the episode is over")
        return _completion(body, reply)


async def _body(request: Request) -> Any:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MOST_BYTES:
            return None
    try:
        return parse(data, "the body")
    except DataError:
        return None


def _error(status: int, message: str) -> Response:
    # Clients do not repeat what is answered so.
    return JSONResponse({"error": {"message": message, "type": "gem"}}, status)


def _completion(body: dict[str, Any], reply: _Reply) -> Response:
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    common = {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "created": int(time.time()),
        "model": str(body.get("model", MODEL)),
    }
    if not body.get("stream"):
        choice = {"index": 0, "message": reply.message, "finish_reason": reply.finish}
        return JSONResponse(
            {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
        )
    delta = dict(reply.message)
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(calls)]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}]},
    ]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({"choices": [], "usage": usage})
    common["object"] = "chat.completion.chunk"
    lines = [json.dumps({**common, **chunk}) for chunk in chunks]
    text = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
    return Response(text, media_type="text/event-stream")


_made: list[_Server] = []
_lock = threading.Lock()


def _server() -> _Server:
    """Return this process's server; a forked process has none of its parent's threads."""
    with _lock:
        if not _made or _made[0].pid != os.getpid():
            server = _Server()
            server.start()
            _made[:] = [server]
        return _made[0]
