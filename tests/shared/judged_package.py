"""A package with an environment that asks a judge about any text, in a folder for `PYTHONPATH`."""

from __future__ import annotations

from pathlib import Path

ENV = "test:Said-v0"
_MODULE = """
from gem import Env, register
from gem_judge import Item, judge_of


class Said(Env):
    def __init__(self, judge="main", seed=None):
        super().__init__(seed=seed)
        self.judge = judge

    def reset(self, seed=None, **options):
        super().reset(seed=seed)
        return f"Say something, number {self.rng.randrange(100)}.", {}

    def step(self, action):
        verdict = judge_of(self.judge).verdict(Item("Say something.", f"said: {action}", "a word"))
        return "", verdict.score, True, False, {"success": verdict.correct, **verdict.info}


def envs():
    register("test:Said-v0", Said)
"""


def install(folder: Path) -> Path:
    """Write the module and what an installation says of it; return the folder."""
    about = folder / "judged_said-0.1.dist-info"
    about.mkdir(parents=True)
    about.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: judged-said\nVersion: 0.1\n"
    )
    about.joinpath("entry_points.txt").write_text("[gem.envs]\njudged-said = judged_said:envs\n")
    folder.joinpath("judged_said.py").write_text(_MODULE)
    return folder
