"""The record of a run (`gem.training.record`), on rank 0, put together from what RL2 logs.

RL2 logs through `wandb.log(values, step=...)`, also without Weights & Biases, and the last entry
of a step is the time of its weight transfer; an evaluation follows that.
"""

from __future__ import annotations

from typing import Any

import wandb

from gem.packed import PackedTrajectory
from gem.training.recording import Names, RunRecording
from gem_rl2.release import Installation
from gem_rl2.settings import Settings
from gem_rl2.version import __version__

RECORDED: Names = {
    "loss": "actor/loss",
    "grad_norm": "actor/grad_norm",
    "entropy": "actor/entropy",
    "clip_fraction": "actor/clip_ratio",
    "rollout_kl": "actor/llm_old_approx_kl",
    "value_loss": "critic/loss",
    "value_grad_norm": "critic/grad_norm",
    "rollout_s": "timing/rollout",
    "advantage_s": "timing/compute_advantages",
    "update_s": "timing/update_actor",
    "sync_s": "timing/update_rollout",
    # The two forms of RL2 have a name each for the divergence from the initial policy.
    "kl": ("actor/kl", "actor/old_ref_approx_kl"),
}
"""Names in the record, and in RL2's logs."""

LAST, PLAYED = "timing/update_rollout", "timing/rollout"


def record_logs(
    settings: Settings, rl2: Installation, evaluated: dict[str, list[PackedTrajectory]]
) -> RunRecording:
    """Open the record, and have it written from what RL2 gives to `wandb.log`.

    Args:
        settings: With `record_dir` and `record`.
        rl2: What is installed.
        evaluated: Evaluation episodes by name, which are taken out once they are written.

    Raises:
        RecordError: The folder cannot be used; later, from `wandb.log`, it cannot be written.
    """
    versions = {"rl2": str(rl2), "gem-rl2": __version__}
    about = {"trainer": "rl2", "versions": versions}
    recording = RunRecording(settings.record_dir, about, RECORDED, record=settings.record)
    log = wandb.log

    def log_too(values: Any, *args: Any, step: int, **kwargs: Any) -> None:
        log(values, *args, step=step, **kwargs)
        recording.log(values)
        if LAST in values:
            recording.write_iteration(step - 1)
        if PLAYED in values:
            for name in sorted(evaluated):
                recording.write_evaluation(step, name, evaluated.pop(name), sort=True)

    wandb.log = log_too
    return recording
