"""Pictures: time of an observation as a picture and as text, bytes and tokens; visual tasks.

python benchmarks/pictures.py [--seconds S]

CPU time of the board alone, the best of five rounds; text is the baseline. Every game is in the
middle of an episode. Tokens are patches of 28x28 pixels, as Qwen2.5-VL sees them. Of visual tasks
it is the time of a reset: the task is drawn by lot, computed and painted.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from typing import Any

from PIL import Image

import gem
from gem_vision.drawing import tokens

GAMES = (
    "game:FifteenPuzzle-v0", "game:Game2048-v0", "game:Maze-v0", "game:Minesweeper-v0",
    "game:Sokoban-v0", "game:Sudoku-v0", "game:TowerofHanoi-v0", "multi:ConnectFour-v0",
    "multi:TicTacToe-v0",
)  # fmt: skip
TURNS = 4
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    arguments = parser.parse_args()
    boards(arguments.seconds)
    tasks(arguments.seconds)
