"""A plain environment of Gymnasium that asks a judge about any text; trainers import it."""

from __future__ import annotations

from typing import Any

import gymnasium

from gem.gymnasium import AnyText
from gem_judge import Item, judge_of


class Say(gymnasium.Env):  # type: ignore[type-arg]
    """One turn: the judge decides."""

    observation_space = action_space = AnyText()

    def __init__(self, judge: str = "main", render_mode: str | None = None) -> None:
        self.judge, self.render_mode = judge, render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"Say something, number {self.np_random.integers(100)}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        verdict = judge_of(self.judge).verdict(Item("Say something.", f"said: {action}", "a word"))
        return "", verdict.score, True, False, {"success": verdict.correct, **verdict.info}


gymnasium.register("test/Say-v0", entry_point=Say)
ENV = "gym:judged_gym:test/Say-v0"
