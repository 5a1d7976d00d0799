"""Images in OpenRLHF: what its engine is sent, what its models are given, and that both are GEM's.

- `Eyes`: an engine that is shown images, and does not go on with what it saw by older weights.
- `model_inputs`, `check_inputs`: pixels and grids of a row, and whether OpenRLHF still has them.
- `check_unpacked`: flags with which it would train on images as if they were text.
- `blank`, `check_ranks`: several ranks need an image in every row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gem.errors import ConfigurationError, RolloutError
from gem.rollout import Request
from gem.specs import imported
from gem.trajectory import Image

_WEIGHTS = "update_weight"
"""How the methods of vLLM's workers that load a weight of OpenRLHF's begin."""
_GRID, _PIXELS = "image_grid_thw", "pixel_values"
_SIDE = 56
"""Pixels of a blank image: four tokens or fewer."""


class Eyes:
    """OpenRLHF's vLLM actor, shown images.

    vLLM keeps what its vision encoder made of an image, for the next prompt that shows the same.
    OpenRLHF does not tell it that the encoder has new weights. This does, before the first prompt
    that follows an update.
    """

    def __init__(self, engine: Any) -> None:
        """Watch the weights that the engine is sent.

        Args:
            engine: OpenRLHF's actor, in its own process.

        Raises:
            ConfigurationError: vLLM is too old to forget what it saw.
        """
        self.engine = engine
        self._stale = False
        self._lock = asyncio.Lock()
        if not hasattr(engine.llm, "reset_encoder_cache"):
            raise ConfigurationError(
                "this vLLM cannot be told to forget images that it saw by older weights "
                "(AsyncLLM.reset_encoder_cache); install a newer one"
            )
        original = engine.llm.collective_rpc

        async def collective_rpc(method: Any, *args: Any, **kwargs: Any) -> Any:
            if str(method).startswith(_WEIGHTS):
                self._stale = True
            return await original(method, *args, **kwargs)

        engine.llm.collective_rpc = collective_rpc

    async def generate(self, request: Request, chat: Any, params: Any) -> Any:
        """Return vLLM's answer to a prompt with images.

        Args:
            request: With images.
            chat: A `VisionChatFormat`.
            params: vLLM's.
        """
        async with self._lock:
            if self._stale:
                # Weights that arrive meanwhile make it stale again.
                self._stale = False
                await self.engine.llm.reset_encoder_cache()
        opened = imported("gem.rollout.vision:opened")
        shown = {"image": [opened(image) for image in request.images]}
        sent = chat.collapse(request.prompt_ids, request.images)
        return await self.engine.generate(sent, params, multi_modal_data=shown)


def model_inputs(chat: Any, images: Sequence[Image]) -> dict[str, Any] | None:
    """Return what OpenRLHF's models are given for the images of a row; None without images.

    Args:
        chat: A chat format; a `VisionChatFormat` if there are images.
        images: In order.

    Raises:
        RolloutError: See `VisionChatFormat.inputs`.
    """
    return dict(chat.inputs(images, return_tensors="pt")) if images else None


def check_inputs(given: Mapping[str, Any] | None, images: Sequence[Image], name: str) -> None:
    """Make sure that a row of OpenRLHF's has the pixels of its images.

    Args:
        given: What OpenRLHF keeps for the row (`mm_train_inputs`).
        images: The images that the policy was shown in it, in order.
        name: What the message calls the row.

    Raises:
        RolloutError: Images are missing, of another size, or too many.
    """
    if not given and not images:
        return
    grids = np.asarray(given[_GRID] if given else [], np.int64).reshape(-1, 3)
    patches = grids.prod(1)
    tokens = np.asarray([image.tokens for image in images], np.int64)
    fits = len(patches) == len(tokens) and given is not None
    if fits and given is not None:
        # As many patches are a token in every image.
        fits = bool((patches * tokens[0] == tokens * patches[0]).all())
        fits = fits and len(given[_PIXELS]) == patches.sum()
    if not fits:
        raise RolloutError(
            f"{name}: OpenRLHF has images of {patches.tolist()} patches, but the policy was shown "
            f"images of {tokens.tolist()} tokens: an image was dropped, or is another one"
        )


def check_unpacked(args: Any) -> None:
    """Refuse flags with which OpenRLHF would train on images as if they were text.

    Args:
        args: OpenRLHF's parsed command line.

    Raises:
        ConfigurationError: The message names the flag.
    """
    refused = (
        (
            "--ds.packing_samples",
            args.ds.packing_samples,
            "with packed rows OpenRLHF gives images the positions of a text",
        ),
        (
            "--train.partial_rollout_enable",
            args.train.partial_rollout_enable,
            "a request that goes on with new weights has seen its images by the old ones",
        ),
    )
    for name, is_set, why in refused:
        if is_set:
            raise ConfigurationError(f"{name} does not work with images: {why}; leave it out")


def blank(chat: Any) -> tuple[list[int], dict[str, Any]]:
    """Return a prompt that shows a white image, and what OpenRLHF's models are given for it.

    Args:
        chat: A `VisionChatFormat`.
    """
    picture = imported("PIL.Image:new")("RGB", (_SIDE, _SIDE), "white")
    observation, images = chat.accept([{"type": "image", "image": picture}])
    return list(chat.prompt(observation)), dict(chat.inputs(images, return_tensors="pt"))


def check_ranks(args: Any, shown: Sequence[bool]) -> None:
    """Refuse rows without images beside rows with images, if ranks add up their gradients.

    Args:
        args: OpenRLHF's parsed command line.
        shown: Of each row of a batch, whether it has images.

    Raises:
        ConfigurationError: The message says what to choose instead.
    """
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node // args.ds.tensor_parallel_size
    if ranks > 1 and any(shown) and not all(shown) and not args.actor.freeze_visual_encoder:
        raise ConfigurationError(
            f"--actor.num_gpus_per_node: {len(shown) - sum(shown)} of {len(shown)} rows have no "
            f"images; with {ranks} ranks that add up gradients of the vision encoder, such a run "
            "died in its first update: let all environments show images, or set "
            "--actor.freeze_visual_encoder, or train on one GPU"
        )
