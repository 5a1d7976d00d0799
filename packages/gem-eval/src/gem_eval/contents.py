"""Observations as a conversation with a model has them: text, or text and images."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from gem.core import Observation
from gem.errors import ConfigurationError, ContractError
from gem.tasks import Task
from gem_train.images import OTHER, kind_of

Content: TypeAlias = str | list[dict[str, Any]]
"""What a message of OpenAI's API says: a text, or parts of the types `text` and `image_url`."""


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
        kind = kind_of(image)
    except (OSError, ValueError, AttributeError) as error:
        raise ContractError(f"an image of an observation cannot be sent: {error}") from error
    if kind == OTHER:
        raise ContractError(
            "an image of an observation cannot be sent: it is no PNG, JPEG, GIF or WebP file"
        )
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
