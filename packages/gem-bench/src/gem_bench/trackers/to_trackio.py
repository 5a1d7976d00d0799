"""trackio: a local database, or the Space or server that trackio's environment variables name."""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Sequence
from typing import Any

from gem_bench.trackers import About, Point


class TrackioRun:
    """A run of trackio, which is opened for each batch of points: its end waits until all is sent.

    Runs of trackio are named, and found again by their names.
    """

    def __init__(self, about: About, earlier: str | None) -> None:
        import trackio

        self._about = about
        # A name that a project has already would be another run's.
        self.id = earlier or f"{about.name}-{uuid.uuid4().hex[:6]}"
        self.place = (
            f"project {about.project}, run {self.id}: trackio show --project {about.project}"
        )
        self._trackio: Any = trackio

    def write(self, points: Sequence[Point]) -> None:
        """See `TrackedRun`."""
        with contextlib.redirect_stdout(io.StringIO()):
            run = self._trackio.init(
                project=self._about.project,
                name=self.id,
                group=self._about.group,
                config=dict(self._about.config),
                # Nobody else has its name, and an earlier process may have failed to begin it.
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            for point in points:
                run.log(dict(point.values), step=point.step)
            run.finish()

    def missing(self, point: Point) -> Point | None:
        """See `TrackedRun`."""
        return None

    def close(self, status: str) -> None:
        """See `TrackedRun`."""


def open_run(about: About, earlier: str | None) -> TrackioRun:
    """See `OpenRun`."""
    return TrackioRun(about, earlier)
