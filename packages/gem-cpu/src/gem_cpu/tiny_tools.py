"""Makes the tiny tool user: a Qwen3-architecture policy that can call tools, but often does not.

    python -m gem_cpu.tiny_tools [--anew] [--out DIR]

It is as small as the tiny model, and made like it, by cloning scripted players: first one who
always asks the tool and answers what it says, so that the model learns the form of the calls and
to copy; then one who often makes the answer up instead. `gem_cpu.tool_lessons` explains why its
answers can be right only where a tool gave them.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gem.rollout import Budget, ChatFormat, play_batch
from gem.seeding import stream
from gem.trajectory import TrainingRow
from gem_cpu import tool_lessons
from gem_cpu.cloning import (
    Size,
    clone,
    command,
    ensure_model,
    new_model,
    shipped,
    train_tokenizer,
)
from gem_cpu.tool_lessons import Classroom, ToolPlayer, first_reply, last_reply, lesson_of

_AT_ONCE = 48
"""Episodes played side by side: each needs an environment of its own."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what the model becomes."""

    seed: int = 0
    tokenizer_episodes: int = 240
    size: Size = field(default_factory=lambda: Size(vocabulary=1024))
    asks: float = 0.6
    """Probability with which the second player asks the tool; the first one always does."""
    careful_episodes: int = 2400
    careful_steps: int = 850
    half_episodes: int = 800
    half_steps: int = 120
    batch: int = 16
    """Episodes per step."""
    lr: float = 4e-3
    """Of the first part; the second has a quarter of it."""

    @property
    def first(self) -> int:
        """First seed of the lessons, far from those of a training run."""
        return 2 * 10**12 * (self.seed + 1)


def lesson_texts(recipe: Recipe, room: Classroom) -> list[str]:
    """Return what environments, tools and players say."""
    rng, texts = stream(recipe.seed), []
    for task in room.tasks(recipe.tokenizer_episodes, recipe.first):
        with room.make(task) as env:
            question = str(env.reset(seed=task.seed)[0])
            lesson = lesson_of(question)
            call = first_reply(lesson, question, rng, asks=1.0)
            told = str(env.step(call)[0])
            answer = last_reply(lesson, told, rng)
            texts += [f"user\n{question}\nassistant\n", call, f"user\n{told}\nassistant\n", answer]
    return texts


def cloning_rows(
    recipe: Recipe, room: Classroom, tokenizer: Any, asks: float, n: int
) -> list[TrainingRow]:
    """Return the training rows of `n` episodes of a scripted player."""
    chat = ChatFormat(tokenizer)
    most = recipe.size.max_positions
    budget = Budget(turn_tokens=64, response_tokens=most, prompt_tokens=most)
    rows = []
    tasks = room.tasks(n, recipe.first)
    for start in range(0, n, _AT_ONCE):
        part = tasks[start : start + _AT_ONCE]
        player = ToolPlayer(chat, asks, [task.seed for task in part])
        episodes = play_batch(part, player, chat, budget=budget, make_env=room.make)
        rows += [row for episode in episodes for row in episode.training_rows()]
    return rows


def ensure() -> Path:
    """Return the folder of the tiny tool user, which is part of this package."""
    return shipped("tiny-tools")


def inputs(recipe: Recipe, room: Classroom) -> tuple[Any, dict[str, Any]]:
    """Return the tokenizer and all that decides what the model becomes, for `ensure_model`."""
    texts = lesson_texts(recipe, room)
    tokenizer = train_tokenizer(texts, recipe.size.vocabulary, recipe.size.max_positions)
    rows = cloning_rows(recipe, room, tokenizer, recipe.asks, 12)
    return tokenizer, {
        "recipe": asdict(recipe),
        "texts": texts,
        "layout": [(r.prompt_ids, r.response_ids, r.mask) for r in rows],
    }


def make(
    recipe: Recipe | None = None, *, cache: str | Path | None = None, progress: bool = True
) -> Path:
    """Return the folder of a tool user made here, making it if it is not in the cache.

    It takes a few minutes of one core. On another kind of processor the same recipe gives a model
    that behaves alike, but is not equal to the last bit.

    Args:
        recipe: What to make; by default the standard model.
        cache: Cache folder, see `gem_cpu.cloning.cache_folder`.
        progress: Show progress bars on standard error.

    Raises:
        ConfigurationError: No sandbox for the Python tool.
        MissingExtraError: A package that the tools need is not installed.
    """
    recipe = recipe or Recipe()
    with Classroom(recipe.seed) as room:
        tokenizer, parts = inputs(recipe, room)
        return ensure_model(
            "tiny-tools",
            tokenizer,
            parts,
            lambda: _warm_started(recipe, room, tokenizer, progress),
            code=[__file__, tool_lessons.__file__],
            cache=cache,
        )


def _warm_started(
    recipe: Recipe, room: Classroom, tokenizer: Any, progress: bool
) -> tuple[Any, float]:
    """Return the model and its last cloning loss."""
    model, loss = new_model(recipe.size, recipe.seed), 0.0
    parts = (
        ("always asks", 1.0, recipe.careful_episodes, recipe.careful_steps, recipe.lr),
        (
            "often guesses",
            recipe.asks,
            recipe.half_episodes,
            recipe.half_steps,
            recipe.lr / 4,
        ),
    )
    for number, (name, asks, episodes, steps, lr) in enumerate(parts, 1):
        title = f"tiny tool user, {number} of {len(parts)}: {name}"
        loss = clone(
            model,
            cloning_rows(recipe, room, tokenizer, asks, episodes),
            steps=steps,
            batch=recipe.batch,
            lr=lr,
            seed=recipe.seed,
            progress=title if progress else None,
        )
    return model, loss


def main(argv: list[str] | None = None) -> int:
    """Print the folder of the model, after copying or making it if asked to."""
    return command("gem_cpu.tiny_tools", "tiny-tools", make, argv)


if __name__ == "__main__":
    sys.exit(main())
