"""The record of a run (`gem_train.record`), on rank 0, put together from what RL2 logs.

RL2 logs through `wandb.log(values, step=...)`, also without Weights & Biases, and the last entry
of a step is the time of its weight transfer; an evaluation follows that.
"""

from __future__ import annotations

from typing import Any

import wandb

from gem_rl2.release import Installation
from gem_rl2.rollout import Rollouts
from gem_rl2.version import __version__
from gem_train.checkpoints import Checkpoint, Checkpoints
from gem_train.recording import Names, RunRecording

RECORDED: Names = {
    "loss": "actor/loss",
    "grad_norm": "actor/grad_norm",
    "entropy": "actor/entropy",
    "clip_fraction": "actor/clip_ratio",
    "value_loss": "critic/loss",
    "value_grad_norm": "critic/grad_norm",
    "rollout_s": "timing/rollout",
    "advantage_s": "timing/compute_advantages",
    "update_s": "timing/update_actor",
    "sync_s": "timing/update_rollout",
    "kl": "actor/kl",
}
"""Names in the record, and in RL2's logs."""
DOUBLE = ("critic/loss", "critic/grad_norm")
"""Logged at twice the record's size: RL2's loss of values lacks the factor of a half."""

LAST, PLAYED = "timing/update_rollout", "timing/rollout"


def record_logs(rollouts: Rollouts, rl2: Installation) -> RunRecording:
    """Open the record, and have it written from what RL2 gives to `wandb.log`.

    A checkpoint is listed once the record has all that was before it; RL2 saves it earlier.

    Args:
        rollouts: Its evaluation episodes are taken out once they are written.
        rl2: What is installed.

    Raises:
        RecordError: The folder cannot be used; later, from `wandb.log`, it cannot be written.
    """
    versions = {"rl2": str(rl2), "gem-rl2": __version__}
    about = {"trainer": "rl2", "versions": versions}
    settings, keys, evaluated = rollouts.settings, rollouts.keys, rollouts.evaluated
    recording = RunRecording(settings.record_dir, about, RECORDED, **settings.recorded)
    log, checkpoints, trained = wandb.log, Checkpoints(keys.save_dir), 0

    def log_too(values: Any, *args: Any, step: int, **kwargs: Any) -> None:
        nonlocal trained
        log(values, *args, step=step, **kwargs)
        recording.log({k: v / 2 if k in DOUBLE else v for k, v in values.items()})
        if LAST in values and recording.write_iteration(step - 1):
            trained = step
        if PLAYED in values:
            for name in sorted(evaluated):
                recording.keep_evaluated(name, evaluated.pop(name))
            recording.write_evaluated(step)
        ends = PLAYED if keys.test_freq and step % keys.test_freq == 0 else LAST
        if ends in values and step == trained and keys.save_freq and step % keys.save_freq == 0:
            checkpoints.add(Checkpoint(step, f"step{step}"))

    wandb.log = log_too
    return recording
