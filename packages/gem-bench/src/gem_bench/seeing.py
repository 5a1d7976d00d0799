"""Models that see, in the reference trainer: how they are loaded, and how they sample.

A model sees if its `config.json` has a `vision_config`.
transformers reads its images with torchvision where that is installed, else with Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
)

# transformers itself hides this name where torchvision is missing; the class can do without.
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from gem.errors import ConfigurationError
from gem.rollout import ChatFormat, Request
from gem.rollout.vision import Processor
from gem.trajectory import Image
from gem_bench.models import load_pretrained
from gem_bench.sampler import CachedSampler


def load_policy(model: str, name: str = "policy.model", dtype: torch.dtype = torch.float32) -> Any:
    """Return a causal language model, or one that sees, too.

    Args:
        model: Folder or hub name.
        name: Of the setting, for messages.
        dtype: Of the weights.

    Raises:
        ConfigurationError: It cannot be loaded.
    """
    sees = _sees(load_pretrained(AutoConfig, model, name))
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    return load_pretrained(kind, model, name, dtype=dtype)


def load_tokenizer(model: str, name: str = "policy.model") -> Any:
    """Return the tokenizer of a model; of one that sees a `Processor`.

    Args:
        model: Folder or hub name.
        name: Of the setting, for messages.

    Raises:
        ConfigurationError: It cannot be loaded.
    """
    tokenizer = load_pretrained(AutoTokenizer, model, name)
    config = load_pretrained(AutoConfig, model, name)
    if not _sees(config):
        return tokenizer
    images = load_pretrained(AutoImageProcessor, model, name)
    try:
        token = config.image_token_id
    except AttributeError as error:
        raise ConfigurationError(
            f"{name}: {model!r} sees, but has no token that stands for an image "
            "(image_token_id); supported are models of Qwen2-VL's kind"
        ) from error
    return Processor(tokenizer, images, token, getattr(config, "video_token_id", None))


def _sees(config: Any) -> bool:
    return getattr(config, "vision_config", None) is not None


class SeeingSampler(CachedSampler):
    """Samples conversations with images: their positions have three coordinates.

    The model says which (`get_rope_index`), for the whole prompt of a turn. Sampled tokens go on
    from the largest one. Only images that the cache has not seen are looked at. A prompt that has
    other placeholders than its images need is a `RolloutError`.
    """

    _next: Tensor
    """Position of the next token of each row, `[rows]`."""

    def __init__(self, *arguments: Any) -> None:
        """See `CachedSampler`."""
        super().__init__(*arguments)
        self._grids: dict[str, Tensor] = {}

    def _feed(self, requests: Sequence[Request]) -> Tensor:
        pad = self.chat.image_id
        places, images = [], []
        for request, seen in zip(requests, self._seen, strict=True):
            self.chat.collapse(request.prompt_ids, request.images)
            places.append(self._places(request))
            first = request.prompt_ids[:seen].count(pad)
            for image in request.images:
                if first < 1:
                    images.append(image)
                first -= image.tokens
        self._next = torch.stack([each.max() + 1 for each in places])
        new = [p[:, n:] for p, n in zip(places, self._seen, strict=True)]
        width = max(each.shape[1] for each in new)
        positions = torch.stack(
            [torch.nn.functional.pad(each, (width - each.shape[1], 0)) for each in new], 1
        )
        ids, mask = self._blocks(requests)
        shown = self.chat.inputs(images, return_tensors="pt") if images else {}
        inputs = {name: value.to(self.device) for name, value in shown.items()}
        return self._forward(ids, mask, position_ids=positions, **inputs)

    def _places(self, request: Request) -> Tensor:
        """Return the positions of a prompt, `[3, length]`."""
        ids = torch.tensor([request.prompt_ids], device=self.device)
        if not request.images:
            return torch.arange(ids.shape[1], device=self.device).expand(3, -1)
        # An adapter puts the model into another one.
        model = next(each for each in self.model.modules() if hasattr(each, "get_rope_index"))
        positions: Tensor = model.get_rope_index(
            ids,
            mm_token_type_ids=(ids == self.chat.image_id).int(),
            image_grid_thw=torch.cat([self._grid(image) for image in request.images]),
            attention_mask=torch.ones_like(ids),
        )[0]
        return positions[:, 0]

    def _grid(self, image: Image) -> Tensor:
        """Return how many patches an image has, `[1, 3]`; it is looked at once."""
        if image.digest not in self._grids:
            made = self.chat.inputs([image], return_tensors="pt")["image_grid_thw"]
            self._grids[image.digest] = made.to(self.device)
        return self._grids[image.digest]

    def _go_on(self, token: Tensor, alive: Tensor) -> Tensor:
        positions = self._next[None, :, None].expand(3, -1, -1)
        self._next = self._next + alive
        return self._forward(token[:, None], alive[:, None].long(), position_ids=positions)


def sampler(model: Any, chat: ChatFormat, *arguments: Any) -> CachedSampler:
    """Return the sampler that fits a chat format; see `CachedSampler`."""
    kind = SeeingSampler if chat.shows_images else CachedSampler
    return kind(model, chat, *arguments)
