"""The Python tool and the forms of calls."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem_sandbox as sandbox
from gem.errors import ConfigurationError, UnknownParameterError, UnreachableError
from gem.tools import Tool, ToolCall, make_tools
from gem.tools.base import clip, json_call
from gem_sandbox import Limits, Result, Runner
from gem_sandbox.tool import PythonTool


class Recorder(Runner):
    """Runs nothing: notes the programs and returns what it was told to."""

    def __init__(self, *results: Result | Exception) -> None:
        self.results = list(results)
        self.programs: list[str] = []

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        self.programs.append(code)
        result = self.results.pop(0) if self.results else Result("", "", 0, 0.0)
        if isinstance(result, Exception):
            raise result
        return result


def tool(**parameters: Any) -> PythonTool:
    return PythonTool(**{"runner": "subprocess", **parameters})


def called(text: str, **parameters: Any) -> ToolCall:
    call = tool(**parameters).parse(text)
    assert call is not None
    return call


def code(text: str, **parameters: Any) -> str:
    return str(called(text, **parameters).arguments["code"])


def as_json(code: Any) -> str:
    call = {"name": "python", "arguments": {"code": code}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        "I compute. <python>print(1)</python> So",
        "<python>\nprint(1)\n</python>",
        "<python> print(1) </python>",
        "<python>\n    print(1)\n</python>",
        "```python\nprint(1)\n```",
        "```py\nprint(1)\n```",
        "```Python3\nprint(1)\n```",
        "<python>\n```python\nprint(1)\n```\n</python>",
        as_json("print(1)"),
        '<tool_call>{"name": "python", "parameters": "{\\"code\\": \\"print(1)\\"}"}</tool_call>',
    ],
)
def test_a_program_is_found_in_every_form(text: str) -> None:
    assert code(text).strip() == "print(1)"
    assert called(text).error is None


@pytest.mark.parametrize(
    "text",
    [
        "print(1)",
        "</python>print(1)",
        "```\nprint(1)\n```",
        "```pyrex\nprint(1)\n```",
        '<tool_call>{"name": "search", "arguments": {"query": "python"}}</tool_call>',
        "<tool_call>print(1)</tool_call>",
        "",
    ],
)
def test_what_is_no_program_is_left_to_others(text: str) -> None:
    assert tool().parse(text) is None


def test_a_block_quoted_in_a_call_of_another_tool_is_no_call() -> None:
    query = "```python\nprint(1)\n``` or <python>2</python>"
    call = {"name": "search", "arguments": {"query": query}}
    assert tool().parse(f"<tool_call>{json.dumps(call)}</tool_call>") is None


def test_the_block_that_ends_first_runs_and_the_others_are_named_as_ignored() -> None:
    two = "```python\na\n```\n<python>b</python> ```py\nc\n```"
    assert code(two) == "a"
    assert called(two).ignored == 2
    recorder = Recorder(Result("1\n", "", 0, 0.0))
    python = tool(runner=recorder)
    call = called(two)
    assert python.observe(call, python.execute(call)).endswith(
        "(Only your first call was executed; 2 more calls were ignored.)"
    )
    assert recorder.programs == ["a"]


def test_the_code_of_a_json_call_may_quote_the_other_forms() -> None:
    quoting = "print('<python>2</python>')"
    assert code(as_json(quoting)) == quoting
    assert called(as_json(quoting)).ignored == 0


def test_a_fenced_block_is_no_call_where_answers_are_fenced() -> None:
    assert tool(fenced=False).parse("```python\nprint(1)\n```") is None
    assert code("```python\n1\n``` <python>2</python>", fenced=False) == "2"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"code": 3}, "must be text, not a number"),
        ({"code": None}, "must be text, not null"),
        ({}, 'takes one argument, "code"'),
        ({"cod": "1"}, "it was given 'cod'"),
        ({"code": "1", "timeout": 3}, "'timeout'"),
        ([1], "must be a JSON object, not a list"),
        ('{"code": ', "not valid JSON"),
    ],
)
def test_wrong_arguments_are_told_and_run_nothing(arguments: Any, why: str) -> None:
    recorder = Recorder()
    python = tool(runner=recorder)
    call = python.parse(
        f"<tool_call>{json.dumps({'name': 'python', 'arguments': arguments})}</tool_call>"
    )
    assert call is not None
    result = python.execute(call)
    assert not result.ok
    assert why in result.text
    assert recorder.programs == []


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(
            [
                *("<python>", "</python>", "```python\n", "```py\n", "```", "<tool_call>", "x"),
                *("</tool_call>", "<tool_name>", '{"name": "python", "arguments": ', "{", "}"),
                *('"', "\ud800", "\0", "\n", '{"code": "1"}', "\\", "[" * 9),
            ]
        ),
        max_size=12,
    ).map("".join)
)
def test_no_text_makes_parsing_or_a_call_raise(text: str) -> None:
    python = tool(runner=Recorder())
    call = python.parse(text)
    if call is not None:
        python.execute(call).text.encode()


def test_parsing_is_linear_in_the_length_of_the_text() -> None:
    for piece in ("<python>", "```python\n", "<tool_call>", "```py\n```", "<python></python>"):
        few, many = (_parse_s(piece * n) for n in (2_000, 32_000))
        # Quadratic would be 256 times as long.
        assert many < 100 * few + 0.05, piece
    assert json_call("<tool_call>" + "[" * 100_000 + "</tool_call>") is not None


def _parse_s(text: str) -> float:
    python = tool()
    best = 10.0
    for _ in range(3):
        began = time.process_time()
        python.parse(text)
        best = min(best, time.process_time() - began)
    return best


def shown(result: Result, **parameters: Any) -> tuple[str, bool]:
    done = tool(runner=Recorder(result), **parameters).execute(ToolCall("python", {"code": ""}))
    return done.text.removeprefix("Code execution result: "), done.ok


def test_the_policy_sees_output_then_errors() -> None:
    assert shown(Result("1\n2\n", "", 0, 0.0)) == ("1\n2", True)
    assert shown(Result("1\n", "Warning\n", 0, 0.0)) == ("1\nWarning", True)
    assert shown(Result("", "a\nb: c\n", 1, 0.0), keep_error_last_line=True) == ("b: c", False)
    assert shown(Result("", "", 0, 0.0)) == ("The program printed nothing.", True)
    assert shown(Result("", "", 3, 0.0)) == ("The program ended with exit code 3.", False)


@pytest.mark.parametrize(
    ("limit", "words", "ok"),
    [("time", "stopped after 2 s", False), ("memory", "memory", False), ("output", "cut", True)],
)
def test_a_limit_that_was_hit_is_named(limit: str, words: str, ok: bool) -> None:
    text, fine = shown(Result("1", "", 0, 0.0, limit), timeout_s=2.0)
    assert text.startswith("1\n")
    assert words in text
    assert fine is ok


def test_a_traceback_does_not_depend_on_where_the_program_was_put() -> None:
    trace = 'Traceback:\n  File "/tmp/gem-run-8fx2/program.py", line 1, in <module>\nE: e'
    assert 'File "program.py", line 1' in shown(Result("", trace, 1, 0.0))[0]


@given(st.text(max_size=3000), st.integers(64, 500))
@settings(max_examples=50)
def test_long_output_keeps_its_head_and_its_tail(text: str, limit: int) -> None:
    short = clip(text, limit)
    assert len(short) <= limit + 60
    if len(text) <= limit:
        assert short == text
    else:
        head, _, rest = short.partition("\n... (")
        number, _, tail = rest.rpartition(" characters left out) ...\n")
        assert text.startswith(head) or "\n... (" in head
        assert text.endswith(tail)
        assert "\n... (" in text or len(head) + int(number) + len(tail) == len(text)


def test_one_call_is_one_run() -> None:
    recorder = Recorder(Result("", "NameError: name 'np' is not defined", 1, 0.0))
    tool(runner=recorder).execute(ToolCall("python", {"code": "np"}))
    assert recorder.programs == ["np"]


def test_a_sandbox_that_fails_is_tried_again_and_then_raises() -> None:
    gone = UnreachableError("no sandbox")
    call = ToolCall("python", {"code": "1"})
    recorder = Recorder(gone, gone, Result("1", "", 0, 0.0))
    assert tool(runner=recorder, retries=2).execute(call).ok
    recorder = Recorder(gone, gone, gone)
    with pytest.raises(UnreachableError, match="no sandbox"):
        tool(runner=recorder, retries=2).execute(call)
    recorder = Recorder(gone, gone, Result("1", "", 0, 0.0))
    assert asyncio.run(tool(runner=recorder, retries=2).aexecute(call)).ok


class Waiting(Recorder):
    """A runner with an `arun` of its own, which uses no thread."""

    async def arun(
        self,
        code: str,
        stdin: str = "",
        limits: Limits = Limits(),  # noqa: B008
    ) -> Result:
        await asyncio.sleep(0)
        return Result(f"{threading.current_thread().name}, {limits.cpu_s:g} s", "", 0, 0.0)


def test_a_custom_runners_own_arun_runs_asynchronous_calls() -> None:
    waiting = Waiting()
    call = ToolCall("python", {"code": "1"})
    result = asyncio.run(tool(runner=waiting, timeout_s=3.0).aexecute(call))
    assert result.text.endswith(f": {threading.current_thread().name}, 3 s")
    assert waiting.programs == []


@pytest.mark.parametrize(
    ("program", "words", "ok"),
    [
        ("import math; print(math.comb(10, 3))", "120", True),
        ("print(1/0)", "ZeroDivisionError", False),
        ("print(", "SyntaxError", False),
        ("print('\0')", "null bytes", False),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\n')", "\ufffd", True),
        ("print('\ud800')", "?", True),
        ("while True: pass", "stopped after 0.5 s", False),
    ],
)
def test_programs_run_for_real(program: str, words: str, ok: bool) -> None:
    python = tool(timeout_s=0.5 if "while" in program else 20.0)
    call = python.parse(f"<python>{program}</python>")
    assert call is not None
    result = python.execute(call)
    assert words in result.text
    assert result.ok is ok


def test_by_default_programs_are_isolated_or_nothing_runs(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the user's")
    python = PythonTool(timeout_s=30.0)
    try:
        sandbox.resolve(None)
    except ConfigurationError:
        with pytest.raises(ConfigurationError, match="runner"):
            python.reset()
        return
    python.reset()
    result = python.execute(ToolCall("python", {"code": f"print(open({str(secret)!r}).read())"}))
    assert not result.ok
    assert "FileNotFoundError" in result.text


def test_ten_megabytes_of_source_are_answered() -> None:
    python = tool(timeout_s=20.0)
    call = python.parse(f"<python>#{'x' * 10**7}\nprint(7)</python>")
    assert call is not None
    assert python.execute(call).text.startswith("Code execution result: 7")


def test_calls_run_beside_each_other_without_blocking_the_loop() -> None:
    async def both() -> list[Any]:
        python = tool(timeout_s=20.0)
        call = ToolCall("python", {"code": "print(1)"})
        return await asyncio.gather(python.aexecute(call), python.aexecute(call))

    assert [result.ok for result in asyncio.run(both())] == [True, True]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("timeout_s", 0), ("memory_mb", 1), ("max_output", 1), ("retries", -1), ("fenced", 1)],
)
def test_impossible_parameters_are_named(parameter: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=parameter):
        tool(**{parameter: value})


def test_tools_are_made_from_names_mappings_and_copies() -> None:
    first = tool(timeout_s=3.0)
    made = make_tools([{"name": "python", "timeout_s": 2.0}, first, "python"])
    assert [m.timeout_s for m in made if isinstance(m, PythonTool)] == [2.0, 3.0, 5.0]
    assert made[1] is not first
    assert [m.tool_type for m in make_tools("python, python")] == ["python", "python"]
    copy = pickle.loads(pickle.dumps(first))
    assert vars(copy) == vars(first)


def test_unknown_tools_and_parameters_are_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"unknown tool 'pyton'; known: 'search', 'mcp', 'python'"
    ):
        make_tools(["pyton"])
    with pytest.raises(UnknownParameterError, match=r"no parameter 'timeout'; it has .*timeout_s"):
        make_tools([{"name": "python", "timeout": 3}])
    for wrong in (3, [3], [{"timeout_s": 3}]):
        with pytest.raises(ConfigurationError, match=r"tool"):
            make_tools(wrong)  # type: ignore[arg-type]


def test_a_third_party_tool_needs_three_methods() -> None:
    class Clock(Tool):
        tool_type = "clock"

        def instruction(self) -> str:
            return "Say <clock> to see the time."

        def parse(self, text: str) -> ToolCall | None:
            return ToolCall("clock") if "<clock>" in text else None

        def execute(self, call: ToolCall) -> Any:
            raise NotImplementedError

    [made] = make_tools([Clock()])
    assert made.names == ("clock",)
