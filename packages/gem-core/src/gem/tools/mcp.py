"""The MCP tool: calls functions of Model Context Protocol servers through `mcp_connection`."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gem.errors import ConfigurationError, DataError, UnreachableError
from gem.json_lines import read_json
from gem.parameters import flag, integer, positive
from gem.tools.base import (
    TOOL_CALL,
    Tool,
    ToolCall,
    ToolResult,
    clip,
    first_block,
    json_call,
    printable,
    read_arguments,
)
from gem.tools.mcp_connection import (
    Connection,
    Function,
    Refused,
    ServerGoneError,
    TookTooLong,
    UnreadableError,
)

_NAME = re.compile(r"<tool_name>")
_ARGUMENTS = re.compile(r"<arguments>")
_KEYS = {"url", "headers", "command", "args", "env", "cwd", "type", "transport"}
_TRANSPORTS = (None, "stdio", "http", "streamable-http", "streamable_http", "streamableHttp")


class MCPTool(Tool):
    """Calls functions of MCP servers, over standard input and output or streamable HTTP.

    Each environment has its own connection to every server, opened at `reset`. One that was used in
    an episode is closed at the next `reset`, which ends a server that was started by command: no
    episode sees what an earlier one left in it.

    A call whose connection breaks, or that is not done after `timeout_s`, is repeated once, over a
    new connection and with a new server of its own: a call may reach a server twice. If that fails,
    too, though the server can be started or answers, the call is to blame. An answer that cannot be
    read is never the call's fault: if the repetition gets one, too, that is an `UnreachableError`.
    With several servers, functions are named `<server>_<function>`. Snapshots do not include the
    servers' state.
    """

    tool_type: ClassVar[str] = "mcp"
    live: ClassVar[frozenset[str]] = frozenset({"_opened"})
    replayable: ClassVar[bool] = False

    def __init__(
        self,
        servers: str | Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        functions: Sequence[str] | None = None,
        timeout_s: float = 30.0,
        connect_timeout_s: float = 30.0,
        retries: int = 3,
        retry_delay_s: float = 1.0,
        max_output: int = 8192,
        keep: bool = False,
    ) -> None:
        """Store the parameters; no connection is made.

        Args:
            servers: The address of one server, or servers by name, each
                `{"url": ..., "headers": {...}}` or `{"command": ..., "args": [...], "env": {...},
                "cwd": ...}`; or a mapping with these under `mcpServers`, as in configuration files.
            headers: HTTP headers for every server with an address (a token, for instance).
            functions: Names of the functions offered to the policy; None offers all.
            timeout_s: Seconds of wall-clock time until a call is given up.
            connect_timeout_s: Seconds until an attempt to connect is given up.
            retries: Further attempts to connect.
            retry_delay_s: Seconds before the first of these attempts, doubled for each next one.
            max_output: Most characters of an answer that the policy is shown.
            keep: Whether connections, and servers that a command starts, stay for the next episode.
                That saves the time to start them, and is right for servers without a memory only.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        self.keep = flag("keep", keep)
        self.servers = _checked(servers, headers)
        self.functions = None if functions is None else tuple(functions)
        self.timeout_s = positive("timeout_s", timeout_s)
        self.connect_timeout_s = positive("connect_timeout_s", connect_timeout_s)
        self.retries = integer("retries", retries, 0, 100)
        self.retry_delay_s = positive("retry_delay_s", retry_delay_s)
        self.max_output = integer("max_output", max_output, 64, 10**7)
        # Per name: the server, and the function under its name there.
        self._offered: dict[str, tuple[str, Function]] = {}

    @classmethod
    def from_config_file(cls, path: str | Path, **parameters: Any) -> MCPTool:
        """Read the servers from a JSON file with `mcpServers`.

        Raises:
            DataError: The file cannot be read or is no JSON.
        """
        servers = read_json(Path(path), error=DataError)
        return cls(servers, **parameters)

    @classmethod
    def from_command(
        cls, command: str, *args: str, env: Mapping[str, str] | None = None, **parameters: Any
    ) -> MCPTool:
        """Start one server by a command line."""
        server = {"command": command, "args": list(args), "env": dict(env or {})}
        return cls({"server": server}, **parameters)

    @property
    def names(self) -> tuple[str, ...]:
        """Functions of all servers; empty before the first `reset`."""
        return tuple(self._offered)

    def reset(self) -> None:
        """Connect to the servers, and list their functions.

        A connection that was used before is replaced, with `keep` only if the server does not
        answer.

        Raises:
            ConfigurationError: `functions` names one that no server has, two have the same name, or
                a command does not exist.
            MissingExtraError: The extra `mcp` is not installed.
            UnreachableError: A server does not answer.
        """
        for name, connection in list(self._connections.items()):
            if (connection.used and not self.keep) or not connection.answers():
                self._end(name)
        if self._offered and all(self._usable(name) for name in self.servers):
            return
        offered: dict[str, tuple[str, Function]] = {}
        for server in self.servers:
            for found in self._connected(server).functions:
                name = found.name if len(self.servers) == 1 else f"{server}_{found.name}"
                if name in offered:
                    raise ConfigurationError(
                        f"the servers have two functions {name!r}; give the servers other names"
                    )
                offered[name] = server, found
        if self.functions is not None:
            missing = [name for name in self.functions if name not in offered]
            if missing:
                raise ConfigurationError(
                    f"functions names {', '.join(map(repr, missing))}; the servers have "
                    f"{', '.join(map(repr, offered)) or 'none'}"
                )
            offered = {name: offered[name] for name in self.functions}
        self._offered = offered

    def instruction(self) -> str:
        """Return the functions with their schemas, and how to call them."""
        lines = [
            "You can call functions. Write one call as "
            '<tool_call>{"name": "...", "arguments": {...}}</tool_call>. The functions, with the '
            "JSON schema of their arguments:"
        ]
        for each in self.schemas():
            schema = json.dumps(each["parameters"], ensure_ascii=False)
            lines.append(f"  {each['name']}: {each['description']} {schema}")
        return "\n".join(lines)

    def schemas(self) -> list[dict[str, Any]]:
        """Return the functions; empty before the first `reset`."""
        return [
            {
                "name": name,
                "description": " ".join(function.description.split()),
                "parameters": _untitled(function.schema),
            }
            for name, (_, function) in self._offered.items()
        ]

    def parse(self, text: str) -> ToolCall | None:
        """Return the first call, as JSON or as `<tool_name>` and `<arguments>` tags."""
        found = json_call(text)
        if found is not None:
            name, arguments, error, cut = found[0]
            ignored = len(TOOL_CALL.findall(text, found[1].end))
            if name not in self._offered:
                return None
            return ToolCall(name, arguments, error, ignored, cut)
        block = first_block(text, TOOL_CALL, "</tool_call>")
        if block is None:
            return None
        ignored = len(TOOL_CALL.findall(text, block.end))
        named = first_block(block.content, _NAME, "</tool_name>")
        if named is None or named.cut or block.cut:
            return None
        name = printable(named.content.strip())
        if name not in self._offered:
            known = ", ".join(self._offered)
            why = f"There is no function {clip(name, 80)!r}; there are: {known}."
            return ToolCall(name, error=why, ignored=ignored)
        given = first_block(block.content, _ARGUMENTS, "</arguments>")
        if given is not None and given.cut:
            return ToolCall(name, error=given.error, ignored=ignored)
        return ToolCall(name, *read_arguments(given.content if given else {}), ignored)

    def execute(self, call: ToolCall) -> ToolResult:
        """Call the function; see `Tool.execute`."""
        if call.error is not None:
            return ToolResult(f"[Tool execution error: {call.error}]", ok=False)
        server, function = self._offered[call.name]
        for last in (False, True):
            connection = self._connected(server)
            try:
                answer = connection.call(function.name, call.arguments, self.timeout_s)
            except TookTooLong as error:
                # The server may be slow because of others, or an earlier call: the policy may not
                # be to blame. One that was started for this tool is asked by starting it again:
                # while it works, it may be unable to answer.
                shared = "url" in self.servers[server]
                if shared and not connection.answers():
                    self._end(server)
                    raise self._unreachable(
                        server, f"{error}, nor a question for its functions"
                    ) from error
                self._end(server)
                # The next call must not wait for this one.
                self._connected(server)
                if last:
                    return self._failed(str(error), timed_out=True)
            except Refused as error:
                return self._failed(str(error))
            except ServerGoneError as error:
                self._end(server)
                if last and isinstance(error, UnreadableError):
                    raise self._unreachable(server, str(error)) from error
                # The connection broke twice on this call, yet the server is up: blame the call.
                if last:
                    self._connected(server)
                    return self._failed(f"the server broke off ({error})")
            else:
                text = printable(clip(answer, self.max_output))
                return ToolResult(text or "The function returned nothing.", ok=True)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the connections and end the servers that were started for them."""
        for name in list(self._connections):
            self._end(name)

    def _end(self, server: str) -> None:
        """Close a connection, and end its server if it was started for it."""
        self._connections.pop(server).close()

    def _failed(self, why: str, timed_out: bool = False) -> ToolResult:
        text = printable(clip(why, self.max_output))
        return ToolResult(f"[Tool execution error: {text}]", ok=False, timed_out=timed_out)

    def _usable(self, server: str) -> bool:
        connection = self._connections.get(server)
        return connection is not None and connection.usable

    @property
    def _connections(self) -> dict[str, Connection]:
        """The connections by server; none in a copy."""
        opened: dict[str, Connection] = self.__dict__.setdefault("_opened", {})
        return opened

    def _connected(self, server: str) -> Connection:
        """Return an open connection.

        Raises:
            UnreachableError: All attempts failed.
        """
        connections = self._connections
        if self._usable(server):
            return connections[server]
        command = self.servers[server].get("command")
        if command is not None and shutil.which(command) is None:
            raise ConfigurationError(f"MCP server {server!r}: there is no command {command!r}")
        reason = ""
        for attempt in range(self.retries + 1):
            time.sleep(self.retry_delay_s * (2**attempt // 2))
            try:
                connections[server] = Connection(self.servers[server], self.connect_timeout_s)
                return connections[server]
            except ServerGoneError as error:
                reason = str(error)
        raise self._unreachable(server, reason)

    def _unreachable(self, server: str, reason: str) -> UnreachableError:
        where = self.servers[server].get("url") or self.servers[server]["command"]
        return UnreachableError(f"MCP server {server!r} ({where}): {reason}")


def _untitled(schema: Any) -> Any:
    """Return a JSON schema without titles, which only repeat the names."""
    if not isinstance(schema, Mapping):
        return schema
    kept = {k: v for k, v in schema.items() if k != "title" or not isinstance(v, str)}
    for key in ("properties", "$defs"):
        if isinstance(kept.get(key), Mapping):
            kept[key] = {name: _untitled(part) for name, part in kept[key].items()}
    if "items" in kept:
        kept["items"] = _untitled(kept["items"])
    return kept


def _checked(
    servers: str | Mapping[str, Any], headers: Mapping[str, str] | None
) -> dict[str, dict[str, Any]]:
    """Return the servers by name, each with what it needs."""
    if isinstance(servers, str):
        servers = {"server": {"url": servers}}
    if isinstance(servers, Mapping) and "mcpServers" in servers:
        servers = servers["mcpServers"]
    if not isinstance(servers, Mapping) or not servers:
        raise ConfigurationError(
            "servers must be an address, or servers by name with 'url' or 'command', got "
            f"{servers!r:.80}"
        )
    return {str(name): _server(str(name), server, headers) for name, server in servers.items()}


def _server(name: str, server: Any, headers: Mapping[str, str] | None) -> dict[str, Any]:
    if isinstance(server, str):
        server = {"url": server}
    if not isinstance(server, Mapping) or ("url" in server) == ("command" in server):
        raise ConfigurationError(
            f"server {name!r} must have either 'url' or 'command', got {server!r:.80}"
        )
    unknown = sorted(set(server) - _KEYS)
    transport = server.get("type", server.get("transport"))
    if unknown or transport not in _TRANSPORTS:
        what = f"the keys {unknown}" if unknown else f"the transport {transport!r}"
        raise ConfigurationError(
            f"server {name!r} has {what}; allowed are {', '.join(sorted(_KEYS))}, and the "
            "transports stdio and streamable-http"
        )
    if "command" in server:
        return {key: server[key] for key in ("command", "args", "env", "cwd") if key in server}
    url = server["url"]
    if not isinstance(url, str) or urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ConfigurationError(f"server {name!r}: url must be an http(s) address, got {url!r}")
    return {"url": url, "headers": {**(headers or {}), **(server.get("headers") or {})}}
