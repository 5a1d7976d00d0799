"""Messages between an executor and its workers: JSON arrays of requests one way, of answers back.

A request is `[name, number of the environment, ...]`, an answer `[number, name, ...]`; `host` says
which there are. Nothing is pickled: a worker can send text, numbers and images, and no code.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gem import errors
from gem.blame import CAUSES, cause_of
from gem.contract import is_scalar, plain
from gem.core import ContentPart, Info, Observation, Step
from gem.errors import ConfigurationError, GemError, MisuseError
from gem.executors.held import EnvFailedError
from gem.fingerprint import ORIENTATION, canonical
from gem.foreign import described, named

MOST_BYTES = 64 * 2**20
"""Most bytes of a request or an answer, such as an action or an observation with its info."""
FRAME_BYTES = 1 << 20
"""Size that frames of several requests or answers do not exceed."""
FRAME_REQUESTS = 1024
"""Most requests of a frame."""
FRAME_COMMAS = 12_000
"""Commas that frames of several requests do not exceed: a server limits the values of a message."""


class FrameError(ValueError):
    """A frame is not one of requests, or asks for what its sender may not; the message says why."""


_REQUESTS: dict[str, tuple[str, ...]] = {
    "open": ("recipe", "limit", "key"),
    "load": (),
    "reset": ("seed", "options"),
    "step": ("action",),
    "resume": ("episode", "options", "actions", "digest", "action"),
    "close": (),
}
"""Arguments of each request, after the number of the environment."""


def decode_requests(frame: bytes | str) -> list[list[Any]]:
    """Return the requests of a frame: each a name, a number and the arguments of `_REQUESTS`.

    Raises:
        FrameError: It is none, or one of its requests is none.
    """
    try:
        requests = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {described(error):.200}") from None
    if not isinstance(requests, list) or len(requests) > FRAME_REQUESTS:
        raise FrameError(f"a frame is a list of at most {FRAME_REQUESTS} requests")
    for request in requests:
        if not isinstance(request, list) or len(request) < 2 or not isinstance(request[0], str):
            raise FrameError(f"a request is [name, number, ...], got {request!r:.100}")
        name, number, *arguments = request
        if name not in _REQUESTS:
            known = ", ".join(_REQUESTS)
            raise FrameError(f"unknown request {name!r:.100}; known: {known}")
        # 1, 1.0 and True are one key of a mapping.
        if type(number) is not int or not 0 <= number < _NUMBERS:
            raise FrameError(f"the number of an environment is an integer, got {number!r:.100}")
        expected = _REQUESTS[name]
        if len(arguments) != len(expected):
            raise FrameError(f"{name!r} takes {len(expected)} arguments, got {len(arguments)}")
        for kind, argument in zip(expected, arguments, strict=True):
            if not _KINDS[kind](argument):
                raise FrameError(f"{kind} of {name!r} cannot be {argument!r:.100}")
    return requests


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_key(value: Any) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [int, int]


_NUMBERS = 1 << 53
_KINDS: dict[str, Callable[[Any], bool]] = {
    "recipe": lambda value: (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and isinstance(value.get("params"), dict)
        and isinstance(value.get("wrappers"), list | str | dict)
    ),
    "limit": lambda value: value is None or _is_number(value),
    "key": lambda value: value is None or _is_key(value),
    "episode": _is_key,
    "seed": lambda value: value is None or type(value) is int,
    "options": lambda value: isinstance(value, dict),
    "actions": lambda value: (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    ),
    "digest": lambda value: isinstance(value, str),
    "action": lambda value: isinstance(value, str),
}


def encode_info(info: Info) -> str:
    """Return an info as JSON; NumPy values become Python's, what JSON cannot represent is left out.

    Keys become text.
    """
    try:
        return json.dumps(info)
    except (TypeError, ValueError):
        return json.dumps(_kept(info))


def _kept(value: Any) -> Any:
    """Return the part of a value that JSON can represent."""
    value = plain(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        kept = {str(key): _kept(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each is not _NOTHING}
    if isinstance(value, list | tuple):
        return [each for each in map(_kept, value) if each is not _NOTHING]
    return value if is_scalar(value) else _NOTHING


_NOTHING = object()


def encode_observation(observation: Observation) -> Any:
    """Return an observation as JSON values; the bytes of images travel with it."""
    if isinstance(observation, str):
        return observation
    return [
        {"type": "text", "text": part["text"]} if part["type"] == "text" else _image(part["image"])
        for part in observation
    ]


def decode_observation(data: Any) -> Observation:
    """Return the observation that `encode_observation` was given."""
    if isinstance(data, str):
        return data
    parts: list[ContentPart] = [
        part if part["type"] == "text" else _decoded_image(part) for part in data
    ]
    return parts


def _image(image: Any) -> dict[str, Any]:
    if isinstance(image, str | Path):
        return {"type": "image", "path": str(image)}
    if isinstance(image, bytes | bytearray):
        return {"type": "image", "bytes": base64.b64encode(image).decode()}
    if not hasattr(image, "tobytes"):
        raise ConfigurationError(
            f"an observation's image is a path, bytes or a PIL image, got {type(image).__name__}"
        )
    sent = {"type": "image", "mode": image.mode, "size": list(image.size)}
    sent["pixels"] = base64.b64encode(image.tobytes()).decode()
    if hasattr(image, "getexif"):
        # What the digest of an image has besides the pixels.
        if (palette := image.getpalette(None)) is not None:
            sent["palette"] = [image.palette.mode, palette]
        if isinstance(clear := image.info.get("transparency"), bytes):
            clear = {"bytes": base64.b64encode(clear).decode()}
        if clear is not None:
            sent["transparency"] = clear
        if (turned := image.getexif().get(ORIENTATION)) is not None:
            sent["orientation"] = turned
    return sent


def _decoded_image(part: dict[str, Any]) -> ContentPart:
    if "path" in part:
        return {"type": "image", "image": part["path"]}
    if "bytes" in part:
        return {"type": "image", "image": base64.b64decode(part["bytes"])}
    from PIL import Image

    pixels = base64.b64decode(part["pixels"])
    image = Image.frombytes(part["mode"], tuple(part["size"]), pixels)
    if "palette" in part:
        mode, palette = part["palette"]
        image.putpalette(palette, mode)
    if (clear := part.get("transparency")) is not None:
        if isinstance(clear, dict):
            clear = base64.b64decode(clear["bytes"])
        image.info["transparency"] = tuple(clear) if isinstance(clear, list) else clear
    if "orientation" in part:
        image.getexif()[ORIENTATION] = part["orientation"]
    return {"type": "image", "image": image}


def encode_error(error: BaseException) -> list[Any]:
    """Return an exception as JSON values: its class, its message and what is to blame."""
    return [*named(error), cause_of(error)]


def decode_error(data: list[Any]) -> Exception:
    """Return a `MisuseError` as itself and any other exception as `EnvFailedError`."""
    name, message, cause = data
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, GemError) and issubclass(kind, MisuseError):
        return kind(message)
    return EnvFailedError(f"{name}: {message}", cause if cause in CAUSES else "environment")


class Digest:
    """A running hash of what an episode has shown, by which a replay is compared with it."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=12)

    @property
    def value(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()

    def add_reset(self, observation: Observation) -> str:
        """Add the first observation; return the hash so far."""
        return self._add(canonical(observation))

    def add_step(self, step: Step) -> str:
        """Add a step, without its info; return the hash so far."""
        observation, reward, terminated, truncated, _ = step
        return self._add([canonical(observation), reward + 0.0, terminated, truncated])

    def _add(self, seen: Any) -> str:
        self._hash.update(json.dumps(seen).encode())
        return self.value
