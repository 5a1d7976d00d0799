"""TensorBoard: event files in the run's folder, which `tensorboard --logdir RUNS` finds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gem_bench.trackers import About, Point

FOLDER = "tensorboard"
_SUFFIX = ".gem"


class EventFiles:
    """The event files of one run; each process writes one of its own."""

    def __init__(self, about: About, earlier: str | None) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = about.folder / FOLDER
        self.id = FOLDER
        self.place = str(folder)
        self._known: set[tuple[str, int]] = set()
        if earlier is None:
            for path in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
                path.unlink()
        else:
            self._known = _scalars(folder)
        self._writer = EventFileWriter(str(folder), filename_suffix=_SUFFIX)
        self._began = time.time()
        if earlier is None:
            self._configure(about.config)

    def _configure(self, config: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        plain = {k: v if isinstance(v, bool | int | float) else str(v) for k, v in config.items()}
        self._writer.add_event(Event(wall_time=self._began, summary=hparams_pb(plain)))
        self._writer.flush()

    def write(self, points: Sequence[Point]) -> None:
        """See `TrackedRun`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [
                Summary.Value(tag=tag, simple_value=value) for tag, value in point.values.items()
            ]
            event = Event(
                wall_time=self._began + point.time_s,
                step=point.step,
                summary=Summary(value=values),
            )
            self._writer.add_event(event)
        self._writer.flush()

    def missing(self, point: Point) -> Point | None:
        """See `TrackedRun`."""
        return point.without([tag for tag in point.values if (tag, point.step) in self._known])

    def close(self, status: str) -> None:
        """See `TrackedRun`."""
        self._writer.close()


def _scalars(folder: Path) -> set[tuple[str, int]]:
    """Return tag and step of what earlier processes wrote."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={SCALARS: 0})
    found.Reload()
    return {(tag, each.step) for tag in found.Tags()[SCALARS] for each in found.Scalars(tag)}


def open_run(about: About, earlier: str | None) -> EventFiles:
    """See `OpenRun`."""
    return EventFiles(about, earlier)
