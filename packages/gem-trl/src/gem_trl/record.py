"""What TRL logs of an iteration, for the record of a run (`gem.training.record`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gem.training.recording import RunRecording
from gem_trl import __version__, check_trl

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

SUMMED = ("step_time",)
"""Logs of which an iteration's is the sum over its optimiser steps, not the mean."""


def recording(folder: str | None) -> RunRecording:
    """Return the record of a run; without a folder nothing is written.

    Raises:
        RecordError: The folder cannot be created or written.
    """
    versions = {"trl": check_trl(), "gem-trl": __version__}
    return RunRecording(folder, {"trainer": "trl", "versions": versions}, RECORDED)


class StepLogs:
    """The logs of an iteration's optimiser steps."""

    def __init__(self) -> None:
        self._steps: list[dict[str, float]] = []

    def add(self, logs: Mapping[str, Any]) -> None:
        """Keep what TRL logs after a step; what it does not know is None."""
        names = RECORDED.values()
        self._steps.append({n: float(logs[n]) for n in names if logs.get(n) is not None})

    def take(self) -> dict[str, float]:
        """Return the iteration's logs under TRL's names, and begin anew."""
        steps, self._steps = self._steps, []
        found = {}
        for name in RECORDED.values():
            values = [step[name] for step in steps if name in step]
            if values:
                found[name] = sum(values) / (1 if name in SUMMED else len(values))
        return found
