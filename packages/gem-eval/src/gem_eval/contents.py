"""Observations as a conversation with a model has them: text, or text and images."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from gem.core import Observation
from gem.errors import ConfigurationError, ContractError
from gem.tasks import Task

Content: TypeAlias = str | list[dict[str, Any]]
"""What a message of OpenAI's API says: a text, or parts of the types `text` and `image_url`."""

_KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
"""First bytes of a file, and what it is."""


def content_of(observation: Observation) -> Content:
    """Return an observation as a server is sent it; images are inside, as `data:` addresses.

    Raises:
        ContractError: An image is no PNG, JPEG, GIF or WebP file, or cannot be read.
    """
    if isinstance(observation, str) or all(part["type"] == "text" for part in observation):
        return _text(observation)
    return [
        {"type": "text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "image_url", "image_url": {"url": _address(part.get("image"))}}
        for part in observation
    ]


def text_of(observation: Observation, task: Task) -> str:
    """Return an observation that has to be text.

    Raises:
        ConfigurationError: It has images.
    """
    if not isinstance(observation, str) and any(part["type"] != "text" for part in observation):
        raise ConfigurationError(f"{task.env_id} shows images; only text is possible here")
    return _text(observation)


def _text(observation: Observation) -> str:
    if isinstance(observation, str):
        return observation
    return "".join(part.get("text", "") for part in observation)


def _address(image: Any) -> str:
    try:
        if isinstance(image, str | Path):
            image = Path(image).read_bytes()
        elif hasattr(image, "save"):  # an image of Pillow
            file = BytesIO()
            image.save(file, "PNG")
            image = file.getvalue()
        kind = next(kind for first, kind in _KINDS.items() if image.startswith(first))
    except (OSError, ValueError, AttributeError, TypeError, StopIteration) as error:
        raise ContractError(
            "an image of an observation cannot be sent: it must be a PNG, JPEG, GIF or WebP file, "
            f"its path, or an image of Pillow ({type(error).__name__}: {error})"
        ) from error
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
