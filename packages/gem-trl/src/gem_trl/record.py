"""What TRL logs of an iteration, for the record of a run (`gem_train.record`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gem_train.recording import RunRecording
from gem_train.settings import Settings
from gem_trl import TRAINER

RECORDED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "entropy": "entropy",
    "lr": "learning_rate",
    "kl": "kl",
    "clip_fraction": "clip_ratio/region_mean",
    "step_s": "step_time",
}
"""Names in the record, and in TRL's logs."""


def recording(folder: str | None, settings: Settings, weights: Mapping[str, float]) -> RunRecording:
    """Return the record of a run in a folder; without one nothing is written.

    Args:
        folder: Of the record.
        settings: Which episodes and metrics it keeps.
        weights: Of the reward functions by name; empty: there are none.

    Raises:
        RecordError: The folder cannot be created or written.
    """
    about = TRAINER.about(**({"reward_weights": dict(weights)} if weights else {}))
    return RunRecording(folder, about, RECORDED, **settings.recorded)


def of_iteration(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return an iteration's logs: means over its optimiser steps, of the time the sum.

    Args:
        steps: What TRL logs after each; what it does not know is None.
    """
    found = {}
    for name in RECORDED.values():
        values = [float(step[name]) for step in steps if step.get(name) is not None]
        if values:
            found[name] = sum(values) / (1 if name == "step_time" else len(values))
    return found
