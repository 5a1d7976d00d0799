"""Real processors of models that see, made from a tokenizer; and an engine that reads images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

MARKERS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = (
    "{%- for m in messages %}{%- if loop.first and m.role != 'system' %}"
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.content is string %}{{- m.content }}{%- else %}{%- for part in m.content %}"
    "{%- if part.type == 'image' %}{%- if number_images %}"
    "{%- set seen.n = seen.n + 1 %}{{- 'Picture ' ~ seen.n ~ ': ' }}{%- endif %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
TEMPLATE = "{%- set seen = namespace(n=0) %}" + TEMPLATE
PATCH = {"Qwen2_5_VLProcessor": 14, "Qwen3VLProcessor": 16}
"""Pixels of a patch by processor; two by two patches are a token."""


def processor(kind: str, tokenizer: Any, most_tokens: int = 16) -> Any:
    """A real processor, whose videos alone are missing: they would need torchvision.

    Args:
        kind: Its class, a key of `PATCH`.
        tokenizer: Knows `MARKERS` as special tokens.
        most_tokens: Of an image; larger ones are scaled.
    """
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class NoVideo(transformers.BaseVideoProcessor):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

    area = (2 * PATCH[kind]) ** 2
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCH[kind], min_pixels=area, max_pixels=most_tokens * area
    )
    made = getattr(transformers, kind)
    return made(images, tokenizer, NoVideo(), chat_template=TEMPLATE)


def seeing_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer with `MARKERS` as special tokens."""
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(each, special=True) for each in MARKERS], special_tokens=True)
    return tokenizer


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
