"""Makes processors of models that see, from a tokenizer and no files: for tests and examples.

They are those of transformers: images become the pixel values and tokens of Qwen2.5-VL or Qwen3-VL.
Only videos are left out, whose processors need torchvision.
"""

from __future__ import annotations

from typing import Any

PATCHES = {"Qwen2_5_VLProcessor": 14, "Qwen3VLProcessor": 16}
"""Pixels of the side of a patch, by the processor's class; two by two patches are a token."""
MARKERS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = (
    "{%- for m in messages %}{%- if loop.first and m.role != 'system' %}"
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.content is string %}{{- m.content }}{%- else %}{%- for part in m.content %}"
    "{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""ChatML whose user messages may have images."""


def make(tokenizer: Any, kind: str = "Qwen2_5_VLProcessor", most_tokens: int = 256) -> Any:
    """Return a processor.

    Args:
        tokenizer: With the tokens of ChatML; it gets those of `MARKERS` that it lacks.
        kind: Key of `PATCHES`.
        most_tokens: Of an image; a larger one is scaled.
    """
    import transformers
    from tokenizers import AddedToken
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class NoVideo(transformers.BaseVideoProcessor):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

    missing = [each for each in MARKERS if each not in tokenizer.get_vocab()]
    tokenizer.add_tokens([AddedToken(each, special=True) for each in missing], special_tokens=True)
    side = 2 * PATCHES[kind]
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCHES[kind], min_pixels=side**2, max_pixels=most_tokens * side**2
    )
    processor: Any = getattr(transformers, kind)
    return processor(images, tokenizer, NoVideo(), chat_template=TEMPLATE)
