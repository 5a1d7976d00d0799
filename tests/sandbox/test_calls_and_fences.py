"""Calls and fenced programs as models write them: quoted, cut off, with output behind them."""

from __future__ import annotations

import ast
import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem.fences import fenced_blocks
from gem.grading.formats import FENCED_CODE
from gem.tools import SearchTool, Tool, ToolCall, ToolResult
from gem.tools.base import json_call
from gem.wrappers import ToolEnv
from gem_sandbox import Limits, Result, Runner
from gem_sandbox.tool import PythonTool


class Recorder(Runner):
    """Notes the programs and prints 8."""

    def __init__(self) -> None:
        self.programs: list[str] = []

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        self.programs.append(code)
        return Result("8\n", "", 0, 0.0)


class Index(SearchTool):
    """Finds nothing, at once."""

    def __init__(self) -> None:
        super().__init__(url="http://localhost:1/retrieve")

    def execute(self, call: ToolCall) -> ToolResult:
        return ToolResult("nothing", True) if call.error is None else super().execute(call)


def environment() -> Any:
    tools: list[Tool] = [PythonTool(runner=Recorder()), Index()]
    env = ToolEnv(gem.make("game:GuessTheNumber-v0-easy"), tools)
    env.reset(seed=0)
    return env


CALLS = {
    "<python>": "<python>print(8)</python>",
    "```python": "```python\nprint(8)\n```",
    "``` py": "``` py\nprint(8)\n```",
    "~~~python": "~~~python\nprint(8)\n~~~",
    "<search>": "<search>capital of Chad</search>",
    "<tool_call>": '<tool_call>{"name": "python", "arguments": {"code": "print(8)"}}</tool_call>',
    "<tool_call>\n": '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>',
}


@pytest.mark.parametrize("opener", CALLS)
def test_a_call_that_is_cut_anywhere_is_told_and_ends_no_episode(opener: str) -> None:
    call = CALLS[opener]
    assert environment().step(f"I think.\n{call}")[4]["tool_success_counter"] == 1
    for end in range(len(opener), len(call)):
        observation, reward, terminated, truncated, info = environment().step(
            f"I think.\n{call[:end]}"
        )
        assert (reward, terminated, truncated) == (0.0, False, False), call[:end]
        assert (info["use_tool"], info["tool_success_counter"]) == (True, 0), call[:end]
        assert "The call has no end; write " in observation


def test_a_complete_call_comes_before_one_without_its_end() -> None:
    env = environment()
    *_, info = env.step("No <search> yet. <python>print(8)</python>")
    assert (info["tool_type"], info["tool_success_counter"]) == ("python", 1)
    *_, info = env.step("<python>print(1)\n```python\nprint(2)\n```")
    assert info["tool_success_counter"] == 2
    assert env.tools[0].runner.programs == ["print(8)", "print(2)"]


@given(
    st.text(max_size=60), st.sampled_from(["", "</tool_call>", "\n", "\t", "<tool_call>", "```"])
)
@settings(max_examples=150)
def test_the_code_of_a_json_call_is_exact(text: str, part: str) -> None:
    code = f"{part}{text}{part}"
    call = {"name": "python", "arguments": {"code": code}}
    tool = PythonTool(runner=Recorder())
    plain = code.encode("utf-8", "replace").decode()
    for ascii_only in (True, False):
        written = json.dumps(call, ensure_ascii=ascii_only)
        # Models write line breaks and tabs as they are.
        for raw in (written, written.replace("\\n", "\n").replace("\\t", "\t")):
            if raw is not written and "\\\\" in written:
                continue
            found = tool.parse(f"So: <tool_call>{raw} </tool_call> and so on")
            assert found == ToolCall("python", {"code": plain})


@pytest.mark.parametrize(
    ("content", "error", "name"),
    [
        ('{"name": "f", "arguments": {"a": 1}', "not valid JSON", ""),
        ('{"name": "f"} {"name": "g"}', "more than one object", "f"),
        ("{'name': 'f'}", "not valid JSON", ""),
        ('{"name": "f", "arguments": "{\\"a\\": \\"x\ny\\"}"}', None, "f"),
        ("", "not valid JSON", ""),
    ],
)
def test_what_is_wrong_with_a_json_call_is_told(content: str, error: str | None, name: str) -> None:
    found = json_call(f"<tool_call>{content}</tool_call> more")
    assert found is not None
    assert found[0].name == name
    assert (found[0].error is None) is (error is None)
    assert (error or "") in (found[0].error or "")


def test_a_json_call_of_any_depth_is_told_what_is_wrong_with_it() -> None:
    limit = sys.getrecursionlimit()
    for depth in range(max(1, limit - 200), limit + 20):
        for begin, end in (("[", "]"), ('{"a":', "}")):
            arguments = f'{{"a": {begin * depth}1{end * depth}}}'
            found = json_call(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
            assert found is not None


HEADS = ["```python", "``` python", "```Python3", "```python title=a b", "````py", "~~~python",
         "```{.python}", "```python:main.py"]  # fmt: skip
LINES = [
    'x = "```"', "y = '```python'", "s = '''\n```\ncode\n```\n'''", "# ``` in a comment", "z = 1",
    'def f():\n    """Doc.\n\n    ```python\n    f()\n    ```\n    """', "q = \"it's\"",
    "print(f\"```{x}```\")", "t = r'''\n~~~\n'''", 'u = """a\\"""\n```\n"""', "w = ~~~3",
]  # fmt: skip
TAILS = ["", "\nOutput:\n```\n1\n```", "\n\n```bash\npython a.py\n```", "\nIt's done.",
         "\n```text\nok\n```\n```\n2\n```", "\nRun `python a.py`, then ```see```."]  # fmt: skip


@given(
    st.lists(st.sampled_from(LINES), min_size=1, max_size=5),
    st.sampled_from(HEADS),
    st.sampled_from(["", "    ", "\t"]),
    st.sampled_from(TAILS),
    st.sampled_from(["", "First:\n```python\ndraft()\n```\n", "```\nplan\n```\n"]),
)
@settings(max_examples=300)
def test_a_program_in_a_fence_is_read_whatever_it_contains(
    lines: list[str], head: str, indent: str, tail: str, before: str
) -> None:
    program = "\n".join(lines)
    ast.parse(program)
    fence = head[: 4 if head.startswith("````") else 3]
    inside = "\n".join(indent + line for line in f"{head}\n{program}\n{fence}".split("\n"))
    reply = f"{before}The program:\n{inside}{tail}"
    assert FENCED_CODE.extract(reply) == program
    call = PythonTool(runner=Recorder()).parse(f"The program:\n{inside}{tail}")
    assert call == ToolCall("python", {"code": program})


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("```python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)"),
        ("```python\nprint(1)\n```\nRun:\n```bash\npython a.py\n```", "print(1)"),
        ("```\nprint(1)\n```\n```bash\npython a.py\n```", "print(1)"),
        ("```python\nprint(1)```\nOutput:\n```\n1\n```", "print(1)"),
        ("```python\nfirst\n```\n```python\nsecond\n```", "second"),
        ("```python\nfirst\n```\n```python\ncut", "first"),
        ("Here ```python\nprint(1)\n```", "print(1)"),
        ("```python print(1)```", "print(1)"),
        ("```python\nx = '''\n```\nThat is it.", "x = '''"),
        ("no ```inline``` code ```\nx\n```", "x"),
        ("``\nx\n``", None),
    ],
)
def test_the_last_python_block_is_the_program(reply: str, program: str | None) -> None:
    assert FENCED_CODE.extract(reply) == program


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            ["```", "~~~", "`", "python", "py\n", "\n", " ", "'''", '"""', "'", "#", "\\"]
        ),
        max_size=20,
    ).map("".join)
)
def test_blocks_of_any_text_are_in_order_and_parts_of_it(text: str) -> None:
    end = 0
    for block in fenced_blocks(text):
        assert end <= block.start < block.end <= len(text)
        assert text[block.start] in "`~"
        assert block.closed or block.end == len(text) or text[block.end :].lstrip()[:1] in "`~"
        end = block.end


@pytest.mark.parametrize(
    "part",
    ["```\n", "```py\n", "```py\n```", "```py\n'''\n```\n", "```py\n\\'''\n```\n'''", "'''\n",
     "~~~\n", "```python x", "a```", " ", "\"", "#"],
)  # fmt: skip
def test_a_long_text_of_fences_is_read_in_linear_time(part: str) -> None:
    # Quadratic work would take hours here.
    fenced_blocks(part * (300_000 // len(part)))
    fenced_blocks("```python\n" + part * (300_000 // len(part)))
