"""Pictures, and an engine that reads them, for tests of rollouts with images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any


def png(color: Any = (200, 10, 10), size: tuple[int, int] = (84, 84), mode: str = "RGB") -> bytes:
    """The bytes of a picture of one colour."""
    from PIL import Image

    out = io.BytesIO()
    Image.new(mode, size, color).save(out, "PNG")
    return out.getvalue()


def picture(data: bytes) -> Any:
    """The same as an image of Pillow."""
    from PIL import Image

    return Image.open(io.BytesIO(data))


def read_by_engine(processor: Any, ids: Sequence[int], files: Sequence[bytes]) -> list[int]:
    """What an engine makes of ids: it expands as many placeholders as it has images."""
    read: list[int] = []
    left = list(files)
    for i in ids:
        n = 1
        if left and i == processor.image_token_id:
            [grid] = processor.image_processor(images=[picture(left.pop(0))])["image_grid_thw"]
            n = int(grid.prod()) // processor.image_processor.merge_size**2
        read += [i] * n
    return read
