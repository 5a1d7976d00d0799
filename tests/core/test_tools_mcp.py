"""The MCP tool against real servers: ours of times and dates, and servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.errors import ConfigurationError, DataError, MissingExtraError, UnreachableError
from gem.tools import MCPTool, ToolCall, ToolResult
from gem.tools.mcp_connection import Connection
from gem.wrappers import ToolEnv

pytest.importorskip("mcp")
pytest.importorskip("gem_cpu.time_server", reason="has the server that is asked")

TIME = {"command": sys.executable, "args": ["-m", "gem_cpu.time_server"]}
NAMES = (
    "current_time",
    "relative_time",
    "days_in_month",
    "get_timestamp",
    "convert_time",
    "get_week_year",
)


@pytest.fixture(scope="module")
def clock() -> Iterator[MCPTool]:
    """The time server over standard input and output."""
    tool = MCPTool({"time": TIME})
    tool.reset()
    yield tool
    tool.close()


EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"


@pytest.fixture(scope="module")
def everything() -> Path:
    """The program of a published server that shows all that servers can do."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip(f"npm and node are needed for {EVERYTHING}")
    cache = Path(os.environ.get("GEM_CACHE", "~/.cache/gem-core")).expanduser()
    folder = cache / "npm" / "server-everything-2026.8.31"
    if not folder.exists():
        # Other workers may install it at the same time: the folder appears when it is complete.
        part = folder.with_name(f"{folder.name}-{os.getpid()}")
        part.mkdir(parents=True)
        command = ["npm", "install", "--prefix", str(part), "--ignore-scripts", "--no-audit"]
        run = subprocess.run(
            [*command, "--no-fund", "--silent", EVERYTHING], capture_output=True, timeout=300
        )
        if run.returncode:
            pytest.skip(f"npm cannot install {EVERYTHING}: {run.stderr.decode()[-200:]}")
        with contextlib.suppress(OSError):
            part.rename(folder)
    return folder / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"


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


@pytest.fixture(scope="module")
def http() -> Iterator[HttpServer]:
    server = HttpServer()
    yield server
    server.kill()


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


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Makes tools on servers with an own `answer`, and closes them."""
    tools = []

    def make(body: str, **parameters: Any) -> MCPTool:
        tool = MCPTool(server_in(tmp_path, body), retry_delay_s=0.01, **parameters)
        tools.append(tool)
        tool.reset()
        return tool

    yield make
    for tool in tools:
        tool.close()


def test_the_six_functions_answer(clock: MCPTool) -> None:
    assert clock.names == NAMES
    assert said(clock, "days_in_month", date="2024-02-03") == ToolResult("29", ok=True)
    assert said(clock, "get_timestamp", time="1970-01-02 00:00:01").text == "86401000"
    assert (
        said(
            clock,
            "convert_time",
            source_timezone="Asia/Tokyo",
            target_timezone="America/New_York",
            time="2025-03-23 12:30:00",
        ).text
        == "2025-03-22 23:30:00"
    )
    assert json.loads(said(clock, "get_week_year", date="2024-12-30").text) == {
        "week": 1,
        "year": 2025,
    }
    assert said(clock, "relative_time", time="2000-01-01 00:00:00").text.endswith(" ago")
    now = datetime.fromisoformat(said(clock, "current_time", timezone="UTC").text)
    since = datetime.now(timezone.utc) - now.replace(tzinfo=timezone.utc)
    assert 0 <= since.total_seconds() < 60


def test_the_policy_is_shown_names_descriptions_and_schemas(clock: MCPTool) -> None:
    lines = clock.instruction().splitlines()
    assert '<tool_call>{"name": "...", "arguments": {...}}</tool_call>' in lines[0]
    [line] = [line for line in lines if line.startswith("  days_in_month: ")]
    assert "Return the number of days of the month" in line
    assert '{"type": "object", "properties": {"date": {"type": "string"}}' in line
    assert len(lines) == 1 + len(NAMES)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ('{"name": "days_in_month", "arguments": {"date": "soon"}}', "is not a time like"),
        ('{"name": "days_in_month", "arguments": {}}', "Field required"),
        ('{"name": "days_in_month", "arguments": {"date": [1]}}', "valid string"),
        ('{"name": "days_in_month", "arguments": 3}', "must be a JSON object, not a number"),
        ('{"name": "current_time", "arguments": {"timezone": "X/Y"}}', "unknown time zone"),
        ('{"name": "days_in_month", "arguments": {"date": "\\ud800"}}', "'?' is not a time"),
        ("<tool_name>days_in_month</tool_name><arguments>{", "Field required"),
        ("<tool_name>nope</tool_name><arguments>{}</arguments>", "There is no function 'nope'"),
        ("<tool_name>get_timestamp</tool_name><arguments>{</arguments>", "not valid JSON"),
        ("<tool_name>get_timestamp</tool_name>", "Field required"),
    ],
)
def test_what_the_policy_got_wrong_is_told(clock: MCPTool, call: str, words: str) -> None:
    parsed = clock.parse(f"I call <tool_call>{call}</tool_call>")
    assert parsed is not None
    result = clock.execute(parsed)
    assert not result.ok
    assert result.text.startswith("[Tool execution error: ")
    assert words in result.text


def test_a_call_in_tags_is_understood_too(clock: MCPTool) -> None:
    call = clock.parse(
        "Let me see. <tool_call><tool_name>days_in_month</tool_name>"
        '<arguments>{"date": "2023-02-01"}</arguments></tool_call> <tool_call>'
    )
    assert call == ToolCall("days_in_month", {"date": "2023-02-01"}, None, ignored=1)


def test_calls_of_functions_that_it_does_not_have_are_left_to_others(clock: MCPTool) -> None:
    for text in (
        '<tool_call>{"name": "python", "arguments": {}}</tool_call>',
        "<tool_call>{</tool_call>",
        "<tool_call>",
        "days_in_month",
    ):
        assert clock.parse(text) is None


def test_the_connection_stays_open_over_calls_and_episodes(clock: MCPTool) -> None:
    before: Any = clock.__dict__["_connections"]["time"]
    clock.reset()
    assert said(clock, "days_in_month", date="2024-02-03").ok
    assert clock.__dict__["_connections"]["time"] is before


def test_calls_can_be_awaited_beside_each_other(clock: MCPTool) -> None:
    async def both() -> list[ToolResult]:
        call = ToolCall("days_in_month", {"date": "2024-02-03"})
        return await asyncio.gather(clock.aexecute(call), clock.aexecute(call))

    assert asyncio.run(both()) == [ToolResult("29", ok=True)] * 2


def test_an_episode_whose_reward_depends_on_the_server(clock: MCPTool) -> None:
    from gem.envs.qa import QaEnv

    env = ToolEnv(QaEnv([{"problem": "Days in February 2024?", "answer": "29"}]), clock)
    try:
        observation, _ = env.reset(seed=0)
        assert "days_in_month" in observation
        call = {"name": "days_in_month", "arguments": {"date": "2024-02-01"}}
        found, *_, info = env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert (info["tool_type"], info["tool_success_counter"]) == ("mcp", 1)
        assert env.step(f"<answer>{str(found).splitlines()[0]}</answer>")[1] == 1.0
    finally:
        env.close()


def test_a_copy_has_a_connection_of_its_own(opened: Any) -> None:
    tool = opened("def answer(arguments): return {'result': text(str(os.getpid()))}")
    for copy in (tool.spawn(), pickle.loads(pickle.dumps(tool))):
        assert copy.names == ("f",)
        assert said(copy, "f").text != said(tool, "f").text
        state = copy.snapshot()
        pid = said(copy, "f").text
        copy.restore(state)
        assert said(copy, "f").text == pid
        copy.close()


def test_closing_ends_the_server_and_a_later_call_starts_it_again(opened: Any) -> None:
    tool = opened("def answer(arguments): return {'result': text(str(os.getpid()))}")
    pid = int(said(tool, "f").text)
    tool.close()
    tool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert int(said(tool, "f").text) != pid


def test_a_server_that_died_is_started_again_and_the_call_repeated(opened: Any) -> None:
    tool = opened("def answer(arguments): return {'result': text(str(os.getpid()))}")
    pid = int(said(tool, "f").text)
    os.kill(pid, signal.SIGKILL)
    result = said(tool, "f")
    assert result.ok
    assert int(result.text) != pid


def test_a_call_that_ends_the_server_each_time_is_the_calls_own_fault(opened: Any) -> None:
    tool = opened(
        "def answer(arguments):\n    if arguments: os._exit(1)\n    return {'result': text('up')}"
    )
    result = said(tool, "f", die=True)
    assert not result.ok
    assert "the server broke off" in result.text
    assert said(tool, "f") == ToolResult("up", ok=True)


def test_a_slow_call_is_given_up_and_the_connection_goes_on(opened: Any) -> None:
    tool = opened(
        "def answer(arguments):\n"
        "    time.sleep(arguments.get('s', 0))\n    return {'result': text('done')}",
        timeout_s=0.3,
    )
    result = said(tool, "f", s=0.6)
    assert "f was not done after 0.3 s" in result.text
    tool.timeout_s = 10.0
    assert said(tool, "f").text == "done"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("{'error': {'code': -32602, 'message': 'bad arguments'}}", "bad arguments"),
        ("{'error': {'code': -32000, 'message': 'database locked'}}", "database locked"),
        ("{'result': {**text('no'), 'isError': True}}", "[Tool execution error: no]"),
        ("{'result': 3}", "f was not done after 2 s"),
        ("{'result': {'content': [{'type': 'text'}]}}", "the server broke off"),
    ],
)
def test_refusals_and_nonsense_are_told(opened: Any, answer: str, words: str) -> None:
    result = said(opened(f"def answer(arguments): return {answer}", timeout_s=2.0), "f")
    assert not result.ok
    assert words in result.text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("{'result': {'content': []}}", "The function returned nothing."),
        (
            "{'result': {'content': [{'type': 'image', 'data': '', 'mimeType': 'image/png'}]}}",
            "[image image/png]",
        ),
        ("{'result': text('x' * 10**6)}", "characters left out"),
    ],
)
def test_every_kind_of_answer_is_shown_as_text(opened: Any, answer: str, words: str) -> None:
    result = said(opened(f"def answer(arguments): return {answer}"), "f")
    assert result.ok
    assert words in result.text
    assert len(result.text) < 9_000


@pytest.mark.parametrize(
    ("program", "limit_s", "words"),
    [
        ("print('hello', flush=True); raise SystemExit('bad port')", 60.0, "it wrote: bad port"),
        ("import time; time.sleep(60)", 0.5, "no answer within 0.5 s"),
    ],
)
def test_a_server_that_does_not_come_up_is_an_infrastructure_failure(
    program: str, limit_s: float, words: str
) -> None:
    server = {"x": {"command": sys.executable, "args": ["-c", program]}}
    tool = MCPTool(server, retries=0, connect_timeout_s=limit_s)
    with pytest.raises(UnreachableError, match=words):
        tool.reset()


def test_a_missing_command_is_an_error_of_configuration() -> None:
    with pytest.raises(ConfigurationError, match="there is no command 'no-such-command'"):
        MCPTool.from_command("no-such-command", "-x").reset()


def test_a_server_over_http_answers_dies_and_comes_back(http: HttpServer) -> None:
    tool = MCPTool(http.url, retries=0)
    tool.reset()
    assert tool.names == NAMES
    assert said(tool, "days_in_month", date="2024-02-03") == ToolResult("29", ok=True)
    http.kill()
    with pytest.raises(UnreachableError, match=f"MCP server 'server' \\(http://.*:{http.port}"):
        said(tool, "days_in_month", date="2024-02-03")
    http.start()
    assert said(tool, "days_in_month", date="2024-02-03") == ToolResult("29", ok=True)
    tool.close()


def test_a_server_over_http_that_answers_nothing_is_to_blame_for_a_slow_call(
    http: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gem.tools.mcp_connection._PING_S", 0.5)
    tool = MCPTool(http.url, retries=0, timeout_s=0.5)
    tool.reset()
    http.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(UnreachableError, match="not done after 0.5 s, nor a ping"):
            said(tool, "days_in_month", date="2024-02-03")
    finally:
        http.process.send_signal(signal.SIGCONT)
    tool.timeout_s = 30.0
    assert said(tool, "days_in_month", date="2024-02-03") == ToolResult("29", ok=True)
    tool.close()


def test_a_server_that_stays_away_is_to_blame_for_a_broken_call(opened: Any) -> None:
    tool = opened(
        "if os.path.exists(__file__ + '.gone'): os._exit(1)\n"
        "def answer(arguments):\n"
        "    if os.path.exists(__file__ + '.once'): open(__file__ + '.gone', 'w')\n"
        "    open(__file__ + '.once', 'w')\n"
        "    os._exit(1)",
        retries=0,
    )
    with pytest.raises(UnreachableError):
        said(tool, "f")


@pytest.mark.parametrize("transport", ["stdio", "streamableHttp"])
def test_a_published_server_that_nobody_here_wrote_answers(
    everything: Path, transport: str
) -> None:
    with contextlib.ExitStack() as stack:
        if transport == "stdio":
            tool = MCPTool.from_command("node", str(everything), transport)
        else:
            port = free_port()
            server = stack.enter_context(
                subprocess.Popen(
                    ["node", str(everything), transport],
                    env={**os.environ, "PORT": str(port)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            stack.callback(server.kill)
            await_port(port)
            tool = MCPTool(f"http://127.0.0.1:{port}/mcp")
        stack.callback(tool.close)
        tool.reset()
        assert said(tool, "echo", message="ü") == ToolResult("Echo: ü", ok=True)
        assert said(tool, "get-sum", a=19, b=23).text == "The sum of 19 and 23 is 42."
        refused = said(tool, "get-sum", a="x")
        assert not refused.ok
        assert "expected number" in refused.text
        assert "[image image/png]" in said(tool, "get-tiny-image").text
        assert "[resource_link " in said(tool, "get-resource-links").text


def test_functions_of_several_servers_have_the_servers_name_before_them(
    http: HttpServer, tmp_path: Path
) -> None:
    own = server_in(tmp_path, "def answer(arguments): return {'result': text('mine')}")
    tool = MCPTool(
        {"own": own["server"], "time": {"url": http.url, "type": "http"}},
        functions=["own_f", "time_days_in_month"],
    )
    try:
        tool.reset()
        assert tool.names == ("own_f", "time_days_in_month")
        assert said(tool, "own_f").text == "mine"
        assert said(tool, "time_days_in_month", date="2024-02-03").text == "29"
        assert tool.parse('<tool_call>{"name": "time_get_timestamp"}</tool_call>') is None
    finally:
        tool.close()


def test_functions_that_no_server_has_are_named(tmp_path: Path) -> None:
    own = server_in(tmp_path, "")
    tool = MCPTool(own, functions=["g"])
    with pytest.raises(ConfigurationError, match=r"functions names 'g'; the servers have 'f'"):
        tool.reset()
    tool.close()


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        (3, "servers must be"),
        ({}, "servers must be"),
        ({"x": {}}, "either 'url' or 'command'"),
        ({"x": {"url": "http://a", "command": "b"}}, "either 'url' or 'command'"),
        ({"x": {"command": "b", "arg": []}}, r"the keys \['arg'\]"),
        ({"x": {"url": "http://a", "transport": "sse"}}, "the transport 'sse'"),
        ("file:///x", r"http\(s\) address"),
    ],
)
def test_impossible_servers_are_refused(servers: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        MCPTool(servers)


def test_servers_are_read_from_a_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"time": TIME}}))
    tool = MCPTool.from_config_file(path, timeout_s=3.0)
    assert (tool.servers, tool.timeout_s) == ({"time": TIME}, 3.0)
    path.write_text("{")
    with pytest.raises(DataError, match=r"mcp\.json cannot be read"):
        MCPTool.from_config_file(path)


def test_construction_asks_nobody_and_tools_are_configured_by_mappings() -> None:
    env: Any = gem.make(
        "game:GuessTheNumber-v0",
        tools=[{"name": "mcp", "servers": "http://127.0.0.1:9/mcp", "headers": {"X-Token": "t"}}],
    )
    [tool] = env.tools
    assert tool.servers == {
        "server": {"url": "http://127.0.0.1:9/mcp", "headers": {"X-Token": "t"}}
    }
    env.close()


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"gem-core\[mcp\]"):
        Connection({"url": "http://127.0.0.1:9/mcp"}, 1.0)
