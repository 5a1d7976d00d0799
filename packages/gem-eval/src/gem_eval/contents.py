"""Observations as a conversation with a model has them: text, or text and images."""

from __future__ import annotations

from typing import Any, TypeAlias

from gem.core import Observation
from gem.errors import ConfigurationError, ContractError
from gem.pictures import data_url, image_file, image_kind
from gem.tasks import Task

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
    file = image_file(image)
    if image_kind(file) is None:
        raise ContractError(
            "an image of an observation cannot be sent: it is no PNG, JPEG, GIF or WebP file"
        )
    return data_url(file)
