"""The pictures of docs/vision.md: boards of games and visual tasks, from episodes with fixed seeds.

python tools/sheets.py docs/images            # write them
python tools/sheets.py docs/images --check    # exit status 1 if one is not current

Pixels are compared, not files: libraries may compress them in another way.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pages
from PIL import Image

import gem
from gem_vision.drawing import Canvas

WIDTH, GAP, LABEL = 800, 12, 12
BOARDS = {
    "game:Sokoban-v0": 4,
    "game:Game2048-v0": 90,
    "game:FifteenPuzzle-v0-hard": 0,
    "game:TowerofHanoi-v0": 8,
    "multi:TicTacToe-v0": 2,
    "game:Minesweeper-v0": 3,
    "game:Sudoku-v0": 4,
    "game:Maze-v0": 3,
    "multi:ConnectFour-v0": 3,
}
"""Ids, and how many turns the oracle has played."""
TASKS = {
    "image:Count-v0": 3,
    "image:Compare-v0": 1,
    "image:Colour-v0": 2,
    "image:Clock-v0": 0,
    "image:Angle-v0": 2,
    "image:Bars-v0": 1,
    "image:Path-v0": 0,
    "image:Grid-v0-hard": 1,
    "image:Rotation-v0": 3,
}
"""Ids and seeds."""


def board(id: str, turns: int) -> Image.Image:
    """Return the picture of a game after some turns of the oracle."""
    with gem.make(id, modality="image", seed=1) as env:
        observation, _ = env.reset()
        for _ in range(turns):
            observation, *_ = env.step(env.oracle_action())
    return shown(observation)


def task(id: str, seed: int) -> Image.Image:
    """Return the picture of a visual task."""
    with gem.make(id) as env:
        return shown(env.reset(seed=seed)[0])


def shown(observation: Any) -> Image.Image:
    """Return the image of an observation."""
    [png] = [part["image"] for part in observation if part["type"] == "image"]
    return Image.open(io.BytesIO(png)).convert("RGB")


def sheet(pictures: Mapping[str, Image.Image]) -> Image.Image:
    """Return pictures with the names of their ids, in lines."""
    places = []
    x, y, high = GAP, GAP, 0
    for id, picture in pictures.items():
        if x + picture.width + GAP > WIDTH:
            x, y, high = GAP, y + high + LABEL + 2 * GAP, 0
        places.append((id, picture, x, y))
        x, high = x + picture.width + GAP, max(high, picture.height)
    canvas = Canvas(WIDTH, y + high + LABEL + GAP, "silver")
    for id, _, left, top in places:
        canvas.text(left, top, id.partition(":")[2].partition("-v0")[0])
    whole = canvas.image()
    for _, picture, left, top in places:
        whole.paste(picture, (left, top + LABEL))
    return whole


def write(folder: Path, check: bool) -> Mapping[str, str]:
    """Write or check the pictures; return what is wrong, by file."""
    wrong = {}
    sheets = {
        "boards.png": sheet({id: board(id, turns) for id, turns in BOARDS.items()}),
        "visual-tasks.png": sheet({id: task(id, seed) for id, seed in TASKS.items()}),
    }
    for name, made in sheets.items():
        path = folder / name
        if not check:
            # The colours of the renderer fit into a palette.
            made.quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)
        if not path.exists() or not same(made, path):
            wrong[name] = pages.NOT_CURRENT
    return wrong


def same(made: Image.Image, path: Path) -> bool:
    """Return whether a file has the same pixels."""
    with Image.open(path) as kept:
        return kept.size == made.size and kept.convert("RGB").tobytes() == made.tobytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pictures; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return pages.command("python tools/sheets.py", __doc__ or "", write, arguments)


if __name__ == "__main__":
    sys.exit(main())
