"""Messages between an executor and its workers: JSON arrays of requests one way, of answers back.

A request is `[name, number of the environment, ...]`, an answer `[number, name, ...]`; `host` says
which there are. Nothing is pickled: a worker can send text, numbers and images, and no code.
"""

from __future__ import annotations

import base64
import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gem import errors
from gem.blame import cause_of
from gem.contract import plain
from gem.core import ContentPart, Info, Observation, Step
from gem.errors import ConfigurationError, GemError, MisuseError
from gem.executors.held import EnvFailedError
from gem.fingerprint import canonical

MOST_BYTES = 64 * 2**20
"""Most bytes of a request or an answer, such as an action or an observation with its info."""
FRAME_BYTES = 1 << 20
"""Size that frames of several requests or answers do not exceed."""


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
    return value if value is None or isinstance(value, bool | int | float | str) else _NOTHING


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
    pixels = base64.b64encode(image.tobytes()).decode()
    return {"type": "image", "mode": image.mode, "size": list(image.size), "pixels": pixels}


def _decoded_image(part: dict[str, Any]) -> ContentPart:
    if "path" in part:
        return {"type": "image", "image": part["path"]}
    if "bytes" in part:
        return {"type": "image", "image": base64.b64decode(part["bytes"])}
    from PIL import Image

    pixels = base64.b64decode(part["pixels"])
    return {"type": "image", "image": Image.frombytes(part["mode"], tuple(part["size"]), pixels)}


def encode_error(error: BaseException) -> list[Any]:
    """Return an exception as JSON values: its class, its message and what is to blame."""
    return [type(error).__name__, str(error), cause_of(error)]


def decode_error(data: list[Any]) -> Exception:
    """Return a `MisuseError` as itself and any other exception as `EnvFailedError`."""
    name, message, cause = data
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, GemError) and issubclass(kind, MisuseError):
        return kind(message)
    return EnvFailedError(f"{name}: {message}", cause or "environment")


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
