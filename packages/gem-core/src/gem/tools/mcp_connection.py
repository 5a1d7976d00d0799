"""Connections to MCP servers, held by one background event loop per process.

The only module of gem that imports the MCP SDK, and AnyIO, which comes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, TypeVar

from gem.errors import MissingExtraError
from gem.fetching import is_local
from gem.plugins import extra

T = TypeVar("T")

_MOST_PAGES = 100
_TAIL_BYTES = 2_000
_CLOSE_S = 8.0
# Extra time for the event loop beyond the time limit of a call.
_SLACK_S = 5.0
_ANSWER_S = 5.0
# How the SDK's own errors begin where an answer did not come or cannot be read. It gives them codes
# that servers use for errors of their own.
_ENDED = ("Connection closed", "SSE stream")
_NO_ANSWER = (
    "Failed to parse",
    "Not Found",
    "Redirect to ",
    "Server returned an error response",
    "Session terminated",
    "Unexpected content type",
    "server answered a request with 202",
)


class ServerGoneError(Exception):
    """A server cannot be reached, or the connection to it broke."""


class UnreadableError(ServerGoneError):
    """A server, or what stands before it, answered a call with something that is no answer."""


class Refused(Exception):  # noqa: N818
    """A server refused a call, or took too long."""


class TookTooLong(Refused):
    """A call was not done within its time limit."""


class Function(NamedTuple):
    """A function that a server offers."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments."""


class Connection:
    """A connection of one environment to one server; `functions` are the server's."""

    def __init__(self, server: Mapping[str, Any], timeout_s: float) -> None:
        """Connect, and list the functions.

        Args:
            server: `{"url", "headers"}` or `{"command", "args", "env", "cwd"}`.
            timeout_s: Seconds until the attempt is given up.

        Raises:
            MissingExtraError: The extra `mcp` is not installed.
            ServerGoneError: The server does not start, answer or speak MCP.
        """
        _sdk()
        self.used = False
        """Whether a function was called."""
        self._server = server
        self._last_words = bytearray()
        self._asking: Any = None
        """Scope of the present call, cancelled by what is no answer: `_nonsense`."""
        self._nonsense = ""
        self._pid = os.getpid()
        self._portal = _portal(self._pid)
        self._task, _ = self._portal.start_task(self._live, timeout_s)

    @property
    def usable(self) -> bool:
        """Whether the connection was made in this process and is still open."""
        return self._pid == os.getpid() and not self._task.done()

    def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> str:
        """Call a function; return its result as text.

        Raises:
            Refused: The server returns an error or is not done within `timeout_s`, or the arguments
                cannot be sent.
            ServerGoneError: The connection broke.
            UnreadableError: What came is no answer.
        """
        self.used = True
        return self._wait(timeout_s + _SLACK_S, self._call, name, arguments, timeout_s)

    async def _call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> str:
        import anyio

        params = {"name": name, "arguments": dict(arguments)}
        try:
            _types().JSONRPCRequest(
                jsonrpc="2.0", id=0, method="tools/call", params=params
            ).model_dump_json()
            json.dumps(params, allow_nan=False)
        except ValueError as error:
            raise Refused(f"the arguments cannot be sent: {error}") from error
        try:
            with anyio.CancelScope() as self._asking:
                # When the SDK's own limit is reached, it also asks the server to cancel the call.
                result = await self._client.call_tool(
                    name, dict(arguments), read_timeout_seconds=timeout_s
                )
        except _sdk().MCPError as error:
            if error.code == _types().REQUEST_TIMEOUT:
                raise TookTooLong(f"{name} was not done after {timeout_s:g} s") from error
            if str(error).startswith(_NO_ANSWER):
                raise UnreadableError(self._reason(error)) from error
            if str(error).startswith(_ENDED):
                raise ServerGoneError(self._reason(error)) from error
            raise Refused(str(error)) from error
        except (ValueError, RuntimeError) as error:
            # What the SDK raises for a result that is not of its type or not of the tool's schema.
            raise UnreadableError(self._unlike(error)) from error
        except Exception as error:
            raise ServerGoneError(self._reason(error)) from error
        if self._asking.cancelled_caught:
            raise UnreadableError(self._nonsense)
        if result.is_error:
            raise Refused(_text(result))
        return _text(result)

    def answers(self) -> bool:
        """Return whether the server answers a question that needs no work; an error is an answer.

        The question is for its functions: later versions of the protocol have no ping.
        """
        if not self.usable:
            return False
        try:
            ask = functools.partial(self._client.list_tools, cache_mode="refresh")
            self._wait(_ANSWER_S, ask)
        except _sdk().MCPError as error:
            timed_out = error.code == _types().REQUEST_TIMEOUT
            return not timed_out and not str(error).startswith(_NO_ANSWER + _ENDED)
        except Exception:
            return False
        return True

    def close(self) -> None:
        """End the connection, and the server if it was started for it; safe to repeat."""
        if self.usable:
            self._portal.call(self._closing.set)
            # A connection that cannot be closed in time ends with this process.
            with contextlib.suppress(FutureTimeoutError):
                self._task.result(_CLOSE_S)

    async def _live(self, timeout_s: float, *, task_status: Any) -> None:
        """Open, hold and close the connection in one task, as the SDK's contexts require."""
        import anyio

        self._closing: Any = anyio.Event()
        opened = False
        try:
            with anyio.move_on_after(timeout_s) as opening:
                async with AsyncExitStack() as stack:
                    transport = await self._transport(stack)
                    self._client: Any = await stack.enter_async_context(
                        _sdk().Client(transport, message_handler=self._heard)
                    )
                    self.functions: list[Function] = await self._listed()
                    opening.deadline = math.inf
                    opened = True
                    task_status.started()
                    await self._closing.wait()
        except Exception as error:
            if not opened and not opening.cancel_called:
                raise ServerGoneError(self._reason(error)) from error
        if not opened:
            raise ServerGoneError(f"no answer within {timeout_s:g} s{self._said()}")

    async def _heard(self, message: Any) -> None:
        """Take what is neither an answer nor a question; a broken answer ends the call.

        Servers may write lines that are no messages to their standard output; they are not meant
        for anybody.
        """
        if not isinstance(message, ValueError):
            return
        first = _first(message)
        kind, line = first.get("type"), str(first.get("input")).lstrip()
        if kind == "json_invalid" and not line.startswith("{"):
            return
        if kind == "model_type" and len(first["loc"]) == 1:
            # JSON, but not an object.
            return
        self._nonsense = self._unlike(message)
        if self._asking is not None:
            self._asking.cancel()

    async def _transport(self, stack: AsyncExitStack) -> Any:
        server = self._server
        if "url" in server:
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client

            client = create_mcp_http_client(headers=dict(server.get("headers") or {}))
            if is_local(server["url"]):
                # No proxy reaches this machine; one would be sent the headers.
                client = type(client)(
                    headers=client.headers, timeout=client.timeout, trust_env=False
                )
            await stack.enter_async_context(client)
            return streamable_http_client(server["url"], http_client=client)
        from mcp.client.stdio import StdioServerParameters, stdio_client

        parameters = StdioServerParameters(
            command=server["command"],
            args=list(server.get("args") or ()),
            env=dict(server.get("env") or {}),
            cwd=server.get("cwd"),
            encoding_error_handler="replace",
        )
        return stdio_client(parameters, errlog=self._listen(stack))

    def _listen(self, stack: AsyncExitStack) -> Any:
        """Return a file for the server's standard error; keeps the last bytes written to it."""
        loop = asyncio.get_running_loop()
        source, sink = os.pipe()
        os.set_blocking(source, False)

        def drain() -> None:
            with contextlib.suppress(BlockingIOError):
                data = os.read(source, 1 << 16)
                self._last_words += data
                del self._last_words[:-_TAIL_BYTES]
                if not data:
                    loop.remove_reader(source)

        def release() -> None:
            loop.remove_reader(source)
            with contextlib.suppress(OSError):
                drain()
            os.close(source)

        loop.add_reader(source, drain)
        stack.callback(release)
        return stack.enter_context(os.fdopen(sink, "w"))

    async def _listed(self) -> list[Function]:
        functions: list[Function] = []
        cursor = None
        for _ in range(_MOST_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            functions += (
                Function(tool.name, tool.description or "", tool.input_schema)
                for tool in page.tools
            )
            cursor = page.next_cursor
            if not cursor:
                break
        return functions

    def _wait(self, timeout_s: float, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        future: Future[T] = self._portal.start_task_soon(function, *args)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            future.cancel()
            raise ServerGoneError(f"no answer within {timeout_s:g} s") from None

    def _reason(self, error: BaseException) -> str:
        while getattr(error, "exceptions", None):
            error = error.exceptions[0]  # type: ignore[attr-defined]
        words = " ".join(str(error).split())[:300]
        return f"{words or type(error).__name__}{self._said()}"

    def _unlike(self, error: Exception) -> str:
        what = repr(_first(error)["input"]) if _first(error) else self._reason(error)
        return f"what it answered cannot be read: {what:.200}"

    def _said(self) -> str:
        lines = self._last_words.decode("utf-8", "replace").strip().splitlines()
        return f"; it wrote: {lines[-1].strip()[:300]}" if lines else ""


_starting = threading.Lock()


def _portal(pid: int) -> Any:
    """Return the event loop of the process `pid`, in a daemon thread.

    A forked child has a copy of its parent's, but not the thread that runs it.
    """
    with _starting:
        return _started(pid)


@functools.cache
def _started(pid: int) -> Any:
    import anyio
    from anyio.from_thread import BlockingPortal

    started: Future[Any] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    threading.Thread(target=anyio.run, args=(serve,), name="gem-mcp", daemon=True).start()
    return started.result()


def _first(error: Exception) -> Mapping[str, Any]:
    """Return the first thing that is wrong, of an error of Pydantic; empty for another error."""
    errors: list[Any] = getattr(error, "errors", list)()
    return errors[0] if errors else {}


def _text(result: Any) -> str:
    parts = []
    for part in result.content:
        if part.type == "text":
            parts.append(part.text)
        elif part.type == "resource" and hasattr(part.resource, "text"):
            parts.append(part.resource.text)
        else:
            about = (getattr(part, key, None) for key in ("name", "uri", "mime_type"))
            parts.append(f"[{' '.join(map(str, filter(None, (part.type, *about))))}]")
    return "\n".join(parts)


def _sdk() -> Any:
    mcp = extra("mcp", "MCP servers need the SDK (mcp 2.x): pip install 'gem-core[mcp]'")
    if not hasattr(mcp, "Client"):
        raise MissingExtraError("MCP servers need mcp 2.x: pip install 'gem-core[mcp]'")
    return mcp


def _types() -> Any:
    import mcp_types

    return mcp_types
