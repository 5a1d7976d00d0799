"""The record of a run (`gem_train.record`): SkyRL's tracker knows when an iteration is complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from skyrl.train.utils.tracking import Tracking

from gem_train.recording import Names, RunRecording

RECORDED: Names = {
    "loss": "policy/final_loss",
    "grad_norm": "policy/grad_norm",
    "entropy": "policy/policy_entropy",
    "lr": "policy/policy_lr",
    "kl": ("policy/policy_kl", "loss/avg_kl"),
    "clip_fraction": "policy/loss_metrics/clip_ratio",
    "value_loss": "critic/critic_loss",
    "value_grad_norm": "critic/grad_norm",
    "rollout_s": "timing/generate",
    "advantage_s": "timing/compute_advantages_and_returns",
    "update_s": ("timing/train_critic_and_policy", "timing/run_training"),
    "sync_s": "timing/sync_weights",
    "step_s": "timing/step",
}
"""Names in the record, and in SkyRL's logs."""

DONE = "trainer/global_step"
"""SkyRL logs it of a complete iteration; not of what a run that failed had begun."""


class GemTracking(Tracking):  # type: ignore[misc]
    """SkyRL's tracker, which also writes the record."""

    recording: RunRecording
    timings: Callable[[], Mapping[str, float]]
    """Returns SkyRL's times of the iteration under way, which its asynchronous loop logs too late.
    Both are set by the experiment before anything is logged."""

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """Log, and record the iteration and the evaluations that are complete.

        Args:
            data: SkyRL's metrics.
            step: Number of updates so far.
            commit: Whether nothing more is logged for this step.
        """
        super().log(data, step, commit)
        if DONE in data:
            self.write(data, step)
        self.recording.write_evaluated(step)

    def write(self, data: Mapping[str, Any], step: int) -> None:
        """Record an iteration, unless it is recorded already.

        Args:
            data: SkyRL's metrics.
            step: Number of updates so far.
        """
        times = {f"timing/{name}": seconds for name, seconds in self.timings().items()}
        numbers = {k: v for k, v in {**times, **data}.items() if isinstance(v, int | float)}
        self.recording.write_iteration(step - 1, numbers)
