"""The MCP tool against real servers: what it understands, calls, shows, and how it is set up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from mcp_servers import NAMES, TIME, await_port, free_port, said, server_in
from npm import npm

import gem
from gem.errors import ConfigurationError, DataError, MissingExtraError
from gem.tools import MCPTool, ToolCall, ToolResult
from gem.tools.mcp_connection import Connection
from gem.wrappers import ToolEnv

pytest.importorskip("mcp")
pytest.importorskip("gem_cpu.time_server", reason="has the server that is asked")


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
    if shutil.which("node") is None:
        pytest.skip(f"node is needed for {EVERYTHING}")
    cache = Path(os.environ.get("GEM_CACHE", "~/.cache/gem-core")).expanduser()
    folder = cache / "npm" / "server-everything-2026.8.31"
    if not folder.exists():
        # Other workers may install it at the same time: the folder appears when it is complete.
        part = folder.with_name(f"{folder.name}-{os.getpid()}")
        part.mkdir(parents=True)
        options = ["--prefix", str(part), "--ignore-scripts", "--no-audit", "--no-fund"]
        npm("install", *options, EVERYTHING, folder=part)
        with contextlib.suppress(OSError):
            part.rename(folder)
    return folder / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"


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
    schemas = {each["name"]: each["parameters"] for each in clock.schemas()}
    assert list(schemas) == list(clock.names)
    assert schemas["days_in_month"]["required"] == ["date"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ('{"name": "days_in_month", "arguments": {"date": "soon"}}', "is not a time like"),
        ('{"name": "days_in_month", "arguments": {}}', "Field required"),
        ('{"name": "days_in_month", "arguments": {"date": [1]}}', "valid string"),
        ('{"name": "days_in_month", "arguments": 3}', "must be a JSON object, not a number"),
        ('{"name": "current_time", "arguments": {"timezone": "X/Y"}}', "unknown time zone"),
        ('{"name": "days_in_month", "arguments": {"date": "\\ud800"}}', "'?' is not a time"),
        ("<tool_name>days_in_month</tool_name><arguments>{", "write </arguments> after it"),
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


def test_the_connection_stays_open_over_the_calls_of_an_episode(clock: MCPTool) -> None:
    clock.reset()
    before = clock._connections["time"]
    for _ in range(2):
        assert said(clock, "days_in_month", date="2024-02-03").ok
        assert clock._connections["time"] is before
    clock.reset()
    assert clock._connections["time"] is not before


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


def test_a_missing_command_is_an_error_of_configuration() -> None:
    with pytest.raises(ConfigurationError, match="there is no command 'no-such-command'"):
        MCPTool.from_command("no-such-command", "-x").reset()


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


def test_functions_that_no_server_has_are_named(tmp_path: Path) -> None:
    own = server_in(tmp_path, "")
    tool = MCPTool(own, functions=["g"])
    with pytest.raises(ConfigurationError, match=r"functions names 'g'; the servers have 'f'"):
        tool.reset()
    tool.close()


def test_two_functions_of_one_name_are_refused(tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    one, two = (
        server_in(folder, body)["server"]
        for folder, body in zip(folders, ('TOOL["name"] = "b_f"', ""), strict=True)
    )
    tool = MCPTool({"a": one, "a_b": two})
    try:
        with pytest.raises(ConfigurationError, match="the servers have two functions 'a_b_f'"):
            tool.reset()
    finally:
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
    with pytest.raises(DataError, match=r"mcp\.json is damaged"):
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
