"""Experiment trackers that follow a run's record: TensorBoard, trackio, Weights & Biases, MLflow.

Each module opens a run of one tracker (`open_run`) and imports the tracker's package only then.
`follow.log` reads the record and decides what is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from gem.errors import ConfigurationError, MissingExtraError

NAMES = ("tensorboard", "trackio", "wandb", "mlflow")


@dataclass(frozen=True)
class Point:
    """A line of `metrics.jsonl`: what a tracker gets at one step."""

    step: int
    """The iteration."""
    values: Mapping[str, float]
    """By name: the record's name of the metric with `train/` or `eval/<name>/` before it."""
    time_s: float
    """Seconds since the record was opened."""

    def without(self, names: Collection[str]) -> Point:
        """Return the point without some values."""
        left = {name: value for name, value in self.values.items() if name not in names}
        return replace(self, values=left)


@dataclass(frozen=True)
class About:
    """What a tracker is told of a run."""

    folder: Path
    """Of the record."""
    project: str
    name: str
    group: str | None
    """Name of the experiment, which other runs may have, too."""
    config: Mapping[str, Any]
    """The RunSpec and the trainer, by dotted key."""


class TrackedRun(Protocol):
    """A run of a tracker that is open for writing."""

    id: str
    """With which it can be opened again."""
    place: str
    """Where a person finds it."""

    def write(self, points: Sequence[Point]) -> None:
        """Send points; when it returns the tracker has them."""
        ...

    def missing(self, point: Point) -> Point | None:
        """Return what the tracker lacks of a point that an earlier process may have sent.

        None if the tracker cannot say what it has.
        """
        ...

    def close(self, status: str) -> None:
        """End the run.

        Args:
            status: As in `run.json`; `running` if the run goes on.
        """
        ...


OpenRun = Callable[[About, str | None], TrackedRun]
"""Opens a new run, or goes on with one, whose id is given."""


def require(name: str) -> None:
    """Check that a tracker can be used.

    Raises:
        ConfigurationError: Its name is unknown.
        MissingExtraError: Its package is not installed; the message has the command.
    """
    if name not in NAMES:
        raise ConfigurationError(f"no tracker {name!r}; known: {', '.join(NAMES)}")
    if find_spec(name) is None:
        raise MissingExtraError(f"{name} is not installed: pip install 'gem-bench[{name}]'")


def opener(name: str) -> OpenRun:
    """Return what opens runs of a tracker.

    Raises:
        ConfigurationError, MissingExtraError: See `require`.
    """
    require(name)
    found: OpenRun = import_module(f"gem_bench.trackers.to_{name}").open_run
    return found
