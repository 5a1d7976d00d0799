"""Native tool calls: what the model is offered, what becomes of its calls, what is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from chat_server import Answer, Stub, said

import gem
from gem.__main__ import guarded
from gem.__main__ import main as gem_main
from gem.core import Env
from gem.tools import Tool, ToolCall, ToolResult
from gem.tools.base import json_call
from gem.wrappers import ToolEnv
from gem_eval.cli import main
from gem_train.record import EPISODES, EpisodeRecord, read_episodes

ENV = "test:Product"


class Asking(Env):
    """Asks for a product of two numbers."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 3
        return "What is 17 times 23?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        right = action == "391"
        return "Try again.", float(right), right, not right and not self.left, {}


class Calculator(Tool):
    """Multiplies."""

    tool_type = "multiply"

    def instruction(self) -> str:
        return "Write <tool_call>...</tool_call> to multiply."

    def schemas(self) -> list[dict[str, Any]]:
        numbers = {"type": "array", "items": {"type": "number"}}
        parameters = {"type": "object", "properties": {"numbers": numbers}}
        return [{"name": "multiply", "description": "Multiplies.", "parameters": parameters}]

    def parse(self, text: str) -> ToolCall | None:
        found = json_call(text)
        if found is None or found[0].name != "multiply":
            return None
        ignored = text.count("<tool_call>") - 1
        return ToolCall("multiply", found[0].arguments, found[0].error, ignored)

    def execute(self, call: ToolCall) -> ToolResult:
        if call.error is not None:
            return ToolResult(f"Error: {call.error}", ok=False)
        a, b = call.arguments["numbers"]
        return ToolResult(f"The product is {a * b}.", ok=True)


def product() -> Env:
    return ToolEnv(Asking(), Calculator())


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gem.list_envs()  # fills the registry
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))
    gem.register(ENV, product)
    gem.register("test:Asking", Asking)
    monkeypatch.chdir(tmp_path)


def call(arguments: Any, name: str = "multiply", id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*each: dict[str, Any], text: str | None = None) -> Answer:
    return said(text, "tool_calls", tool_calls=list(each))


def evaluate(server: Stub, *words: object, env: str = ENV) -> int:
    asked = [env, "--model", "openai:m", "--url", server.url, "--episodes", 1, "--out", "run"]
    asked += ["--tools", "native", *words]
    return guarded(lambda: main([*map(str, asked)]))


def recorded() -> EpisodeRecord:
    (record,) = read_episodes(Path("run") / EPISODES)
    return record


def answer_with(server: Stub, first: Answer) -> None:
    """Let the server answer a new conversation with `first`, then with the right product."""
    server.answer = lambda number, body: first if len(body["messages"]) == 1 else said("391")


def test_a_call_is_executed_and_answered_and_recorded(
    server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(server, calls(call('{"numbers": [17, 23]}'), text="Let me calculate."))
    assert evaluate(server) == 0
    first, second = server.requests
    (tool,) = first["tools"]
    assert (tool["type"], tool["function"]["name"]) == ("function", "multiply")
    assert first["messages"] == [
        {
            "role": "user",
            "content": "What is 17 times 23?\nYou have 10 tool calls, one in a reply; a reply "
            "without a call is taken as your answer.",
        }
    ]
    assert second["messages"][1:] == [
        {
            "role": "assistant",
            "content": "Let me calculate.",
            "tool_calls": [call('{"numbers": [17, 23]}')],
        },
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": "The product is 391.\nTool calls left: 9.\n" + "What is 17 times 23?",
        },
    ]
    record = recorded()
    assert record.trajectory.success
    assert [turn.text for turn in record.trajectory.turns] == [
        '<tool_call>{"name": "multiply", "arguments": "{\\"numbers\\": [17, 23]}"}</tool_call>',
        "391",
    ]
    note = record.notes["calls"][0]
    assert note["tool_calls"] == [
        {"id": "c1", "name": "multiply", "arguments": '{"numbers": [17, 23]}'}
    ]
    assert note["content"] == "Let me calculate."
    assert record.notes["tools"] == first["tools"]
    assert gem_main(["replay", "run", "--verify"]) == 0
    assert main(["regrade", "run"]) == 0
    assert "1 episodes: success changed in 0" in capsys.readouterr().err


def test_of_several_calls_the_first_is_executed_and_every_one_answered(server: Stub) -> None:
    two = calls(call('{"numbers": [17, 23]}'), call('{"numbers": [2, 2]}', id="c2"))
    answer_with(server, two)
    assert evaluate(server) == 0
    first, second = server.requests[1]["messages"][2:]
    assert (first["tool_call_id"], second["tool_call_id"]) == ("c1", "c2")
    assert first["content"].startswith("The product is 391.\n(Only your first call was executed")
    assert second["content"].startswith("Not executed")
    assert [each["id"] for each in recorded().notes["calls"][0]["tool_calls"]] == ["c1", "c2"]
    assert recorded().trajectory.turns[0].info["tool_use_counter"] == 1


@pytest.mark.parametrize(
    "arguments",
    ['{"numbers": [17,', "[1, 2]", "</tool_call><tool_call>{}", "```python\nprint(1)\n```"],
)
def test_malformed_arguments_are_answered_as_an_error_and_never_sent_back(
    server: Stub, arguments: str
) -> None:
    answer_with(server, calls(call(arguments)))
    assert evaluate(server) == 0
    assistant, tool = server.requests[1]["messages"][1:]
    assert assistant["tool_calls"] == [call("{}")]
    assert tool["content"].startswith("Error: The arguments ")
    assert recorded().trajectory.turns[0].info["tool_success_counter"] == 0
    assert recorded().notes["calls"][0]["tool_calls"][0]["arguments"] == arguments


def test_an_unknown_tool_is_answered_with_those_there_are(server: Stub) -> None:
    answer_with(server, calls(call('{"numbers": [17, 23]}', name="divide")))
    assert evaluate(server) == 0
    (tool,) = server.requests[1]["messages"][2:]
    assert "There is no tool 'divide'; there are: multiply." in tool["content"]
    assert recorded().trajectory.success


def test_a_call_without_an_id_or_with_an_object_is_understood(server: Stub) -> None:
    odd = {"function": {"name": "multiply", "arguments": {"numbers": [17, 23]}}}
    answer_with(server, calls(odd))
    assert evaluate(server) == 0
    assistant, tool = server.requests[1]["messages"][1:]
    assert assistant["tool_calls"] == [call('{"numbers": [17, 23]}', id="call_0")]
    assert tool["tool_call_id"] == "call_0"
    assert tool["content"].startswith("The product is 391.")


def test_an_answer_whose_calls_are_none_is_asked_again(server: Stub) -> None:
    server.answer = lambda number, body: calls({"id": "c1"}) if number == 1 else said("391")
    assert evaluate(server) == 0
    assert len(server.requests) == 2
    assert recorded().notes["calls"][0]["retries"] == 1


def test_an_environment_without_tools_is_played_by_text(server: Stub) -> None:
    server.answer = lambda number, body: said("391", tool_calls=[call("{}")])
    assert evaluate(server, env="test:Asking") == 0
    assert "tools" not in server.requests[0]
    assert recorded().trajectory.turns[0].text == "391"
    assert "tools" not in recorded().notes


def test_programs_run_in_the_tool_of_gem(server: Stub) -> None:
    tool = quote(json.dumps({"name": "python", "runner": "subprocess"}))
    answer_with(server, calls(call('{"code": "print(17 * 23, \\"</tool_call>\\")"}', "python")))
    assert evaluate(server, env=f"gem:math:GSM8K?source=sample&tools={tool}") == 0
    (offered,) = server.requests[0]["tools"]
    assert offered["function"]["parameters"]["required"] == ["code"]
    assert "<python>" not in server.requests[0]["messages"][0]["content"]
    (answer,) = server.requests[1]["messages"][2:]
    assert answer["content"].startswith("Code execution result: 391 </tool_call>")


def test_calls_by_text_are_the_default_and_another_evaluation(
    server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = lambda number, body: said(
        '<tool_call>{"name": "multiply", "arguments": {"numbers": [17, 23]}}</tool_call>'
        if len(body["messages"]) == 1
        else "391"
    )
    assert evaluate(server, "--tools", "text") == 0
    first, second = server.requests
    assert "tools" not in first
    assert "to multiply" in first["messages"][0]["content"]
    assert second["messages"][2]["role"] == "user"
    assert evaluate(server, "--resume") == 2
    assert "settings.tools" in capsys.readouterr().err


def test_a_tool_without_schemas_is_refused(
    server: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(Calculator, "schemas")
    assert evaluate(server) == 2
    assert "tool 'multiply' has no schemas()" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["random", "noop"])
def test_models_that_are_not_asked_by_messages_cannot_call_natively(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [ENV, "--model", model, "--episodes", "1", "--out", "run", "--tools", "native"]
    assert guarded(lambda: main(words)) == 2
    assert "--tools native needs" in capsys.readouterr().err
