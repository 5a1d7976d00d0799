"""MCP servers for tests: of times and dates over HTTP, and of any answer; calls of functions."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from gem.tools import MCPTool, ToolResult

TIME = {"command": sys.executable, "args": ["-m", "gem_cpu.time_server"]}
NAMES = (
    "current_time",
    "relative_time",
    "days_in_month",
    "get_timestamp",
    "convert_time",
    "get_week_year",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(port: int) -> None:
    """Wait until a server listens."""
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the server does not start")


class HttpServer:
    """The time server over HTTP, to be killed and started again at the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "gem_cpu.time_server", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        await_port(self.port)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def said(tool: MCPTool, name: str, **arguments: Any) -> ToolResult:
    call = tool.parse(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    )
    assert call is not None
    return tool.execute(call)


def server_in(folder: Path, body: str) -> dict[str, Any]:
    """A server that speaks JSON-RPC line by line; `answer(method, params)` is its own.

    It knows nothing of the SDK, so that it can misbehave, and starts at once.
    """
    path = folder / "server.py"
    path.write_text(
        textwrap.dedent(
            """
            import json, os, sys, time
            TOOL = {"name": "f", "description": "does it", "inputSchema": {"type": "object"}}
            def text(words):
                return {"content": [{"type": "text", "text": words}]}
            """
        )
        + textwrap.dedent(body)
        + textwrap.dedent(
            """
            for line in sys.stdin:
                request = json.loads(line)
                method, params = request["method"], request.get("params", {})
                if "id" not in request:
                    continue
                reply = {"jsonrpc": "2.0", "id": request["id"]}
                if method == "initialize":
                    reply["result"] = {
                        "protocolVersion": params["protocolVersion"],
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "own", "version": "1"},
                    }
                elif method == "tools/list":
                    reply["result"] = {"tools": [TOOL]}
                elif method == "tools/call":
                    reply.update(answer(params["arguments"]))
                else:
                    reply["error"] = {"code": -32601, "message": "no such method"}
                print(json.dumps(reply), flush=True)
            """
        ),
        encoding="utf-8",
    )
    return {"server": {"command": sys.executable, "args": ["-I", str(path)]}}
