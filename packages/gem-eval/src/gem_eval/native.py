"""Native tool calls: the API's `tools`, `tool_calls` and messages of the role `tool`.

`NativeTools` describes an environment's tools as JSON schemas, `action` makes the text of a model's
calls that `gem.wrappers.ToolEnv` understands, `before` and `after` are the messages around it. The
record keeps calls as `{"id", "name", "arguments"}`, with the arguments as the model wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gem.core import Env, Info, Observation, Wrapper
from gem.errors import ConfigurationError, DataError
from gem.json_lines import parse
from gem.tools.base import printable
from gem.wrappers import ToolEnv
from gem_eval.contents import Content
from gem_eval.tasks import Part

TOOLS = "gem_eval_tools"
"""Key of the info of `reset` that has the tools, as JSON."""
_IGNORED = "Not executed: only the first call of a reply is."


class NativeTools(Wrapper):
    """Describes tools in the info of `reset`, not in the first observation."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode; the info has the schemas of the tools under `TOOLS`.

        Raises:
            ConfigurationError: A tool has none.
        """
        observation, info = self.env.reset(seed=seed, **options)
        tools = _tool_env(self.env)
        if tools is None:
            return observation, info
        described = f"{tools.descriptions}\n"
        if isinstance(observation, str):
            observation = observation.replace(described, "", 1)
        else:
            observation = [
                {**part, "text": part["text"].replace(described, "", 1)} if "text" in part else part
                for part in observation
            ]
        schemas = []
        for tool in tools.tools:
            functions = tool.schemas()
            if not functions:
                raise ConfigurationError(
                    f"tool {tool.tool_type!r} has no schemas() and cannot be called natively"
                )
            schemas += [{"type": "function", "function": function} for function in functions]
        return observation, {**info, TOOLS: json.dumps(schemas)}


def with_native_tools(part: Part) -> Part:
    """Return the same tasks with `NativeTools` around their environments."""
    own = part.tasks.params.get("wrappers", ())
    wrapper = f"{NativeTools.__module__}:{NativeTools.__name__}"
    wrappers = [*(own if isinstance(own, list | tuple) else [own]), wrapper]
    params = {**part.tasks.params, "wrappers": wrappers}
    return replace(part, tasks=replace(part.tasks, params=params))


def calls_of(message: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the calls of an API's message, as the record keeps them.

    Raises:
        KeyError, TypeError, AttributeError: They are none.
    """
    found = []
    for number, call in enumerate(message.get("tool_calls") or []):
        arguments = call["function"].get("arguments") or ""
        # OpenAI's API says JSON as text; some servers say the object.
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        name = printable(str(call["function"]["name"]))
        identifier = str(call.get("id") or f"call_{number}")
        found.append({"id": identifier, "name": name, "arguments": printable(text)})
    return found


def action(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of calls for the environment, which executes the first one."""
    texts = [json.dumps({"name": call["name"], "arguments": call["arguments"]}) for call in calls]
    # No tag and no fence in an argument may look like one of the environment's own.
    safe = (text.replace("<", "\\u003c").replace("`", "\\u0060") for text in texts)
    return "\n".join(f"<tool_call>{text}</tool_call>" for text in safe)


def before(content: Content, note: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the messages of an observation.

    The result of a call is text. Images that come with it are a message of the user after it.

    Args:
        content: The observation.
        note: `Reply.note` of the reply that it follows, None for the first one.
    """
    calls = note.get("tool_calls") if note is not None else None
    if not calls:
        return [{"role": "user", "content": content}]
    parts = [] if isinstance(content, str) else content
    said = content if isinstance(content, str) else "".join(p.get("text", "") for p in parts)
    texts = [said, *[_IGNORED] * (len(calls) - 1)]
    images = [part for part in parts if part["type"] != "text"]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": each}
        for call, each in zip(calls, texts, strict=True)
    ] + ([{"role": "user", "content": images}] if images else [])


def after(text: str, note: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of a reply; arguments that are no JSON object are left out.

    Servers whose templates read the arguments refuse such a message.

    Args:
        text: What the environment was given.
        note: `Reply.note`.
    """
    calls = note.get("tool_calls")
    if not calls:
        return {"role": "assistant", "content": text}
    return {
        "role": "assistant",
        "content": note.get("content", ""),
        "tool_calls": [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": _object(call["arguments"])},
            }
            for call in calls
        ],
    }


def _object(arguments: str) -> str:
    try:
        return arguments if isinstance(parse(arguments, "the call"), dict) else "{}"
    except DataError:
        return "{}"


def _tool_env(env: Env) -> ToolEnv | None:
    while isinstance(env, Wrapper):
        if isinstance(env, ToolEnv):
            return env
        env = env.env
    return None
