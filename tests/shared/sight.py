"""What a vision-language model makes of token ids and pictures, computed by transformers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

MERGED = 4
"""Patches of 14x14 pixels that are one token."""


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Return a picture of random pixels."""
    pixels = torch.randint(
        0, 256, (height, width, 3), generator=torch.Generator().manual_seed(seed)
    )
    return Image.fromarray(pixels.to(torch.uint8).numpy())


def png(image: Image.Image) -> bytes:
    """Return the bytes of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@dataclass
class Sight:
    """A model, its tokenizer, and its image processor without torchvision."""

    model: Any
    tokenizer: Any
    processor: Any
    pad: int
    """Id of the token that stands for a picture."""

    @classmethod
    def of(cls, folder: Path) -> Sight:
        """Load the model of a folder in fp32."""
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return cls(
            AutoModelForImageTextToText.from_pretrained(folder, dtype="float32").eval(),
            tokenizer,
            Qwen2VLImageProcessorPil.from_pretrained(folder),
            tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        )

    def tokens(self, image: Image.Image) -> int:
        """Return how many tokens a picture has."""
        grid = self.processor([image], return_tensors="pt")["image_grid_thw"]
        return int(grid.prod()) // MERGED

    def prompt(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return a conversation up to the reply, with one placeholder for each picture."""
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def expanded(self, ids: Sequence[int], images: Sequence[Image.Image]) -> list[int]:
        """Return ids with as many placeholders as each picture has tokens."""
        pictures, found = iter(images), []
        for token in ids:
            found += [token] * (self.tokens(next(pictures)) if token == self.pad else 1)
        assert next(pictures, None) is None, "more pictures than placeholders"
        return found

    def inputs(self, row: Sequence[int], images: Sequence[Image.Image]) -> dict[str, Any]:
        """Return what the model takes for one row of expanded ids."""
        ids = torch.tensor([row])
        # Without the types the model silently takes the positions of a text.
        types = (ids == self.pad).int()
        seen = dict(self.processor(list(images), return_tensors="pt")) if images else {}
        mask = torch.ones_like(ids)
        return {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": types, **seen}

    def logprobs(
        self, prompt: Sequence[int], reply: Sequence[int], images: Sequence[Image.Image]
    ) -> list[float]:
        """Return the log-probability of each token of a reply to a prompt of collapsed ids."""
        row = [*self.expanded(prompt, images), *reply]
        with torch.no_grad():
            logits = self.model(**self.inputs(row, images)).logits[0]
        found = logits[-len(reply) - 1 : -1].log_softmax(-1)
        return found.gather(1, torch.tensor([reply]).T)[:, 0].tolist()
