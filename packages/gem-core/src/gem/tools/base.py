"""The tool protocol: `parse` a call out of a policy's text, `execute` it, `observe` the result.

A policy's mistakes become results that it is shown, never exceptions. Exceptions mean something
else is wrong: `UnreachableError` if a server or sandbox is gone, `ConfigurationError` and
`MissingExtraError` for what only the user can fix.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from gem.foreign import called

ToolT = TypeVar("ToolT", bound="Tool")

TOOL_CALL = re.compile(r"<tool_call>")
_TOOL_CALL_END = "</tool_call>"
_TAGS = re.compile(r"\s*<tool_name>")
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder(strict=False)
# Keys that models and chat templates use for a call's arguments.
_ARGUMENTS = ("arguments", "parameters", "kwargs")


@dataclass(frozen=True)
class ToolCall:
    """A call that a policy wrote."""

    name: str
    """Function to call."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    """Why the call cannot be executed, as a sentence for the policy."""
    ignored: int = 0
    """Number of further calls in the same text, which are not executed."""
    cut: bool = False
    """Whether the call has no end, so that it cannot be executed. A complete call comes first."""


@dataclass(frozen=True)
class ToolResult:
    """The result of a call."""

    text: str
    """Text shown to the policy."""
    ok: bool
    """Whether the call succeeded: false for a program that crashed, a function that returned an
    error, a malformed call."""
    timed_out: bool = False
    """Whether the call was given up after a wall-clock limit; `ToolEnv` counts such calls."""


class JsonCall(NamedTuple):
    """A call in the form that chat templates teach."""

    name: str
    arguments: dict[str, Any]
    error: str | None
    """What is wrong with the call; the name may be known nevertheless."""
    cut: bool = False
    """Whether the call has no end."""


class Block(NamedTuple):
    """A delimited part of a text, with the positions where it starts and ends."""

    start: int
    content: str
    end: int
    error: str | None = None
    """Why the part, a call, cannot be executed."""
    cut: bool = False
    """Whether the part has no end; then it ends with the text."""


class Tool(ABC):
    """One tool of one environment; instances share nothing.

    The instance attributes are its state, except those named in `live` (such as connections): these
    are left out of snapshots and pickles, so the tool must recreate them when missing.
    """

    tool_type: ClassVar[str]
    """Value of `info["tool_type"]` when this tool handled a step."""
    live: ClassVar[frozenset[str]] = frozenset()
    """Names of attributes that cannot be copied."""
    replayable: ClassVar[bool] = True
    """Whether the same calls give the same results in every episode; not where a tool reaches
    outside."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the functions that a call may name."""
        return (self.tool_type,)

    def reset(self) -> None:  # noqa: B027
        """Prepare for an episode; called before `instruction`.

        Raises:
            ConfigurationError, MissingExtraError: The tool cannot work here.
            UnreachableError: A server it needs does not answer.
        """

    @abstractmethod
    def instruction(self) -> str:
        """Return the text about the tool that the first observation shows to the policy."""

    def schemas(self) -> list[dict[str, Any]]:
        """Return the functions for an API that takes tools apart from messages.

        They are known after the first `reset`. Each is `{"name": ..., "description": ...,
        "parameters": <JSON schema of an object>}`, and `parse` understands its JSON call
        (`json_call`). Empty if the tool has other calls only.
        """
        return []

    @abstractmethod
    def parse(self, text: str) -> ToolCall | None:
        """Return the first call of this tool in a text, None if there is none.

        A call that is meant for this tool but cannot be executed has `error` set.
        """

    @abstractmethod
    def execute(self, call: ToolCall) -> ToolResult:
        """Carry out a call, within the tool's limits.

        Raises:
            UnreachableError: A server or sandbox does not answer, after the tool's own retries.
        """

    async def aexecute(self, call: ToolCall) -> ToolResult:
        """Like `execute`, without blocking the event loop."""
        return await asyncio.to_thread(called, self.execute, call)

    def observe(self, call: ToolCall, result: ToolResult) -> str:
        """Return the observation that the policy gets for a call."""
        if not call.ignored:
            return result.text
        rest = "another call was" if call.ignored == 1 else f"{call.ignored} more calls were"
        return f"{result.text}\n(Only your first call was executed; {rest} ignored.)"

    def finish(self) -> None:  # noqa: B027
        """Release what only this episode needed; called at its end, before `reset` or `close`."""

    def close(self) -> None:  # noqa: B027
        """Release processes and connections; safe to repeat."""

    def snapshot(self) -> bytes:
        """Return the state as a pickle; restore only pickles that your own processes made."""
        return pickle.dumps(self.__getstate__(), protocol=5)

    def restore(self, state: bytes) -> None:
        """Continue from `snapshot`; live attributes stay as they are."""
        kept = {name: self.__dict__[name] for name in self.live if name in self.__dict__}
        self.__dict__.clear()
        self.__dict__.update(pickle.loads(state))
        self.__dict__.update(kept)

    def spawn(self: ToolT) -> ToolT:
        """Return an independent copy in the same state."""
        child = type(self).__new__(type(self))
        child.restore(self.snapshot())
        return child

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in self.live}


def first_block(text: str, opener: re.Pattern[str], closer: str, begin: int = 0) -> Block | None:
    """Return the first part from `begin` on that begins with `opener` and ends with `closer`.

    A part without an end is `cut`, with an `error` for the policy. Takes linear time for any text.
    """
    opening = opener.search(text, begin)
    if opening is None:
        return None
    ending = re.compile(re.escape(closer), re.IGNORECASE).search(text, opening.end())
    if ending is None:
        return Block(opening.start(), text[opening.end() :], len(text), unended(closer), cut=True)
    return Block(opening.start(), text[opening.end() : ending.start()], ending.end())


def count_blocks(text: str, opener: re.Pattern[str], closer: str, begin: int = 0) -> int:
    """Return the number of parts from `begin` on that have an end."""
    count = 0
    while (block := first_block(text, opener, closer, begin)) is not None and not block.cut:
        count, begin = count + 1, block.end
    return count


def unended(closer: str) -> str:
    """Return what the policy is told of a call without its end."""
    return f"The call has no end; write {closer} after it."


def json_call(text: str) -> tuple[JsonCall, Block] | None:
    """Return the first `<tool_call>` as a JSON call, with `error` set if it is malformed.

    The form is `{"name": ..., "arguments": {...}}`; the arguments may be a string of JSON, or under
    the key `parameters` or `kwargs`. Line breaks in strings are allowed. Returns None if there is
    no such tag, or if it holds tags, not JSON.
    """
    opening = TOOL_CALL.search(text)
    if opening is None or _TAGS.match(text, opening.end()):
        return None
    begin = opening.end()
    error, cut = "", False
    value: Any = None
    space = _SPACE.match(text, begin)
    try:
        value, end = _DECODER.raw_decode(text, space.end() if space else begin)
    except (ValueError, RecursionError) as problem:
        error, end = f"The call is not valid JSON: {_short(problem)}.", begin
    # The tag may occur in the object's strings.
    ending = text.find(_TOOL_CALL_END, end)
    if ending < 0:
        error, cut, ending = unended(_TOOL_CALL_END), True, len(text)
    elif not error and text[end:ending].strip():
        error = "The call is not valid JSON: there is more than one object."
    block = Block(opening.start(), text[begin:ending], ending + len(_TOOL_CALL_END) * (not cut))
    return _json_call(value, error, cut), block


def _json_call(value: Any, error: str, cut: bool) -> JsonCall:
    named = isinstance(value, dict) and isinstance(value.get("name"), str)
    name = value["name"] if named else ""
    if error:
        return JsonCall(name, {}, error, cut)
    if not named:
        return JsonCall("", {}, 'A call is a JSON object with "name" (text) and "arguments".')
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    return JsonCall(name, *read_arguments(arguments))


def read_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    """Return the arguments of a call as a mapping, and what is wrong with them."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            return {}, f"The arguments are not valid JSON: {_short(error)}."
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return {}, f"The arguments must be a JSON object, not {_kind(arguments)}."
    try:
        # A lone surrogate cannot be encoded as UTF-8.
        return json.loads(printable(json.dumps(arguments, ensure_ascii=False))), None
    except RecursionError as error:  # writing nests less deeply than reading
        return {}, f"The arguments are not valid JSON: {_short(error)}."


def first_text(text: str, blocks: Iterable[Block], name: str, argument: str) -> Block | None:
    """Return the complete call that ends first, or else one without its end; the content is the
    argument.

    Args:
        text: A reply.
        blocks: The calls in tags or fences, with the argument as content.
        name: Function whose JSON call counts, too.
        argument: The JSON call's only argument, a string.
    """
    found = list(blocks)
    call = json_call(text)
    if call is not None:
        written, block = call
        if not (written.cut and written.error):
            # The JSON call's text may quote the other forms: ignore blocks inside it.
            found = [each for each in found if not block.start < each.start < block.end]
        if written.name == name:
            value, error = _text_argument(written, argument)
            found.append(block._replace(content=value, error=error, cut=written.cut))
    return min(found, key=lambda each: (each.cut, each.end), default=None)


def failed(call: ToolCall) -> ToolResult:
    """Return the result of a call that cannot be executed."""
    return ToolResult(f"[Tool error: {call.error}]", ok=False)


def text_schema(name: str, description: str, argument: str, about: str) -> dict[str, Any]:
    """Return the schema of a function with one argument, a text; see `Tool.schemas`."""
    return {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {argument: {"type": "string", "description": about}},
            "required": [argument],
        },
    }


def _text_argument(call: JsonCall, name: str) -> tuple[str, str | None]:
    """Return the only argument of a call, a string called `name`, and what is wrong with it."""
    if call.error is not None:
        return "", call.error
    others = [key for key in call.arguments if key != name]
    if others or name not in call.arguments:
        has = ", ".join(map(repr, call.arguments)) or "nothing"
        return "", f'{call.name} takes one argument, "{name}"; it was given {clip(has, 200)}.'
    value = call.arguments[name]
    if not isinstance(value, str):
        return "", f'The argument "{name}" must be text, not {_kind(value)}.'
    return value, None


def clip(text: str, limit: int) -> str:
    """Return a text of at most about `limit` characters: its head, a note, its tail."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    cut = len(text) - head - tail
    return f"{text[:head]}\n... ({cut} characters left out) ...\n{text[-tail:]}"


def printable(text: str) -> str:
    """Return a text that can be encoded as UTF-8: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list"}
    return "null" if value is None else names.get(type(value), "an object")


def _short(error: Exception) -> str:
    return clip(" ".join(str(error).split()), 120)
