"""Modalities of a game: its board as text, as a picture, or both; who draws the pictures.

Also images of observations as files: `image_file`, `image_kind`, `data_url`.
"""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

from gem.core import ContentPart
from gem.errors import ConfigurationError, ContractError, MissingExtraError
from gem.parameters import choice
from gem.plugins import entry_point, installed

MODALITIES = ("text", "image", "both")
GROUP = "gem.pictures"
"""Entry-point group of painters; a name is that of a game's class."""
_KINDS = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
"""First bytes of a file, and what it is."""


class Painter(Protocol):
    """Draws the boards of one game."""

    how_to_read: str
    """Replaces what the rules say about the text of the board; empty if they say nothing."""

    def __call__(self, game: Any) -> bytes:
        """Return the current board as a PNG file."""


def painter(game: object, modality: str) -> Painter | None:
    """Return what draws the boards of a game; None if it shows them as text.

    Args:
        game: The game. A subclass without a painter of its own has that of its base class.
        modality: One of `MODALITIES`.

    Raises:
        ConfigurationError: There is no such modality, or nobody draws this game.
        MissingExtraError: No painter is installed at all.
    """
    if choice("modality", modality, MODALITIES) == "text":
        return None
    name, drawn = type(game).__name__, installed(GROUP)
    if not drawn:
        raise MissingExtraError(
            f"{name}: modality={modality!r} needs: pip install 'gem-core[images]'"
        )
    for each in type(game).__mro__:
        if entry := entry_point(GROUP, each.__name__, "painter"):
            drawing: Painter = entry.load()
            return drawing
    raise ConfigurationError(
        f"{name}: modality={modality!r} needs a painter, an entry point {name!r} of {GROUP!r}; "
        f"there are {', '.join(drawn)}"
    )


def parts(before: str, picture: bytes, after: str = "") -> list[ContentPart]:
    """Return an observation: a text, a PNG file, a text. Empty texts are left out."""
    said: list[ContentPart] = [{"type": "text", "text": before}] if before else []
    said.append({"type": "image", "image": picture})
    return [*said, {"type": "text", "text": after}] if after else said


def image_file(image: Any) -> bytes:
    """Return an image of an observation as a file; one of Pillow becomes a PNG file.

    Raises:
        ContractError: It is no path, bytes or image of Pillow, or cannot be read or written.
    """
    try:
        if isinstance(image, str | Path):
            return Path(image).read_bytes()
        if hasattr(image, "save"):
            file = BytesIO()
            image.save(file, "PNG")
            return file.getvalue()
    except (OSError, ValueError) as error:
        what = f"an image of mode {image.mode}" if hasattr(image, "mode") else "an image"
        raise ContractError(f"{what} cannot be sent: {error}") from error
    if not isinstance(image, bytes | bytearray):
        raise ContractError(f"an image is a path, bytes or a PIL image, got {type(image).__name__}")
    return bytes(image)


def image_kind(file: bytes) -> str | None:
    """Return `png`, `jpeg`, `gif` or `webp`, from a file's first bytes; None for others."""
    return next((kind for start, kind in _KINDS.items() if file.startswith(start)), None)


def data_url(file: bytes) -> str:
    """Return a file as a `data:` address."""
    kind = image_kind(file)
    media = "application/octet-stream" if kind is None else f"image/{kind}"
    return f"data:{media};base64,{b64encode(file).decode()}"
