"""Images in prompts: the chat format of a model that sees.

**Two forms of one prompt.** In a row, an image has as many placeholder tokens as the model gives
it. Trainers read this form, and GEM counts it. Engines expand placeholders themselves: they are
sent one for each image (`VisionChatFormat.collapse`).

**What is an image.** Only a part of an observation of type `image`. Text of the environment that
spells a placeholder stays text. A response ends before the first token that stands for an image,
so the policy cannot make one, either.

Text-only rollouts do not import this module. It needs Pillow (the extra `images`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from gem.core import ContentPart, Observation
from gem.errors import ConfigurationError, ContractError, RolloutError
from gem.fingerprint import ORIENTATION, canonical
from gem.plugins import extra
from gem.rollout.tokens import _OBSERVATION, _RESPONSE, ChatFormat, _cut, text_of
from gem.trajectory import Image

_PILLOW = "images need: pip install 'gem-core[images]'"
_ONE = (1,)
"""Content of a message with one image of one token."""


@dataclass(frozen=True)
class Processor:
    """What `VisionChatFormat` needs of a processor, from its parts: no videos, no torchvision."""

    tokenizer: Any
    image_processor: Any
    """Of transformers, such as `Qwen2VLImageProcessorPil`."""
    image_token_id: int
    video_token_id: int | None = None

    def save_pretrained(self, folder: str | Path) -> None:
        """Write both parts into the folder of a model."""
        self.tokenizer.save_pretrained(folder)
        self.image_processor.save_pretrained(folder)


class VisionChatFormat(ChatFormat):
    """A chat format whose observations may have images; only the context `chat` can show them."""

    shows_images = True

    def __init__(
        self,
        processor: Any,
        *,
        system_prompt: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        thinking: str = "keep",
    ) -> None:
        """Examine the processor and its template.

        Args:
            processor: A Hugging Face processor of Qwen2-VL's kind: its image processor tells how
                many patches an image has, and `merge_size` squared of them are one token.
            system_prompt: See `ChatFormat`.
            template_kwargs: See `ChatFormat`.
            thinking: See `ChatFormat`; `drop` is refused.

        Raises:
            ConfigurationError: See `ChatFormat`; or images cannot be shown turn by turn.
        """
        if thinking == "drop":
            raise ConfigurationError("thinking='drop' cannot show images; choose 'keep' or 'text'")
        images: Any = getattr(processor, "image_processor", None)
        if not can_show(processor):
            raise ConfigurationError(
                f"{type(processor).__name__} does not tell how many tokens an image has; expected "
                "a processor of Qwen2-VL, Qwen2.5-VL or Qwen3-VL, or one that works alike"
            )
        self._processor = images
        self._known: WeakValueDictionary[str, Image] = WeakValueDictionary()
        self._tokens = lru_cache(maxsize=256)(self._count)
        self.image_id = self._pad = int(processor.image_token_id)
        """The placeholder token."""
        kwargs = dict(template_kwargs or {})
        if own := getattr(processor, "chat_template", None):
            kwargs.setdefault("chat_template", own)
        super().__init__(
            processor.tokenizer,
            system_prompt=system_prompt,
            template_kwargs=kwargs,
            thinking=thinking,
        )
        if self._pad in self.encode_text(self.spell([self._pad])):
            raise ConfigurationError(
                f"the tokenizer makes an image of a text that spells {self.spell([self._pad])!r}: "
                "it must be a special token"
            )
        shown = self._encode(self._render_around(_ONE))
        if shown.count(self._pad) != 1:
            raise ConfigurationError("the chat template does not show an image once")
        two = [("user", _ONE), ("assistant", _RESPONSE), ("user", _ONE)]
        later = self._render([{"role": role, "content": content} for role, content in two])
        if _cut(later, _RESPONSE)[1] != self._render_around(_ONE, left=("", "")):
            raise ConfigurationError(
                "the chat template shows an image otherwise after another one (it counts them, "
                "for instance); it cannot be used turn by turn"
            )
        video = getattr(processor, "video_token_id", None)
        beside = set(shown) & self._special_ids - set(self.prompt("x"))
        self._markers = frozenset({self._pad, *beside, self._pad if video is None else int(video)})
        # A sampler that goes on after one samples what is cut off.
        self.stop_ids |= self._markers

    def accept(self, observation: Observation) -> tuple[Observation, tuple[Image, ...]]:
        """Return an observation with images as files, and these images.

        Equal images of episodes that are in memory share their bytes.

        Raises:
            ContractError: An image cannot be read.
        """
        if isinstance(observation, str):
            return observation, ()
        parts: list[Any] = []
        images = []
        part: Any
        for part in observation:
            if part["type"] == "image":
                image = self._image(part["image"])
                images.append(image)
                part = {"type": "image", "blake2b": image.digest, "image": image.data}
            parts.append(part)
        return parts, tuple(images)

    def usable(self, response_ids: Sequence[int]) -> int:
        """Return how many tokens come before the first one that stands for an image."""
        markers = self._markers
        return next((n for n, i in enumerate(response_ids) if i in markers), len(response_ids))

    def collapse(self, ids: Sequence[int], images: Sequence[Image]) -> list[int]:
        """Return a prompt or row as engines read it: with one placeholder for each image.

        Args:
            ids: With all tokens of each image.
            images: The images in it, in order.

        Raises:
            RolloutError: `ids` has other placeholders than `images` need.
        """
        ids, pad = list(ids), self._pad
        expected = sum(image.tokens for image in images)
        self._check(ids.count(pad), expected, images)
        collapsed: list[int] = []
        start = 0
        for image in images:
            place = ids.index(pad, start)
            collapsed += ids[start : place + 1]
            start = place + image.tokens
            self._check(ids[place:start].count(pad), image.tokens, [image])
        return collapsed + ids[start:]

    def expand(self, ids: Sequence[int], images: Sequence[Image]) -> list[int]:
        """Return the inverse of `collapse`.

        Raises:
            RolloutError: There is not one placeholder for each image.
        """
        return self._expand(list(ids), [image.tokens for image in images], images)

    def inputs(self, images: Sequence[Image], **kwargs: Any) -> Mapping[str, Any]:
        """Return what a model is given for the images of a row: pixel values and grids.

        Args:
            images: Of a row or several, in order.
            kwargs: Of the image processor, such as `return_tensors="pt"`.

        Raises:
            RolloutError: The bytes of an image are missing, or it has other tokens in the row.
        """
        made: Mapping[str, Any] = self._processor(
            images=[opened(each) for each in images], **kwargs
        )
        for image, (time, height, width) in zip(images, made["image_grid_thw"], strict=True):
            tokens = int(time * height * width) // self._processor.merge_size**2
            self._check(image.tokens, tokens, [image])
        return made

    def model_inputs(self, ids: Any, images: Sequence[Image]) -> dict[str, Any]:
        """Return what a model of transformers is given for images besides ids and mask.

        Args:
            ids: A tensor of torch, `[rows, length]`, with all tokens of each image.
            images: Of all rows, in order.

        Raises:
            RolloutError: See `inputs`.
        """
        # Without types of tokens, transformers silently takes the positions of a text.
        types = (ids == self.image_id).int()
        return {**self.inputs(images, return_tensors="pt"), "mm_token_type_ids": types}

    def spell(self, ids: Sequence[int]) -> str:
        """Return the text of prompts and bridges as the template renders it: images once."""
        pad = self._pad
        return super().spell(
            [i for n, i in enumerate(ids) if i != pad or not n or ids[n - 1] != pad]
        )

    def _content(self, observation: Observation) -> Any:
        """Return text; with images its texts and, for each image, its number of tokens."""
        if isinstance(observation, str) or all(part["type"] == "text" for part in observation):
            return text_of(observation)
        return tuple(map(self._piece_of, observation))

    def _piece_of(self, part: ContentPart) -> str | int:
        kind = part["type"]
        if kind == "text":
            return part["text"]
        if kind != "image":
            raise ConfigurationError(f"observation has a part of type {kind}, expected text, image")
        image = self._known.get(str(part.get("blake2b"))) or self._image(part["image"])
        return image.tokens

    def _around(self, text: Any, render: Callable[[Any], str]) -> array[int]:
        if isinstance(text, str):
            return super()._around(text, render)
        sizes = [each for each in text if isinstance(each, int)]
        texts = [each for each in text if isinstance(each, str)]
        if not any(map(self._spells_special, texts)):
            return array("i", self._expand(self._tokenize(render(text)).tolist(), sizes))
        after = render(tuple(_OBSERVATION if isinstance(each, str) else each for each in text))
        ids: list[int] = []
        for each in texts:
            before, after = _cut(after, _OBSERVATION)
            ids += [*self._encode(before), *self.encode_text(each)]
        return array("i", self._expand([*ids, *self._encode(after)], sizes))

    def _render(self, messages: Sequence[Any]) -> str:
        return super()._render([{**each, "content": _parts(each["content"])} for each in messages])

    def _expand(
        self, ids: list[int], sizes: Sequence[int], images: Sequence[Image] = ()
    ) -> list[int]:
        self._check(ids.count(self._pad), len(sizes), images)
        expanded: list[int] = []
        start = 0
        for tokens in sizes:
            place = ids.index(self._pad, start)
            expanded += ids[start:place]
            expanded += [self._pad] * tokens
            start = place + 1
        return expanded + ids[start:]

    def _check(self, found: int, expected: int, images: Sequence[Image]) -> None:
        if found != expected:
            which = f" for {', '.join(image.digest for image in images)}" if images else ""
            raise RolloutError(
                f"{found} placeholder tokens of images where {expected} were expected{which}: an "
                "image is missing, or expanded twice or not at all"
            )

    def _image(self, image: Any) -> Image:
        """Return an image of an observation, the same object as long as one is in use."""
        try:
            image = Path(image).read_bytes() if isinstance(image, str | Path) else image
            said: Any = canonical([{"type": "image", "image": image}])
            digest = str(said[0]["blake2b"])
            known = self._known.get(digest)
            if known is None:
                data, width, height = _file(image)
                known = self._known[digest] = Image(digest, self._tokens(width, height), data)
            return known
        except (OSError, ValueError) as error:
            raise ContractError(f"cannot read an image of an observation: {error}") from error

    def _count(self, width: int, height: int) -> int:
        patches = self._processor.get_number_of_image_patches(height, width, {})
        return int(patches) // int(self._processor.merge_size) ** 2


def can_show(processor: Any) -> bool:
    """Return whether a processor, or None, tells what `VisionChatFormat` needs."""
    images = getattr(processor, "image_processor", None)
    told = hasattr(images, "get_number_of_image_patches") and hasattr(images, "merge_size")
    return told and hasattr(processor, "image_token_id")


def opened(image: Image) -> Any:
    """Return an image as one of Pillow, for an engine or a processor.

    Raises:
        RolloutError: Its bytes are missing.
    """
    if not image.data:
        raise RolloutError(f"the bytes of the image {image.digest} are missing: it comes from JSON")
    return extra("PIL.Image", _PILLOW).open(BytesIO(image.data)).convert("RGB")


def _file(image: Any) -> tuple[bytes, int, int]:
    """Return an image as a file that every reader shows alike, its width and its height."""
    pillow = extra("PIL.Image", _PILLOW)
    read = pillow.open(BytesIO(image)) if isinstance(image, bytes | bytearray) else image
    read.load()
    plain = read.mode in ("RGB", "L", "P", "1") and "transparency" not in read.info
    if plain and read is not image and read.getexif().get(ORIENTATION, 1) == 1:
        return bytes(image), *read.size
    turned = extra("PIL.ImageOps", _PILLOW).exif_transpose(read).convert("RGBA")
    white = pillow.new("RGBA", turned.size, "white")
    out = BytesIO()
    # Level 1: an episode waits for it.
    pillow.alpha_composite(white, turned).convert("RGB").save(out, "PNG", compress_level=1)
    return out.getvalue(), *turned.size


def _parts(content: Any) -> Any:
    """Return the content of a message as chat templates take it."""
    if not isinstance(content, tuple):
        return content
    return [
        {"type": "text", "text": each} if isinstance(each, str) else {"type": "image"}
        for each in content
    ]
