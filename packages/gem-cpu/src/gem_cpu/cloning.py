"""What all small models have in common: tokenizer, architecture, behaviour cloning, cache.

A small model is a byte-level BPE tokenizer trained on the texts it will meet, a randomly
initialised `Qwen3ForCausalLM`, and a warm start by cloning scripted players, whose episodes are
trajectories of `gem.rollout`: they have exactly the token layout that the model meets in training.
Everything is seeded. The models of the standard recipes are part of this package (`shipped`):
another machine rounds differently, so that the same recipe becomes another model there. Any other
recipe is made once and cached under a hash of its inputs.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from gem.rollout import ChatFormat
from gem.seeding import stream
from gem.tables import assignments, build
from gem.trajectory import TrainingRow
from gem_train.batches import chunks

T = TypeVar("T")

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""ChatML."""

# The pre-tokenizer of the Qwen family: digits stand alone, words keep the space before them.
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAD, EOS = 0, 2
"""Ids of the padding and of the closing token."""

_FORWARD_TOKENS = 1024
"""Most tokens of a forward pass: CPUs are faster with smaller tensors."""


@dataclass(frozen=True)
class Size:
    """Architecture of a small model."""

    vocabulary: int
    """Size of tokenizer and embedding alike; a multiple of 64, so no engine pads it further."""
    hidden: int = 64
    layers: int = 2
    max_positions: int = 2048


def train_tokenizer(texts: list[str], vocabulary: int, max_length: int) -> Any:
    """Train a byte-level BPE with exactly `vocabulary` tokens and a ChatML template."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    # Short texts may not hold enough merges; a model must not have ids that nothing decodes.
    missing = vocabulary - bpe.get_vocab_size()
    bpe.add_special_tokens([AddedToken(f"<|reserved_{i}|>") for i in range(missing)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=_SPECIAL[EOS],
        pad_token=_SPECIAL[PAD],
        model_max_length=max_length,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def new_model(size: Size, seed: int) -> Any:
    """Return a randomly initialised Qwen3 model in fp32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        # vLLM's attention for CPUs has no kernel for heads smaller than 32.
        head_dim=32,
        max_position_embeddings=size.max_positions,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def clone(
    model: Any,
    rows: list[TrainingRow],
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int = 0,
    progress: str | None = None,
    chat: ChatFormat | None = None,
) -> float:
    """Train `model` to say what was said in `rows`; returns the last loss (nats per token).

    Only sampled tokens count. AdamW, gradient norm at most 1, learning rate falling linearly to 0.

    Args:
        model: A causal language model on any device, in fp32.
        rows: Training rows, at least `batch` of them.
        steps: Optimiser steps.
        batch: Rows per step.
        lr: Initial learning rate.
        seed: Of the order of the rows.
        progress: Title of a progress bar on standard error; None shows none.
        chat: A chat format that shows images, if rows have any.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from tqdm import tqdm

    rng, order = stream(seed), list(range(len(rows)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    loss = torch.zeros(())
    at = len(rows)
    with tqdm(range(steps), desc=progress, disable=progress is None) as bar:
        for _ in bar:
            if at + batch > len(rows):
                rng.shuffle(order)
                at = 0
            shown = [rows[i] for i in order[at : at + batch]]
            at += batch
            loss = torch.zeros(())
            learned = sum(sum(row.mask) for row in shown)
            optimizer.zero_grad()
            for few in chunks(shown, _FORWARD_TOKENS):
                ids, mask, labels = _cloning_batch(few)
                seen = _seen(few, ids, chat)
                # Logits only where some row has a token to learn.
                kept = (labels >= 0).any(0).nonzero()[:, 0]
                logits = model(
                    input_ids=ids.to(model.device),
                    attention_mask=mask.to(model.device),
                    logits_to_keep=(kept - 1).to(model.device),
                    use_cache=False,
                    **{name: value.to(model.device) for name, value in seen.items()},
                ).logits.flatten(0, 1)
                targets = labels[:, kept].flatten().to(model.device)
                nats = cross_entropy(logits.float(), targets, ignore_index=-1, reduction="sum")
                torch.autograd.backward(nats / learned)
                loss += nats.detach().cpu() / learned
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return float(loss.item())


def _cloning_batch(rows: list[TrainingRow]) -> tuple[Any, Any, Any]:
    """Right-padded ids, attention mask and labels (-1: nothing to learn), `[rows, length]`."""
    import torch

    width = max(len(r.prompt_ids) + len(r.response_ids) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -1)
    for i, row in enumerate(rows):
        start, end = len(row.prompt_ids), len(row.prompt_ids) + len(row.response_ids)
        ids[i, :end] = torch.tensor(row.prompt_ids + row.response_ids)
        mask[i, :end] = 1
        labels[i, start:end] = torch.where(torch.tensor(row.mask) == 1, ids[i, start:end], -1)
    return ids, mask, labels


def _seen(rows: list[TrainingRow], ids: Any, chat: Any) -> dict[str, Any]:
    """Return what a model that sees is given besides ids and mask."""
    images = [image for row in rows for image in row.images]
    return chat.model_inputs(ids, images) if images else {}


def read_settings(cls: type[T], text: str, name: str) -> T:
    """Return the settings that stand after the question mark of a `policy.model`.

    Args:
        cls: A dataclass of `gem.tables.setting`.
        text: `key=value&...`.
        name: What stands before, for messages.

    Raises:
        ConfigurationError: A setting is unknown, missing or not allowed.
    """
    pairs = [f"{key}={value}" for key, value in parse_qsl(text, keep_blank_values=True)]
    return build(cls, assignments(cls, pairs), f"{name}?")


def cache_folder(cache: str | Path | None = None) -> Path:
    """Return the folder of made models: `cache`, else `$GEM_CACHE`, else `~/.cache/gem-core`."""
    root = cache or os.environ.get("GEM_CACHE") or Path.home() / ".cache" / "gem-core"
    return Path(root) / "models"


def make_once(target: Path, write: Callable[[Path], None]) -> Path:
    """Return `target`; if it is not there, let `write` fill a folder that then becomes it.

    It appears complete or not at all. A second process that wants it waits for the first.
    """
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if not target.is_dir():
            partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                write(partial)
                partial.chmod(0o755)
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return target


def shipped(name: str) -> Path:
    """Return the folder of a model that is part of this package: `tiny` or `tiny-tools`."""
    return Path(__file__).with_name("models") / name


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """Return a hash of what a model is made from; it is the same on every machine.

    Args:
        inputs: As given to `ensure_model`.
    """
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def _one_thread() -> Iterator[None]:
    # Sums over threads round differently: one thread gives the same model whenever this machine
    # makes it.
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def ensure_model(
    name: str,
    tokenizer: Any,
    inputs: Mapping[str, Any],
    warm_start: Callable[[], tuple[Any, float]],
    *,
    code: Sequence[str | Path],
    cache: str | Path | None = None,
    finish: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Return the folder of a model, making it if it is not in the cache.

    The folder's name carries a hash of `inputs`, of `code`, of this file and of the library
    versions.

    Args:
        name: First part of the folder's name.
        tokenizer: Saved beside the model.
        inputs: Everything that decides what the model becomes, ready for JSON; `inputs["recipe"]`
            and the `fingerprint` are kept beside the model.
        warm_start: Returns the model and its last cloning loss; runs on one thread.
        code: Files that `warm_start` is written in.
        cache: Cache folder, see `cache_folder`.
        finish: Adds files to the folder of the model.
    """
    versions = {package: version(package) for package in ("torch", "tokenizers", "transformers")}
    files = [code_hash(path) for path in (*code, __file__)]
    key = fingerprint({**inputs, "code": files, "versions": versions})

    def write(folder: Path) -> None:
        with _one_thread():
            model, loss = warm_start()
        save(model, tokenizer, folder)
        finish(folder)
        about = {
            "recipe": inputs["recipe"],
            "fingerprint": fingerprint(inputs),
            "versions": versions,
            "loss": loss,
        }
        (folder / "gem_model.json").write_text(json.dumps(about, indent=2) + "\n")

    return make_once(cache_folder(cache) / f"{name}-{key}", write)


def command(
    module: str, name: str, make: Callable[[], Path], argv: Sequence[str] | None = None
) -> int:
    """Be the command of a shipped model: print its folder, copy it, or make it anew.

    Args:
        module: Name of the module that is run.
        name: See `shipped`.
        make: Makes the model of the standard recipe and returns its folder.
        argv: Arguments; None takes those of this process.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--out", type=Path, help="copy the model to this folder")
    parser.add_argument(
        "--anew", action="store_true", help="make the model instead of taking the shipped one"
    )
    args = parser.parse_args(argv)
    folder = make() if args.anew else shipped(name)
    if args.out is not None:
        folder = Path(shutil.copytree(folder, args.out, dirs_exist_ok=True))
    print(folder)
    return 0


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save a model so that transformers 4, which some trainers need, reads it like transformers 5.

    Version 5 writes a tokenizer class that version 4 does not have, and RoPE's base where version
    4 does not look for it.
    """
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _edit(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    rope = getattr(model.config, "rope_parameters", None)
    if rope:
        _edit(folder / "config.json", rope_theta=rope["rope_theta"])


def _edit(path: Path, **values: Any) -> None:
    known = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(known | values, indent=2) + "\n", encoding="utf-8")


def code_hash(path: str | Path) -> str:
    """Return the SHA-256 of a module's syntax tree: comments and docstrings do not change it."""
    tree = ast.parse(Path(path).read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
