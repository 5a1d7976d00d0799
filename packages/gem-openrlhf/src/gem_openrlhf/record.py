"""The record of a run (`gem_train.record`), put together from what the parts of OpenRLHF know.

The experience maker knows the episodes of an iteration, OpenRLHF's tracker its losses and times;
both live in one process. Evaluation episodes end in the engines' processes, which leave them in a
file for the tracker to collect: `record_dir` must be the same folder for all.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

from gem.errors import RecordError
from gem.json_lines import parse_as
from gem.trajectory import Trajectory
from gem_openrlhf.version import TRAINER
from gem_train.packed import PackedTrajectory
from gem_train.recording import RunRecording
from gem_train.settings import Settings

RECORDED = {
    "grad_norm": "actor_grad_norm",
    "entropy": "entropy_loss",
    "lr_next": "actor_lr",
    "kl": "kl",
    "clip_fraction": "ppo_clip_ratio",
    "tis_fraction": "is_filter_ratio",
    "value_loss": "critic_loss",
    "value_grad_norm": "critic_grad_norm",
    "rollout_s": "timing/generation",
    "advantage_s": "timing/make_experience",
    "update_s": "timing/ppo_train",
    "sync_s": "timing/broadcast",
    "step_s": "timing/step_total",
}
"""Names in the record, and in OpenRLHF's logs."""

EVALUATED = "evaluated"
ITERATIONS = "gem_iterations"
"""Attribute of OpenRLHF's arguments: how many iterations the run was asked for."""


@functools.cache
def _recording(folder: str | None, record: str | None, info: tuple[str, ...]) -> RunRecording:
    return RunRecording(folder, TRAINER.about(), RECORDED, record=record, info=info)


def recording(settings: Settings | None) -> RunRecording:
    """Return the record of this process's run; without settings nothing is written."""
    if settings is None:
        return _recording(None, None, ())
    return _recording(settings.record_dir, settings.record, tuple(settings.info_metrics.split()))


def write_evaluated(record: RunRecording, step: int) -> None:
    """Collect and write the evaluation episodes played since the last call.

    Args:
        record: Of `recording`; without a folder nothing is done.
        step: Number of updates that the evaluated weights have had.

    Raises:
        RecordError: They cannot be written.
    """
    if record.folder is None:
        return
    for file in sorted((record.folder / EVALUATED).glob("*.jsonl")):
        lines = file.read_bytes().splitlines()
        for n, line in enumerate(lines, 1):
            name, text = parse_as(line, tuple[str, str], f"{file}, line {n}", RecordError)
            record.keep_evaluated(name, [PackedTrajectory.from_text(text)])
        file.unlink()
    record.write_evaluated(step)


def keep_evaluated(folder: str, name: str, trajectory: Trajectory) -> None:
    """Leave an evaluation episode for the process that writes the record."""
    path = Path(folder) / EVALUATED / f"{os.uname().nodename}-{os.getpid()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps([name, PackedTrajectory.of(trajectory).text])
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
