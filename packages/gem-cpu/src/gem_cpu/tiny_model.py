"""Makes the tiny model: a Qwen3-architecture policy that plays a number game, but not well.

    python -m gem_cpu.tiny_model [--anew] [--out DIR]

It is small enough that real trainers improve it on two CPU cores within minutes. Three steps: a
byte-level BPE tokenizer trained on the game's own texts, a randomly initialised
`Qwen3ForCausalLM`, and a warm start by behaviour cloning.

The warm start has two parts. First the model clones a player who respects every hint, so that it
learns what the texts mean; then an unskilled one, so that it hardly acts on it. Like a pre-trained
language model it then plays badly but can learn to play well within a hundred updates. The
cloning data are trajectories of `gem.rollout`, so they have exactly the token layout that the
model meets in training. Everything is seeded; the result of the standard recipe is part of this
package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gem.rollout import Budget, ChatFormat, Request, Sample, play_batch
from gem.seeding import stream
from gem.tasks import Task
from gem.trajectory import TrainingRow
from gem_cpu.cloning import (
    EOS,
    Size,
    clone,
    command,
    ensure_model,
    new_model,
    shipped,
    train_tokenizer,
)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what the model becomes."""

    env_id: str = "game:GuessTheNumber-v0-easy"
    params: Mapping[str, Any] = field(default_factory=lambda: {"hint": "range", "prompt": "short"})
    seed: int = 0
    tokenizer_episodes: int = 200
    size: Size = field(default_factory=lambda: Size(vocabulary=448))
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
        return Sample([*ids, EOS], None, "stop")


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


def cloning_rows(recipe: Recipe, tokenizer: Any, consistent: float, n: int) -> list[TrainingRow]:
    """Return the training rows of `n` episodes of scripted play."""
    chat = ChatFormat(tokenizer)
    tasks = recipe.tasks(n)
    budget = Budget(turn_tokens=16, response_tokens=recipe.size.max_positions, prompt_tokens=1024)
    player = ScriptedPlayer(chat, consistent, [task.seed for task in tasks])
    return [
        row for t in play_batch(tasks, player, chat, budget=budget) for row in t.training_rows()
    ]


def ensure() -> Path:
    """Return the folder of the tiny model, which is part of this package."""
    return shipped("tiny")


def inputs(recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    """Return the tokenizer and all that decides what the model becomes, for `ensure_model`."""
    texts = game_texts(recipe)
    tokenizer = train_tokenizer(texts, recipe.size.vocabulary, recipe.size.max_positions)
    rows = cloning_rows(recipe, tokenizer, recipe.consistent, 8)
    return tokenizer, {
        "recipe": asdict(recipe),
        "texts": texts,
        "layout": [(r.prompt_ids, r.response_ids, r.mask) for r in rows],
    }


def make(
    recipe: Recipe | None = None, *, cache: str | Path | None = None, progress: bool = True
) -> Path:
    """Return the folder of a model made here, making it if it is not in the cache.

    It takes about a minute of one core. On another kind of processor the same recipe gives a model
    that behaves alike, but is not equal to the last bit.

    Args:
        recipe: What to make; by default the standard model.
        cache: Cache folder, see `cache_folder`.
        progress: Show a progress bar on standard error.
    """
    recipe = recipe or Recipe()
    tokenizer, parts = inputs(recipe)
    return ensure_model(
        "tiny",
        tokenizer,
        parts,
        lambda: _warm_started(recipe, tokenizer, progress),
        code=[__file__],
        cache=cache,
    )


def _warm_started(recipe: Recipe, tokenizer: Any, progress: bool) -> tuple[Any, float]:
    """Return the model and its last cloning loss."""
    model, loss = new_model(recipe.size, recipe.seed), 0.0
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
    """Print the folder of the model, after copying or making it if asked to."""
    return command("gem_cpu.tiny_model", "tiny", make, argv)


if __name__ == "__main__":
    sys.exit(main())
