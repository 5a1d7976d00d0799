"""What server and clients write into messages: observations, images, infos, errors, schemas.

A message is JSON with `type` and `data`, as OpenEnv has it. An observation's text is in `text`; if
it has parts, they are in `parts`, where an image is a data URL.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping
from typing import Any

from gem import errors
from gem.blame import CAUSES, boundary, cause_of
from gem.contract import plain, shown
from gem.core import Info, Observation, Step
from gem.errors import ConfigurationError, ContractError, GemError, RemoteError, ServerFullError
from gem.foreign import named
from gem.pictures import data_url, image_file
from gem.plugins import extra

NEEDED = "serving environments and their clients need: pip install 'gem-core[serve]'"
TOKEN_VARIABLE = "GEM_SERVE_TOKEN"
"""Environment variable with the token, of server and clients."""
MOST_ANSWER_BYTES = 64 << 20
"""Largest message of a server; clients read no larger one."""

_PILLOW = "images in memory need: pip install 'gem-core[images]'"
_LONGEST_REPR = 200
# A server that does not know a type of message speaks OpenEnv's protocol, but not GEM's part of it.
_CODES = {"CAPACITY_REACHED": ServerFullError, "UNKNOWN_TYPE": ConfigurationError}

_METADATA = {"type": "object", "additionalProperties": True, "default": {}}
ACTION_SCHEMA: dict[str, Any] = {
    "title": "GemAction",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The policy's whole reply"},
        "metadata": {**_METADATA, "description": "Ignored"},
    },
    "required": ["text"],
    "additionalProperties": False,
}
OBSERVATION_SCHEMA: dict[str, Any] = {
    "title": "GemObservation",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "All that the policy needs to act"},
        "parts": {
            "description": "If there are images: text and image parts; an image is a data URL",
            "anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}],
            "default": None,
        },
        "done": {"type": "boolean", "default": False},
        "reward": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "metadata": {
            **_METADATA,
            "description": "terminated, truncated, info, seed and episode (index) of the episode",
        },
    },
    "required": ["text"],
    "additionalProperties": False,
}
STATE_SCHEMA: dict[str, Any] = {
    "title": "GemState",
    "type": "object",
    "properties": {
        "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "step_count": {"type": "integer", "minimum": 0, "default": 0},
        "env_id": {"type": "string"},
        "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "episode": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    },
    "additionalProperties": True,
}


def dumps(kind: str, data: Mapping[str, Any]) -> str:
    """Return a message as text; lone surrogates are escaped, so that any text crosses."""
    return json.dumps({"type": kind, "data": data}, allow_nan=False, separators=(",", ":"))


def loads(text: str) -> tuple[str, dict[str, Any]]:
    """Return type and data of a message; a message without data has none.

    Raises:
        ValueError: Not JSON, or not a message.
    """
    try:
        message = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    kind = message.get("type") if isinstance(message, dict) else None
    data = message.get("data", {}) if isinstance(message, dict) else None
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise ValueError('a message is {"type": "...", "data": {...}}')
    return kind, data


def observed(
    observation: Observation,
    info: Info,
    key: tuple[int, int],
    reward: float | None = None,
    terminated: bool = False,
    truncated: bool = False,
) -> dict[str, Any]:
    """Return the data of an answer to `reset` or `step`.

    Args:
        observation: Of the environment.
        info: Of the environment; see `json_value`.
        key: `Env.episode_key`.
        reward: Of a step; None after a reset.
        terminated, truncated: Of a step.
    """
    metadata = {
        "terminated": terminated,
        "truncated": truncated,
        "info": json_value(info),
        "seed": key[0],
        "episode": key[1],
    }
    parts = None if isinstance(observation, str) else [_packed(part) for part in observation]
    shown_parts = {"text": shown(observation), "parts": parts, "metadata": metadata}
    done = terminated or truncated
    return {"observation": shown_parts, "reward": reward, "done": done, "metadata": metadata}


def observation_of(data: Mapping[str, Any]) -> tuple[Observation, Info]:
    """Return observation and info of what `observed` wrote.

    Raises:
        ContractError: It is something else.
        MissingExtraError: An image needs Pillow, which is not installed.
    """
    try:
        parts = data["observation"]["parts"]
        text, info = data["observation"]["text"], dict(data["metadata"]["info"])
        return (text if parts is None else [_unpacked(part) for part in parts]), info
    except (KeyError, TypeError, ValueError) as error:
        raise ContractError(f"the server's answer is none of GEM: {data!r:.200}") from error


def step_of(data: Mapping[str, Any]) -> Step:
    """Return the step that `observed` wrote.

    Raises:
        ContractError: It is something else.
    """
    observation, info = observation_of(data)
    metadata = data["metadata"]
    flags = metadata.get("terminated"), metadata.get("truncated")
    if not all(isinstance(flag, bool) for flag in flags):
        raise ContractError(f"the server's answer has no flags: {metadata!r:.200}")
    return observation, float(data["reward"]), *flags, info


def size_of(action: str) -> int:
    """Return the bytes of an action as UTF-8."""
    return len(action.encode(errors="surrogatepass"))


def oversized(size: int, limit: int) -> str:
    """Return the message for an action that a server does not take."""
    return f"the action has {size} bytes; this server takes at most {limit} (--max-action-bytes)"


def fault(error: Exception) -> dict[str, Any]:
    """Return the data that tell a client of an error, without a code."""
    name, message = named(error)
    known = isinstance(error, GemError | NotImplementedError)
    return {
        "message": message if known else f"{name}: {message}",
        "error": name,
        "cause": cause_of(error),
    }


def raise_fault(data: Mapping[str, Any]) -> None:
    """Raise the error that `fault` wrote, and its cause for `gem.blame`.

    Errors of `gem.errors` are raised as what they were, those of other OpenEnv servers as `_CODES`
    has it, all others as `RemoteError`.
    """
    name, cause, code = (str(data.get(key)) for key in ("error", "cause", "code"))
    kind = NotImplementedError if name == "NotImplementedError" else vars(errors).get(name)
    if code in _CODES:
        kind = _CODES[code]
    elif not isinstance(kind, type) or not issubclass(kind, GemError | NotImplementedError):
        kind = RemoteError
    with boundary(cause if cause in CAUSES else "environment"):
        raise kind(str(data.get("message", "the server gives no reason")))


def json_value(value: Any) -> Any:
    """Return a value as JSON has it.

    NumPy scalars become numbers, tuples lists, NaN and infinity None; what JSON lacks becomes its
    `repr`, shortened.
    """
    value = plain(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    return f"{value!r:.{_LONGEST_REPR}}"


def _packed(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] != "image":
        return {"type": "text", "text": part["text"]}
    pixels = hasattr(part["image"], "save")
    url = data_url(image_file(part["image"]))
    return {"type": "image", "image": url, "pixels": pixels}


def _unpacked(part: Mapping[str, Any]) -> Any:
    """Return a part as the environment had it, but for an image's path: the bytes instead."""
    if part["type"] != "image":
        return {"type": "text", "text": part["text"]}
    image: Any = base64.b64decode(part["image"].partition(",")[2], validate=True)
    if part.get("pixels"):
        image = extra("PIL.Image", _PILLOW).open(io.BytesIO(image))
        image.load()
    return {"type": "image", "image": image}
