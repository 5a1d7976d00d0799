"""Weights & Biases: online, or offline with `WANDB_MODE=offline` and `wandb sync` later."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from gem_bench.trackers import About, Point


class WandbRun:
    """A run of Weights & Biases; offline, each process writes a folder of its own for it."""

    def __init__(self, about: About, earlier: str | None) -> None:
        import wandb

        self.id = earlier or uuid.uuid4().hex[:12]
        self._run: Any = wandb.init(
            project=about.project,
            name=about.name,
            group=about.group,
            id=self.id,
            config=dict(about.config),
            dir=str(about.folder),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        self.place = self._run.url or f"{about.folder / 'wandb'} (offline: wandb sync)"

    def write(self, points: Sequence[Point]) -> None:
        """See `TrackedRun`. The service of wandb is a process of its own and has them then."""
        for point in points:
            self._run.log(dict(point.values), step=point.step)

    def missing(self, point: Point) -> Point | None:
        """See `TrackedRun`."""
        return None

    def close(self, status: str) -> None:
        """See `TrackedRun`."""
        self._run.finish(exit_code=0 if status in ("finished", "running") else 1)


def open_run(about: About, earlier: str | None) -> WandbRun:
    """See `OpenRun`."""
    return WandbRun(about, earlier)
