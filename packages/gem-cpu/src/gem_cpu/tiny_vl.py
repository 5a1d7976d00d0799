"""Makes the tiny model that sees: a Qwen2.5-VL of 0.36 million random weights.

    python -m gem_cpu.tiny_vl [--out DIR]

It has learned nothing. It is there to run the code of vision-language models on a CPU: the same
architecture, special tokens, chat template and image processor as Qwen2.5-VL, in a Hugging Face
folder that transformers and vLLM load. 28x28 pixels are one token, as there. Its weights are larger
than usual at the start, so that a changed pixel or position changes log-probabilities by more than
rounding does.

The model is made without torchvision. What loads its image processor needs torchvision: the extra
`vision`, and `GEM_CPU=1` where torchvision is built for CUDA (`torchvision_plugin.py`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gem.json_lines import read_json
from gem.rollout.vision import Processor
from gem_cpu import cloning
from gem_cpu.cloning import (
    EOS,
    PAD,
    cache_folder,
    code_hash,
    fingerprint,
    make_once,
    save,
    train_tokenizer,
)

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if loop.first and message.role != 'system' %}"
    "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' or 'video' in part %}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""ChatML in the layout of Qwen2.5-VL, with its system prompt."""

HEAD = 32
"""Width of a head; vLLM's attention for CPUs has no kernel for smaller ones."""
IMAGE_TOKEN = "<|image_pad|>"
"""Stands for a picture: once in what an engine is sent, once per 28x28 pixels in what it sees."""
_SPECIAL = (
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
    *("<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *(IMAGE_TOKEN, "<|video_pad|>"),
)
"""Those of Qwen2.5-VL besides the three of ChatML."""

_TEXTS = [
    "system\nYou are a helpful assistant.\nuser\nassistant\n",
    "You see the board as a picture. Every cell is a square. Look at the picture and answer.",
    "What colour is the shape? Which side is the circle on, left or right, top or bottom?",
    "How many red triangles are there? Which colour has the largest circle?",
    "What time does the clock show? How large is the angle in degrees?",
    "What is the value of bar C? How many edges has the shortest way from A to F?",
    "Which colour belongs into the cell? Which shape is the first one, turned?",
    "red green blue yellow orange purple black white grey circle square triangle star",
    "Push all boxes onto the targets. The player, a wall, the floor, a box, a target.",
    "Move the empty tile. Slide the tiles. Merge equal tiles until one of them is 2048.",
    "Reveal a cell or place a flag. Fill every row, column and block with the digits 1 to 9.",
    "Move the top disk from one peg to another. Find the way out of the maze to the exit.",
    "Put your mark into an empty cell. Drop a piece into a column. The other player moved.",
    "Possible actions are up, down, left and right. Enter your next action within \\boxed{}.",
    "Enter your answer. Enter your first action. That is wrong. That is right. You won. You lost.",
    "\\boxed{up} \\boxed{down} \\boxed{left} \\boxed{right} \\boxed{red} \\boxed{12} \\boxed{3 4}",
    "Your action was not valid, the board has not changed. The task is solved. Please try again.",
]
"""What the tokenizer is trained on: the words of games and visual tasks."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what the model becomes."""

    seed: int = 0
    vocabulary: int = 512
    hidden: int = 64
    layers: int = 2
    """Of the language model and of the vision encoder alike."""
    heads: int = 2
    """Of both, each of at least `HEAD`."""
    max_positions: int = 8192
    min_pixels: int = 56 * 56
    """Smaller pictures are enlarged, as by Qwen2.5-VL."""
    max_pixels: int = 448 * 448
    """Larger pictures are reduced: a picture has at most 256 tokens."""
    spread: float = 0.1
    """Standard deviation of the weights."""


def ensure(recipe: Recipe | None = None, *, cache: str | Path | None = None) -> Path:
    """Return the folder of the model, making it (some seconds) if it is not in the cache.

    The folder's name carries a hash of recipe, code and library versions. On another kind of
    processor the same weights may differ in their last bits.

    Args:
        recipe: What to make; by default the standard model.
        cache: Cache folder, see `gem_cpu.cloning.cache_folder`.
    """
    recipe = recipe or Recipe()
    versions = {package: version(package) for package in ("torch", "tokenizers", "transformers")}
    code = [code_hash(path) for path in (__file__, cloning.__file__)]
    key = fingerprint({"recipe": asdict(recipe), "code": code, "versions": versions})

    def write(folder: Path) -> None:
        tokenizer = new_tokenizer(recipe)
        model = new_model(recipe, tokenizer)
        save(model, tokenizer, folder)
        add_sight(folder, recipe)
        about = {"recipe": asdict(recipe), "versions": versions}
        _write(folder / "gem_model.json", about | {"parameters": model.num_parameters()})

    return make_once(cache_folder(cache) / f"tiny-vl-{key}", write)


def new_tokenizer(recipe: Recipe, texts: Sequence[str] = tuple(_TEXTS)) -> Any:
    """Train the tokenizer; its last ids are the special tokens that ChatML does not have."""
    words = recipe.vocabulary - len(_SPECIAL)
    tokenizer = train_tokenizer(list(texts), words, recipe.max_positions)
    # Qwen2.5-VL names the beginning of a message, too, which ChatML's tokenizer has already.
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *_SPECIAL]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def processor(recipe: Recipe, tokenizer: Any) -> Processor:
    """Return what a chat format of the model is made from; torchvision is not needed."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings = image_settings(recipe)
    images = Qwen2VLImageProcessorPil(**{k: v for k, v in settings.items() if "_type" not in k})
    ids = tokenizer.convert_tokens_to_ids
    return Processor(tokenizer, images, ids(IMAGE_TOKEN), ids("<|video_pad|>"))


def add_sight(folder: Path, recipe: Recipe) -> None:
    """Add to a saved model what transformers needs to show it pictures."""
    # Version 4 of transformers does not read the list by its newer name.
    settings = read_json(folder / "tokenizer_config.json", dict[str, Any])
    settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    _write(folder / "tokenizer_config.json", settings)
    _write(folder / "preprocessor_config.json", image_settings(recipe))


def new_model(recipe: Recipe, tokenizer: Any) -> Any:
    """Return the randomly initialised model in fp32."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    half = recipe.hidden // recipe.heads // 2
    section = [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8]
    ids = tokenizer.convert_tokens_to_ids
    shape = {"hidden_size": recipe.hidden, "intermediate_size": 2 * recipe.hidden}
    config = Qwen2_5_VLConfig(
        text_config={
            **shape,
            "vocab_size": recipe.vocabulary,
            "num_hidden_layers": recipe.layers,
            "num_attention_heads": recipe.heads,
            "num_key_value_heads": recipe.heads,
            "max_position_embeddings": recipe.max_positions,
            # Parts of half a head that turn with time, height and width.
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": section,
            },
            "tie_word_embeddings": True,
            "initializer_range": recipe.spread,
            "bos_token_id": None,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
        },
        vision_config={
            **shape,
            "depth": recipe.layers,
            "num_heads": recipe.heads,
            "out_hidden_size": recipe.hidden,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            # Pixels; all layers but the last attend within windows, as in Qwen2.5-VL.
            "window_size": 56,
            "fullatt_block_indexes": [recipe.layers - 1],
            "initializer_range": recipe.spread,
        },
        image_token_id=ids(IMAGE_TOKEN),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=True,
        initializer_range=recipe.spread,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = PAD
    return model


def image_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the image processor, those of Qwen2.5-VL but for the most pixels."""
    return {
        "processor_class": "Qwen2_5_VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": recipe.min_pixels,
        "max_pixels": recipe.max_pixels,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Make the model and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m gem_cpu.tiny_vl")
    parser.add_argument("--out", type=Path, help="copy the model to this folder")
    args = parser.parse_args(argv)
    folder = ensure()
    if args.out is not None:
        folder = Path(shutil.copytree(folder, args.out, dirs_exist_ok=True))
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
