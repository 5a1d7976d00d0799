"""The MCP tool's connections: servers that die, hang, misbehave and come back; several of them."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mcp_servers import NAMES, HttpServer, said, server_in

import gem
from gem.errors import UnreachableError
from gem.tools import MCPTool, ToolResult
from gem.wrappers import ToolEnv

pytest.importorskip("mcp")
pytest.importorskip("gem_cpu.time_server", reason="has the server that is asked")


@pytest.fixture(scope="module")
def http() -> Iterator[HttpServer]:
    server = HttpServer()
    yield server
    server.kill()


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


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MCPTool]:
    body = "def answer(arguments): return {'result': text(str(arguments))}"
    tool = MCPTool(server_in(tmp_path_factory.mktemp("echo"), body), retries=0)
    tool.reset()
    yield tool
    tool.close()


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


# One request at a time: while it sleeps it answers nothing else.
SLEEPER = """
calls = 0
def answer(arguments):
    global calls
    calls += 1
    if arguments.get('once') and not os.path.exists(__file__ + '.slept'):
        open(__file__ + '.slept', 'w')
        time.sleep(600)
    if arguments.get('leave'):
        open(__file__ + '.gone', 'w')
    time.sleep(arguments.get('s', 0))
    return {'result': text(f'{os.getpid()} {calls}')}
if os.path.exists(__file__ + '.gone'):
    os._exit(1)
"""


def test_a_call_that_blocks_its_server_costs_no_other_call_and_no_other_episode(
    opened: Any,
) -> None:
    env = ToolEnv(gem.make("game:GuessTheNumber-v0-easy"), opened(SLEEPER, timeout_s=2.0))
    pids = set()
    for _ in range(2):
        env.reset(seed=0)
        observation, *_ = env.step('<tool_call>{"name": "f"}</tool_call>')
        # A new server: it has forgotten the calls of the episode before.
        assert observation.split()[1] == "1", observation
        pids.add(int(observation.split()[0]))
        hanging = '<tool_call>{"name": "f", "arguments": {"s": 600}}</tool_call>'
        observation, *_, info = env.step(hanging)
        assert "f was not done after 2 s" in observation
        assert (info["tool_success_counter"], info["tool_timeout_counter"]) == (1, 1)
        observation, *_, info = env.step('<tool_call>{"name": "f"}</tool_call>')
        assert observation.split()[1] == "1", observation
        assert (info["tool_success_counter"], info["tool_timeout_counter"]) == (2, 1)
        pids.add(int(observation.split()[0]))
    env.close()
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_call_that_is_slow_once_is_repeated_and_not_told(opened: Any) -> None:
    result = said(opened(SLEEPER, timeout_s=2.0), "f", once=True)
    assert result.ok
    assert not result.timed_out


def test_a_server_that_hangs_and_does_not_start_again_is_to_blame(opened: Any) -> None:
    tool = opened(SLEEPER, timeout_s=1.0, retries=0)
    with pytest.raises(UnreachableError):
        said(tool, "f", s=600, leave=True)


def test_servers_may_be_kept_over_episodes_and_are_replaced_if_they_answer_nothing(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = opened(SLEEPER, keep=True, timeout_s=60.0)
    pid = said(tool, "f").text.split()[0]
    tool.reset()
    assert said(tool, "f").text.split() == [pid, "2"]
    monkeypatch.setattr("gem.tools.mcp_connection._ANSWER_S", 0.5)
    os.kill(int(pid), signal.SIGSTOP)
    tool.reset()
    assert said(tool, "f").text.split()[1] == "1"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_server_that_was_not_used_serves_the_next_episode(opened: Any) -> None:
    tool = opened("def answer(arguments): return {'result': text(str(os.getppid()))}")
    connection = tool._connections["server"]
    tool.reset()
    assert tool._connections["server"] is connection


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("{'error': {'code': -32602, 'message': 'bad arguments'}}", "bad arguments"),
        ("{'error': {'code': -32000, 'message': 'database locked'}}", "database locked"),
        ("{'result': {**text('no'), 'isError': True}}", "[Tool execution error: no]"),
    ],
)
def test_refusals_are_told(opened: Any, answer: str, words: str) -> None:
    result = said(opened(f"def answer(arguments): return {answer}", timeout_s=2.0), "f")
    assert not result.ok
    assert words in result.text


LINE = """
def answer(arguments):
    os.write(1, {line!r}.encode("utf-8", "surrogateescape") + b"\\n")
    time.sleep({sleep})
    return {{"result": text("done")}}
"""


@pytest.mark.parametrize(
    "answer",
    [
        "{'result': 3}",
        "{'result': None}",
        "{}",
        "{'result': {'content': [{'type': 'text'}]}}",
        "{'result': {'content': 'words'}}",
        "{'result': {'content': [{'type': 'new', 'text': 'words'}]}}",
        "{'result': {'structuredContent': {}}}",
        "{'error': 'words'}",
        "{'error': {'message': 'no code'}}",
        '{"jsonrpc": "2.0", "id": 3, "result": {"content": [',
        '{"jsonrpc": "2.0", "id": 3, "result": {"content": [{"type": "text", "text": "\\ud800"}]}}',
        '{"jsonrpc": "2.0", "id": 3, "result": ' + '{"a": ' * 5_000,
    ],
    ids=lambda answer: answer[:60],
)
def test_an_answer_that_cannot_be_read_is_the_servers_fault(opened: Any, answer: str) -> None:
    """It is asked for twice and is then no outcome of the episode."""
    if answer.startswith('{"'):
        body = LINE.format(line=answer, sleep=600)
    else:
        body = f"def answer(arguments): return {answer}"
    tool = opened(body, retries=0)
    with pytest.raises(UnreachableError, match="MCP server 'server' .*cannot be read"):
        said(tool, "f")


@pytest.mark.parametrize("depth", [*range(240, 261), 900])
def test_arguments_that_cannot_be_sent_are_told(echo: MCPTool, depth: int) -> None:
    value = "[" * depth + "1" + "]" * depth
    call = echo.parse(f'<tool_call>{{"name": "f", "arguments": {{"x": {value}}}}}</tool_call>')
    assert call is not None
    result = echo.execute(call)
    assert result.ok or "the arguments cannot be sent" in result.text or call.error


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_has_not_is_told_and_not_sent_as_none(
    echo: MCPTool, number: str
) -> None:
    call = echo.parse(f'<tool_call>{{"name": "f", "arguments": {{"x": {number}}}}}</tool_call>')
    assert call is not None
    result = echo.execute(call)
    assert not result.ok
    assert "the arguments cannot be sent" in result.text


@pytest.mark.parametrize("line", ["hello", "", "[1]", '"{"', "3", "\udcff"])
def test_other_lines_of_a_server_are_no_answers(opened: Any, line: str) -> None:
    assert said(opened(LINE.format(line=line, sleep=0)), "f") == ToolResult("done", ok=True)


def test_an_answer_that_can_be_read_the_second_time_is_the_answer(opened: Any) -> None:
    tool = opened(
        "def answer(arguments):\n"
        "    if os.path.exists(__file__ + '.once'): return {'result': text('up')}\n"
        "    open(__file__ + '.once', 'w')\n"
        "    return {'result': 3}"
    )
    assert said(tool, "f") == ToolResult("up", ok=True)


def test_bytes_that_are_no_text_are_shown_as_such(opened: Any) -> None:
    tool = opened(
        "def answer(arguments):\n"
        "    os.dup2(os.open('/dev/null', os.O_WRONLY), 2)\n"
        "    sys.stdout.reconfigure(errors='surrogateescape')\n"
        "    json.dumps = lambda reply, dumps=json.dumps: dumps(reply, ensure_ascii=False)\n"
        "    return {'result': text('a\\udcffb')}"
    )
    assert said(tool, "f") == ToolResult("a\ufffdb", ok=True)


class Answers(BaseHTTPRequestHandler):
    """An MCP server over HTTP, or what stands before one; `answer` is for calls of functions."""

    protocol_version = "HTTP/1.1"
    answer: tuple[int, str, str] = (200, "application/json", "")
    calls = 0
    tokens: set[str]

    def do_POST(self) -> None:
        self.tokens.add(self.headers["Authorization"])
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        results = {
            "initialize": {
                "protocolVersion": (request.get("params") or {}).get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "own", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "f", "inputSchema": {"type": "object"}}]},
        }
        if "id" not in request:
            return self.reply(202, "text/plain", "")
        if request["method"] == "tools/call":
            type(self).calls += 1
            return self.reply(*self.answer)
        reply = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] in results:
            reply["result"] = results[request["method"]]
        else:
            reply["error"] = {"code": -32601, "message": "no such method"}
        return self.reply(200, "application/json", json.dumps(reply))

    def reply(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(**answers: Any) -> Iterator[tuple[str, Any]]:
    """Yield the address of `Answers` and what its handler has noted."""
    handler = type("Handler", (Answers,), {"tokens": set(), **answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp", handler
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    "answer",
    [
        (500, "text/html", "<h1>Internal Server Error</h1>"),
        (502, "text/html", ""),
        (503, "application/json", '{"detail": "overloaded"}'),
        (401, "text/plain", "who are you?"),
        (404, "text/plain", "no session"),
        (429, "application/json", "{}"),
        (307, "text/plain", ""),
        (202, "text/plain", ""),
        (200, "text/html", "<h1>Welcome</h1>"),
        (200, "application/json", "[1"),
        (200, "application/json", '{"jsonrpc": "2.0", "id": 3, "result": 3}'),
        (200, "text/event-stream", "data: {\n\n"),
    ],
    ids=lambda answer: f"{answer[0]} {answer[2][:30]}",
)
def test_nor_is_what_a_proxy_or_a_broken_server_says_over_http_the_calls_fault(
    answer: tuple[int, str, str],
) -> None:
    with serving(answer=answer) as (url, handler):
        tool = MCPTool(url, retries=0, timeout_s=5)
        try:
            tool.reset()
            with pytest.raises(UnreachableError, match="MCP server 'server'"):
                said(tool, "f")
        finally:
            tool.close()
        assert handler.calls == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_header_goes_through_a_proxy_to_this_machine(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as (url, direct), serving() as (proxy, relay):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.removesuffix("/mcp"))
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        tool = MCPTool(url.replace("127.0.0.1", host), headers={"Authorization": "Bearer mine"})
        tool.reset()
        tool.close()
    assert direct.tokens == {"Bearer mine"}
    assert relay.tokens == set()


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
    monkeypatch.setattr("gem.tools.mcp_connection._ANSWER_S", 0.5)
    tool = MCPTool(http.url, retries=0, timeout_s=0.5)
    tool.reset()
    http.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(UnreachableError, match="not done after 0.5 s, nor a question"):
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
