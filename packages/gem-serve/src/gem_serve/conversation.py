"""`Conversation`: an agent program's chat requests as observations, actions as its replies.

A request carries the whole conversation. The policy is shown only what came after its last reply,
so what came before must be what it was shown: a program that rewrites its history is refused by
name. Knows no network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gem.errors import GemError
from gem.tools.base import json_call, read_arguments

_TOOLS = (
    'You may call tools. A call is {"name": ..., "arguments": {...}} between <tool_call> and '
    "</tool_call>. The tools:\n"
)
_ROLES = ("system", "developer", "user", "assistant", "tool")


class AgentProgramError(GemError, RuntimeError):
    """What plays an episode's environment broke, or does what GEM cannot follow: it is void."""


class HistoryError(AgentProgramError):
    """A program's request does not continue the conversation that the policy was shown."""


class UnsupportedRequestError(AgentProgramError):
    """A program asks for something that a policy cannot be asked for, such as images."""


class Conversation:
    """The conversation of one episode.

    Attributes:
        turns: Number of replies of the policy.
    """

    def __init__(self) -> None:
        """Begin with nothing said."""
        self.turns = 0
        self._shown: list[Any] = []
        self._surroundings = ""
        self._has_tools = False
        self._stops: list[str] = []

    def observe(self, request: Mapping[str, Any]) -> str:
        """Return what a request adds to the conversation, as the next observation.

        The first one begins with the tools, if there are any; so does a later one whose tools
        differ. Results of tools stand between `<tool_response>` tags.

        Args:
            request: Body of a chat completion.

        Raises:
            HistoryError: The conversation so far is not the one that the policy was shown, or has
                replies that it did not write.
            UnsupportedRequestError: It asks for several replies, log-probabilities, or shows what
                is no text.
        """
        try:
            return self._observe(request)
        except (KeyError, TypeError, AttributeError) as error:
            raise UnsupportedRequestError(
                f"the program's request is malformed ({type(error).__name__}: {error})"
            ) from None

    def _observe(self, request: Mapping[str, Any]) -> str:
        messages = _checked(request)
        told = [_plain(message) for message in messages]
        seen = len(self._shown)
        if told[:seen] != self._shown or (self.turns and len(told) == seen):
            raise HistoryError(_difference(self._shown, told, self.turns))
        fresh = messages[seen:]
        if self.turns and any(message["role"] == "assistant" for message in fresh):
            raise HistoryError(
                "the program added an assistant's message that the policy never wrote"
            )
        self._shown = told
        self._has_tools = bool(request.get("tools")) and request.get("tool_choice") != "none"
        stop = request.get("stop") or []
        self._stops = [each for each in ([stop] if isinstance(stop, str) else stop) if each]
        surroundings, before = _surroundings(request, self._has_tools), self._surroundings
        self._surroundings = surroundings
        parts = [surroundings] if surroundings != before else []
        return "\n\n".join(filter(None, [*parts, *map(_text, fresh)]))

    def reply(self, action: str) -> tuple[dict[str, Any], str]:
        """Return the policy's text as an assistant's message, and the reason why it finished.

        Calls of tools become native calls if the program has offered tools. A call that is no
        valid JSON stays text. The text ends before the first of the program's stop strings.
        """
        text = action
        for stop in self._stops:
            text = text.partition(stop)[0]
        content, calls = _calls(text, self.turns) if self._has_tools else (text, [])
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = calls
        self._shown.append(_plain(message))
        self.turns += 1
        return message, "tool_calls" if calls else "stop"


def _checked(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a request that can be answered."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise UnsupportedRequestError("the request has no messages")
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            raise UnsupportedRequestError(f"the request has a message with the role {role!r}")
        for part in _parts(message):
            if not isinstance(part, dict) or part.get("type") != "text":
                kind = part.get("type") if isinstance(part, dict) else part
                raise UnsupportedRequestError(f"a message has a part of type {kind!r}; only text")
    for key in ("n", "functions", "logprobs", "audio"):
        if request.get(key) not in (None, False, 1):
            raise UnsupportedRequestError(f"the request asks for {key}={request[key]!r:.80}")
    return messages


def _surroundings(request: Mapping[str, Any], tools: bool) -> str:
    """Return what the policy is told besides messages: tools, and the form of the answer."""
    told = []
    if tools:
        listed = [json.dumps(tool.get("function", tool)) for tool in request["tools"]]
        told.append(_TOOLS + "\n".join(listed))
    wanted = request.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        schema = json.dumps(wanted.get("json_schema", {}).get("schema", {}))
        told.append(f"Answer with one JSON object of this schema, and nothing else:\n{schema}")
    elif wanted.get("type") == "json_object":
        told.append("Answer with one JSON object, and nothing else.")
    return "\n\n".join(told)


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return [] if content is None or isinstance(content, str) else content


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "".join(p["text"] for p in _parts(message))


def _text(message: Mapping[str, Any]) -> str:
    """Return a message as the policy is shown it."""
    text = _content(message)
    if message["role"] == "tool":
        return f"<tool_response>\n{text}\n</tool_response>"
    if message["role"] == "assistant":  # an example in the program's prompt
        return f"<assistant>\n{text}\n</assistant>"
    return text


def _plain(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what two messages that say the same have in common.

    Programs add fields, drop empty ones, write arguments anew, and strip replies.
    """
    role, text = message["role"], _content(message)
    calls = [
        (call.get("id"), call["function"]["name"], read_arguments(call["function"]["arguments"])[0])
        for call in message.get("tool_calls") or ()
    ]
    return (
        "system" if role == "developer" else role,
        text.strip() if role == "assistant" else text,
        message.get("tool_call_id"),
        calls,
    )


def _calls(text: str, turn: int) -> tuple[str, list[dict[str, Any]]]:
    """Return a text without its calls of tools, and the calls as the API has them."""
    kept = ""
    calls: list[dict[str, Any]] = []
    while (found := json_call(text)) is not None:
        call, block = found
        if call.error is None:
            function = {"name": call.name, "arguments": json.dumps(call.arguments)}
            id = f"call_{turn}_{len(calls)}"
            calls.append({"id": id, "type": "function", "function": function})
        kept += text[: block.start] if call.error is None else text[: block.end]
        text = text[block.end :]
    kept += text
    return kept.strip() if calls else kept, calls


def _difference(shown: Sequence[Any], told: Sequence[Any], turns: int) -> str:
    """Say where a request leaves the conversation that the policy was shown."""
    if told == shown:
        return "the program asked again without adding anything to the conversation"
    if told == shown[:-1]:
        return "the program asked the same again: it repeats a request, or calls in parallel"
    place = next(
        (i for i, (a, b) in enumerate(zip(shown, told, strict=False)) if a != b),
        min(len(shown), len(told)),
    )
    if place == len(told):
        what = f"has only {len(told)} of {len(shown)} messages"
    else:
        was, now = (str(each[1])[:60] for each in (shown[place], told[place]))
        what = f"has another message {place} ({told[place][0]}: {now!r}, it was {was!r})"
    return (
        f"after {turns} replies the program's request {what}: its history is not append-only "
        "(it compacts, branches or edits), so the policy cannot be shown it"
    )
