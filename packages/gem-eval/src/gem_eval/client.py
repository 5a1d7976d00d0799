"""`ChatClient`: asks an OpenAI-compatible server for replies to conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeGuard

from gem.errors import ConfigurationError
from gem.json_lines import checked
from gem.rollout.thinking import MARKERS
from gem.trajectory import StopReason
from gem_eval import native
from gem_eval.server import Server

Message = dict[str, Any]

_FAILED = ("error", "abort")
"""Values of `finish_reason` after which a text is not the model's reply."""
VLLM_IDS = "return_token_ids, which vLLM has since 0.10.2"


@dataclass(frozen=True)
class Reply:
    """A model's reply."""

    text: str
    """What the environment is given: without reasoning."""
    stop_reason: StopReason = "stop"
    note: dict[str, Any] = field(default_factory=dict)
    """What the record keeps besides: `prompt_tokens`, `reply_tokens`, `cached_tokens`,
    `reasoning_tokens` and `finish_reason` if the server said them, `refused` if it said that the
    model refuses, whose words are then the text, `reasoning` (text), `seconds`
    of the call that was answered, and `retries`; of a reply with native tool calls `tool_calls`
    (`{"id", "name", "arguments"}` each) and `content`, its text."""
    prompt_ids: list[int] = field(default_factory=list)
    """Tokens that the server made of the conversation, if it says them, as the next."""
    token_ids: list[int] = field(default_factory=list)
    """Tokens that the server sampled, reasoning included."""


class ChatClient:
    """A model behind `POST <url>/chat/completions`."""

    def __init__(
        self, server: Server, sampling: Mapping[str, Any] | None = None, *, tokens: bool = False
    ) -> None:
        """Store how the model is asked.

        Args:
            server: Has the model.
            sampling: Further fields of each request, such as `temperature`.
            tokens: Ask for the tokens of prompt and reply, as vLLM can be.
        """
        self._server = server
        self._tokens = tokens
        self._sampling = {**(sampling or {}), **({"return_token_ids": True} if tokens else {})}

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        """Return the model's reply to a conversation.

        Args:
            messages: The conversation.
            tools: What the model may call, as the API wants it; its calls become the text of the
                reply, see `gem_eval.native`.

        Raises:
            ContextOverflowError, ServerError, ConfigurationError: See `gem_eval.server`; the last
                also if the server does not say the tokens that it was asked for.
        """
        body = {"model": self._server.model, "messages": list(messages), **self._sampling}
        if tools:
            body["tools"] = list(tools)
        url = f"{self._server.url}/chat/completions"
        reply, note = await self._server.ask(url, body, partial(_parsed, bool(tools)))
        if self._tokens and not reply.prompt_ids:
            raise ConfigurationError(
                f"{self._server.url} returns no token ids: --tier messages needs a server with "
                f"{VLLM_IDS}; --tier text plays by text"
            )
        return replace(reply, note=reply.note | note)


def usage_note(data: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of tokens that an answer tells, by the names of `Reply.note`."""
    usage = _object(data.get("usage"))
    counts: dict[str, Any] = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "reply_tokens": usage.get("completion_tokens"),
        "cached_tokens": _object(usage.get("prompt_tokens_details")).get("cached_tokens"),
        "reasoning_tokens": _object(usage.get("completion_tokens_details")).get("reasoning_tokens"),
    }
    # What a server counts in another way decides nothing: it is left out.
    return {name: count for name, count in counts.items() if is_count(count)}


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a number of tokens."""
    return type(value) is int and 0 <= value < 2**63


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def first_choice(data: Mapping[str, Any]) -> Any:
    """Return the choice of an answer whose index is 0; a server need not say the index.

    Raises:
        ValueError, KeyError, TypeError: There is none.
    """
    for choice in data["choices"]:
        if choice.get("index", 0) == 0:
            return choice
    raise ValueError("no choice has the index 0")


def _parsed(may_call: bool, data: Any) -> Reply:
    choice = first_choice(data)
    message = choice["message"]
    refusal = message.get("refusal")
    finish = choice.get("finish_reason")
    if finish in _FAILED or choice.get("error"):
        raise ValueError(f"the server broke the reply off: {choice.get('error') or finish}")
    text, thought = _split(_content(message.get("content") or refusal))
    calls = native.calls_of(message) if may_call else []
    note = {
        **usage_note(data),
        "finish_reason": finish if isinstance(finish, str) else None,
        "refused": True if refusal else None,
        # vLLM has called it both.
        "reasoning": _content(
            message.get("reasoning_content") or message.get("reasoning") or thought
        ),
        "tool_calls": calls or None,
        "content": text if calls else None,
    }
    return Reply(
        native.action(calls) if calls else text,
        "length" if finish == "length" else "stop",
        {name: value for name, value in note.items() if value is not None and value != ""},
        _token_ids(data.get("prompt_token_ids")),
        _token_ids(choice.get("token_ids")),
    )


def _token_ids(value: Any) -> list[int]:
    found: list[int] = checked(value or [], list[int], "token ids")
    return found


def _content(content: Any) -> str:
    """Return a message's text; lone surrogates, which are no text, are replaced."""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    if content is None:
        content = ""
    if not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    return content.encode("utf-8", "replace").decode()


def _split(content: str) -> tuple[str, str]:
    """Return answer and thinking, which servers without a reasoning parser leave in one text."""
    for opening, closing in MARKERS:
        thought, marker, answer = content.rpartition(closing)
        if marker:
            return answer.lstrip(), thought.removeprefix(opening).strip()
        if content.lstrip().startswith(opening):
            return "", content.strip().removeprefix(opening).strip()
    return content, ""
