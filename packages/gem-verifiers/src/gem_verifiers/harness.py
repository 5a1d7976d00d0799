"""`GemChat`, a harness of verifiers: a chat loop with tools that runs in the worker's process.

The harnesses that come with verifiers start a program for each episode, which takes seconds and an
index of packages.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from contextlib import AsyncExitStack
from typing import Any, TypedDict

import httpx
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

from gem.errors import UnreachableError
from gem.fetching import is_local
from gem.json_lines import parse_as
from gem.tools.base import read_arguments


class _Choice(TypedDict):
    message: dict[str, Any]


class _Answer(TypedDict):
    choices: list[_Choice]


class GemChatConfig(HarnessConfig):
    """The harness has no settings of its own."""


class GemChat(Harness[GemChatConfig]):
    """Asks the model until its reply calls no tool; calls go to the task's MCP servers."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = SUPPORTS_MCP = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        **_: Any,
    ) -> Any:
        """Play one segment: from the conversation so far to a reply without calls."""
        system, prompt = self.resolve_prompt(data)
        messages = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        config = {
            "mcpServers": {
                name: {"url": url, "timeout": self.config.tool_timeout}
                for name, url in mcp_urls.items()
            }
        }
        async with AsyncExitStack() as stack:
            tools, dispatch, servers = await connect_mcp(config, stack)
            offered = {"tools": tools} if tools else {}
            while True:
                answer = await _client(is_local(endpoint)).post(
                    f"{endpoint}/chat/completions",
                    headers={"authorization": f"Bearer {secret}"},
                    json={"model": ctx.model, "messages": messages, **offered},
                )
                if answer.status_code >= 400:
                    return ProgramResult(exit_code=1, stdout="", stderr=answer.text)
                message = _message(answer.content, endpoint)
                messages.append(message)
                if not message.get("tool_calls"):
                    return ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message["tool_calls"]:
                    content = await _result(call["function"], servers, dispatch)
                    told = {"role": "tool", "tool_call_id": call["id"], "content": content}
                    messages.append(told)


def _message(body: bytes, endpoint: str) -> dict[str, Any]:
    """Return the message of the first choice.

    Raises:
        UnreachableError: The answer is none of a model.
    """
    place = f"the answer of {endpoint}"
    answer: _Answer = parse_as(body, _Answer, place, UnreachableError)
    if not answer["choices"]:
        raise UnreachableError(f"{place} has no choice")
    return answer["choices"][0]["message"]


async def _result(call: dict[str, str], servers: Any, dispatch: Any) -> Any:
    """Return what a tool answers, or what is wrong with the call."""
    if call["name"] not in dispatch:
        return f"error: unknown tool {call['name']!r}; there are {json.dumps(list(dispatch))}"
    arguments, error = read_arguments(call["arguments"])
    if error is not None:
        return f"error: {error}"
    return await call_mcp(servers, dispatch, call["name"], arguments)


# Making a client takes tens of milliseconds; a client belongs to one loop.
_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, httpx.AsyncClient]] = (
    weakref.WeakKeyDictionary()
)


def _client(local: bool) -> httpx.AsyncClient:
    """Return the running loop's client; one for servers of this machine uses no proxies."""
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    if local not in clients:
        clients[local] = httpx.AsyncClient(timeout=None, trust_env=not local)
    return clients[local]
