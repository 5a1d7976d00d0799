"""Schedules of the learning rate, those of Hugging Face's transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gem.tables import setting


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate of each optimiser step."""

    lr: float = setting("learning rate, the highest one of a schedule", above=0)
    schedule: str = setting(
        "learning rate after the warm-up: `constant`, or falling to `min_lr_ratio` along a line or "
        "half a period of the cosine",
        "constant",
        choices=("constant", "linear", "cosine"),
    )
    warmup: int = setting(
        "optimiser steps in which the learning rate grows from 0; the first step has 0", 0, least=0
    )
    min_lr_ratio: float = setting(
        "learning rate at the end of a schedule as a share of `lr`", 0.0, least=0, most=1
    )

    @property
    def hugging_face(self) -> str:
        """Name of the schedule in transformers' `get_scheduler`."""
        if self.schedule == "constant":
            return "constant_with_warmup" if self.warmup else "constant"
        return f"{self.schedule}_with_min_lr" if self.min_lr_ratio else self.schedule

    def factor(self, step: int, steps: int) -> float:
        """Return the learning rate of an optimiser step as a share of `lr`.

        `step / warmup` in the warm-up. After it, with `x = (step - warmup) / (steps - warmup)` and
        `m = min_lr_ratio`: 1, `m + (1 - m) * (1 - x)`, or `m + (1 - m) * (1 + cos(pi * x)) / 2`.

        Args:
            step: Its number, from 0.
            steps: Optimiser steps of the whole run.
        """
        if step < self.warmup:
            return step / self.warmup
        if self.schedule == "constant":
            return 1.0
        x = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        decay = 1 - x if self.schedule == "linear" else (1 + math.cos(math.pi * x)) / 2
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * decay
