"""Modalities of a game: its board as text, as a picture, or both; who draws the pictures."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Protocol

from gem.core import ContentPart
from gem.errors import ConfigurationError, MissingExtraError
from gem.parameters import choice

MODALITIES = ("text", "image", "both")
GROUP = "gem.pictures"
"""Entry-point group of painters; a name is that of a game's class."""


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
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    name = type(game).__name__
    if not found:
        raise MissingExtraError(
            f"{name}: modality={modality!r} needs: pip install 'gem-core[images]'"
        )
    for each in type(game).__mro__:
        if each.__name__ in found:
            drawing: Painter = found[each.__name__].load()
            return drawing
    raise ConfigurationError(
        f"{name}: modality={modality!r} needs a painter, an entry point {name!r} of {GROUP!r}; "
        f"there are {', '.join(sorted(found))}"
    )


def parts(before: str, picture: bytes, after: str = "") -> list[ContentPart]:
    """Return an observation: a text, a PNG file, a text. Empty texts are left out."""
    said: list[ContentPart] = [{"type": "text", "text": before}] if before else []
    said.append({"type": "image", "image": picture})
    return [*said, {"type": "text", "text": after}] if after else said
