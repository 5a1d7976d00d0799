"""Pictures: time, bytes and tokens of boards as pictures and as text; visual tasks; episodes.

python benchmarks/pictures.py [--seconds S]

CPU time of the board alone, the best of five rounds; text is the baseline. Every game is in the
middle of an episode. Tokens are patches of 28x28 pixels, as Qwen2.5-VL sees them. Of visual tasks
it is the time of a reset: the task is drawn by lot, computed and painted.

Episodes have 20 turns. Their memory is what Python holds when they are over; text is the baseline.
CPU time is that of the rollout alone: observations are made before. Noise is what no file makes
smaller.
"""

from __future__ import annotations

import argparse
import gc
import io
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from PIL import Image
from transformers import AutoTokenizer

import gem
from gem.rollout import Budget, ChatFormat, Sample
from gem.rollout.play import Episode
from gem.rollout.vision import VisionChatFormat
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_cpu import tiny_model, tiny_processor
from gem_train.packed import PackedTrajectory
from gem_vision.drawing import tokens

GAMES = (
    "game:FifteenPuzzle-v0", "game:Game2048-v0", "game:Maze-v0", "game:Minesweeper-v0",
    "game:Sokoban-v0", "game:Sudoku-v0", "game:TowerofHanoi-v0", "multi:ConnectFour-v0",
    "multi:TicTacToe-v0",
)  # fmt: skip
TURNS = 4
EPISODE = 20
ROUNDS = 5


def cost(function: Callable[[], Any], seconds: float) -> float:
    """Milliseconds of CPU time of a call, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        calls, began = 0, time.process_time()
        while time.process_time() - began < seconds / ROUNDS or not calls:
            function()
            calls += 1
        best = min(best, 1e3 * (time.process_time() - began) / calls)
    return best


def boards(seconds: float) -> None:
    print("| game | text, ms | picture, ms | pixels | tokens | bytes |\n|---|---|---|---|---|---|")
    for id in GAMES:
        env = gem.make(id, modality="image", seed=1)
        env.reset()
        for _ in range(TURNS if id != "multi:TicTacToe-v0" else 2):
            env.step(env.sample_random_action())
        game: Any = getattr(env.unwrapped, "game", env.unwrapped)
        words = cost((lambda g=game: g._view("x")) if "multi:" in id else game._board, seconds)
        shown = cost(lambda g=game: g._painter(g), seconds)
        png = game._painter(game)
        width, height = Image.open(io.BytesIO(png)).size
        print(
            f"| {id} | {words:.3f} | {shown:.2f} | {width}x{height} | {tokens(width, height)} | "
            f"{len(png):,} |"
        )


def tasks(seconds: float) -> None:
    print("\n| visual task | reset, ms | tokens |\n|---|---|---|")
    for id in gem.list_envs("image:"):
        env = gem.make(id, seed=1)
        width, height = Image.open(io.BytesIO(env.reset()[0][1]["image"])).size
        print(f"| {id} | {cost(env.reset, seconds):.2f} | {tokens(width, height)} |")


def walk(modality: str) -> list[Any]:
    """Return what Sokoban shows in an episode."""
    env = gem.make("game:Sokoban-v0", modality=modality, seed=1, max_turns=2 * EPISODE)
    shown = [env.reset()[0]]
    while len(shown) < EPISODE:
        shown.append(env.step(env.sample_random_action())[0])
    return shown


def noise(side: int, many: int) -> list[Any]:
    """Return images of Pillow, each with other pixels."""
    source = random.Random(0)
    images = [
        Image.frombytes("RGB", (side, side), source.randbytes(3 * side * side)) for _ in range(many)
    ]
    return [[{"type": "image", "image": images[n % many]}] for n in range(EPISODE)]


def episode(chat: ChatFormat, shown: list[Any]) -> Trajectory:
    """Play an episode that shows these observations."""
    budget = Budget(turn_tokens=16, response_tokens=100_000, prompt_tokens=100_000)
    played = Episode(Task("game:Sokoban-v0", 1), chat, budget=budget)
    played.begin(shown[0], {})
    said = chat.encode_text(r"\boxed{up}")
    for turn in range(1, len(shown) + 1):
        assert played.request is not None
        sample = Sample(said, [-0.5] * len(said), "stop", None, len(played.request.prompt_ids))
        played.receive(sample)
        played.advance((shown[turn % len(shown)], 0.0, turn == len(shown), False, {}))
    return played.trajectory


def episodes(seconds: float) -> None:
    print("\n| 20 turns | CPU, ms | tokens | in memory, KB | packed, KB | JSON, KB |")
    print("|---|---|---|---|---|---|")
    words = AutoTokenizer.from_pretrained(tiny_model.ensure())
    text = ChatFormat(words)
    sees = VisionChatFormat(tiny_processor.make(words))
    kinds: dict[str, tuple[ChatFormat, Callable[[], list[Any]]]] = {
        "Sokoban as text (baseline)": (text, lambda: walk("text")),
        "the same text, VisionChatFormat": (sees, lambda: walk("text")),
        "Sokoban as pictures": (sees, lambda: walk("image")),
        "20 images of noise, 448x448": (sees, lambda: noise(448, EPISODE)),
        "one of them 20 times": (sees, lambda: noise(448, 1)),
    }
    for name, (chat, make) in kinds.items():
        shown = make()
        spent = cost(lambda chat=chat, shown=shown: episode(chat, shown), seconds)
        del shown
        episode(chat, make())  # what is encoded once and kept is not counted
        gc.collect()
        tracemalloc.start()
        played = episode(chat, make())
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        sizes = [held, len(PackedTrajectory.of(played).data), len(played.to_json())]
        [row] = played.training_rows()
        print(f"| {name} | {spent:.1f} | {len(row.ids):,} | ", end="")
        print(" | ".join(f"{size / 1e3:,.0f}" for size in sizes), "|")
        del played, row  # equal images of episodes in memory share their bytes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    arguments = parser.parse_args()
    boards(arguments.seconds)
    tasks(arguments.seconds)
    episodes(arguments.seconds)
