"""Make the tiny model: a Qwen3-architecture policy that plays a number game, but not well.

    python -m gem_cpu.tiny_model [--out DIR]

It is small enough that real trainers improve it on two CPU cores within minutes. Three steps: a
byte-level BPE tokenizer trained on the game's own texts, a randomly initialised
`Qwen3ForCausalLM`, and a warm start by behaviour cloning.

The warm start has two parts. First the model clones a player who respects every hint, so that it
learns what the texts mean; then an unskilled one, so that it hardly acts on it. Like a pre-trained
language model it then plays badly but can learn to play well within a hundred updates. The
cloning data are trajectories of `gem.rollout`, so they have exactly the token layout that the
model meets in training. Everything is seeded; the result is cached under a hash of its inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gem.rollout import Budget, ChatFormat, Request, Sample, play_batch
from gem.seeding import stream
from gem.tasks import Task
from gem.trajectory import Sequence

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
_PAD, _EOS = 0, 2


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what the model becomes."""

    env_id: str = "game:GuessTheNumber-v0-easy"
    params: Mapping[str, Any] = field(default_factory=lambda: {"hint": "range", "prompt": "short"})
    seed: int = 0
    tokenizer_episodes: int = 200
    vocabulary: int = 448
    """Size of tokenizer and embedding alike; a multiple of 64, so no engine pads it further."""
    hidden: int = 64
    layers: int = 2
    max_positions: int = 2048
    consistent: float = 0.2
    """Share of the unskilled player's guesses that respect the hints; the others ignore them."""
    careful_episodes: int = 2048
    careful_steps: int = 350
    unskilled_episodes: int = 4096
    unskilled_steps: int = 150
    batch: int = 32
    """Episodes per step."""
    lr: float = 4e-3
    """Of the first part; the second has half of it."""

    def tasks(self, n: int) -> list[Task]:
        """Return `n` episodes, with seeds that are far from those of a training run."""
        first = 10**12 * (self.seed + 1)
        return [Task(self.env_id, first + i, self.params) for i in range(n)]


class ScriptedPlayer:
    """A sampler that always guesses in range, and with probability `consistent` within the hints.

    All it knows is what it reads: "between <low> and <high>" in the newest observation.
    """

    def __init__(self, chat: ChatFormat, consistent: float, seeds: list[int]) -> None:
        self._chat = chat
        self._consistent = consistent
        self._rng = [stream(seed) for seed in seeds]

    def __call__(self, requests: list[Request]) -> list[Sample]:
        """Answer every request with one guess."""
        return [self._guess(request) for request in requests]

    def _guess(self, request: Request) -> Sample:
        rng = self._rng[request.episode]
        low, high = _range_in(self._chat.decode(request.new_ids))
        if rng.random() >= self._consistent:
            low, high = _range_in(self._chat.decode(request.prompt_ids), first=True)
        ids = self._chat.encode_text(f"\\boxed{{{rng.randint(low, high)}}}")
        return Sample([*ids, _EOS], None, "stop")


_RANGE = re.compile(r"between (\d+) and (\d+)")


def _range_in(text: str, first: bool = False) -> tuple[int, int]:
    found = _RANGE.findall(text)
    low, high = found[0 if first else -1]
    return int(low), int(high)


def game_texts(recipe: Recipe) -> list[str]:
    """Return what the game and its players say: every kind of message, careless play included."""
    rng, texts = stream(recipe.seed), []
    for task in recipe.tasks(recipe.tokenizer_episodes):
        with task.make() as env:
            observation, _ = env.reset(seed=task.seed)
            texts.append(str(observation))
            over = False
            while not over:
                # A little outside the range on both sides, and now and then no box at all.
                guess = rng.randint(-1, 13)
                action = f"\\boxed{{{guess}}}" if rng.random() < 0.95 else str(guess)
                observation, _, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
                texts += [action, f"user\n{observation}\nassistant\n"]
    return texts


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
        eos_token=_SPECIAL[_EOS],
        pad_token=_SPECIAL[_PAD],
        model_max_length=max_length,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def cloning_rows(recipe: Recipe, tokenizer: Any, consistent: float, n: int) -> list[Sequence]:
    """Return the training rows of `n` episodes of scripted play."""
    chat = ChatFormat(tokenizer)
    tasks = recipe.tasks(n)
    budget = Budget(turn_tokens=16, response_tokens=recipe.max_positions, prompt_tokens=1024)
    player = ScriptedPlayer(chat, consistent, [task.seed for task in tasks])
    return [row for t in play_batch(tasks, player, chat, budget=budget) for row in t.sequences()]


def new_model(recipe: Recipe) -> Any:
    """Return a randomly initialised Qwen3 model in fp32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=3 * recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        # vLLM's attention for CPUs has no kernel for heads smaller than 32.
        head_dim=32,
        max_position_embeddings=recipe.max_positions,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=_EOS,
        pad_token_id=_PAD,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Qwen3ForCausalLM(config)


def clone(
    model: Any,
    rows: list[Sequence],
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int = 0,
    progress: str | None = None,
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
            ids, mask, labels = _cloning_batch([rows[i] for i in order[at : at + batch]])
            at += batch
            # Logits only where some row has a token to learn.
            kept = (labels >= 0).any(0).nonzero()[:, 0]
            logits = model(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                logits_to_keep=(kept - 1).to(model.device),
                use_cache=False,
            ).logits
            targets = labels[:, kept].to(model.device)
            loss = cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-1)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return float(loss.item())


def _cloning_batch(rows: list[Sequence]) -> tuple[Any, Any, Any]:
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


def ensure(
    cache: str | Path | None = None, progress: bool = True, recipe: Recipe | None = None
) -> Path:
    """Return the folder of the tiny model, making it if it is not in the cache.

    The name carries a hash of the recipe, this file, the game's texts, the token layout of a few
    episodes and the library versions. Making it takes about a minute of one core.

    Args:
        cache: Cache folder, see `cache_folder`.
        progress: Show a progress bar on standard error.
        recipe: What to make; by default the standard model.
    """
    recipe = recipe or Recipe()
    texts = game_texts(recipe)
    tokenizer = train_tokenizer(texts, recipe.vocabulary, recipe.max_positions)
    inputs = {
        "recipe": asdict(recipe),
        "code": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "texts": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        "layout": [
            (r.prompt_ids, r.response_ids, r.mask)
            for r in cloning_rows(recipe, tokenizer, recipe.consistent, 8)
        ],
        "versions": {name: version(name) for name in ("torch", "tokenizers", "transformers")},
    }
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
    target = cache_folder(cache) / f"tiny-{key}"

    def write(folder: Path) -> None:
        # Sums over threads round differently: one thread gives the same model everywhere.
        with _one_thread():
            model, loss = _warm_started(recipe, tokenizer, progress)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        about = {"recipe": asdict(recipe), "versions": inputs["versions"], "loss": loss}
        (folder / "gem_model.json").write_text(json.dumps(about, indent=2) + "\n")

    return make_once(target, write)


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _warm_started(recipe: Recipe, tokenizer: Any, progress: bool) -> tuple[Any, float]:
    """Return the model and its last cloning loss."""
    model, loss = new_model(recipe), 0.0
    parts = (
        ("careful", 1.0, recipe.careful_episodes, recipe.careful_steps, recipe.lr),
        (
            "unskilled",
            recipe.consistent,
            recipe.unskilled_episodes,
            recipe.unskilled_steps,
            recipe.lr / 2,
        ),
    )
    for number, (name, consistent, episodes, steps, lr) in enumerate(parts, 1):
        title = f"tiny model, {number} of {len(parts)}: {name} play"
        loss = clone(
            model,
            cloning_rows(recipe, tokenizer, consistent, episodes),
            steps=steps,
            batch=recipe.batch,
            lr=lr,
            seed=recipe.seed,
            progress=title if progress else None,
        )
    return model, loss


def main(argv: list[str] | None = None) -> int:
    """Make the model and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m gem_cpu.tiny_model")
    parser.add_argument("--out", type=Path, help="copy the model to this folder")
    args = parser.parse_args(argv)
    folder = ensure()
    if args.out is not None:
        folder = Path(shutil.copytree(folder, args.out, dirs_exist_ok=True))
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
