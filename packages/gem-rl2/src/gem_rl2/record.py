"""The record of a run (`gem.training.record`), on rank 0, put together from what RL2 logs.

RL2 logs through `wandb.log(values, step=...)`, also without Weights & Biases, and the last entry
of a step is the time of its weight transfer; an evaluation follows that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from gem.training.metrics import episode_metrics
from gem.training.record import RUN, Recorder, TrainedRow
from gem.trajectory import Trajectory
from gem_rl2 import __version__
from gem_rl2.release import Installation

RECORDED = {
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
}
"""Names in the record, and in RL2's logs."""

KL = ("actor/kl", "actor/old_ref_approx_kl")
"""What the two forms of RL2 call the KL divergence to the initial policy."""
LAST, PLAYED = "timing/update_rollout", "timing/rollout"


class Recording:
    """Writes the record of the run in this process."""

    def __init__(self, folder: str, rl2: Installation) -> None:
        self._recorder = Recorder(folder)
        # A launcher that knows more about the run has already written it.
        if not (self._recorder.folder / RUN).exists():
            versions = {"rl2": str(rl2), "gem-rl2": __version__}
            self._recorder.start({"trainer": "rl2", "versions": versions})
        self._logs: dict[str, float] = {}
        self._batch: dict[str, Any] | None = None

    def batch(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Sequence[float]] | None,
        values: Mapping[str, float],
        rows: Sequence[Sequence[TrainedRow]],
    ) -> None:
        """Keep what the advantage seam knows of the iteration that is being trained.

        Args:
            trajectories: Its episodes.
            advantages: `[episode][turn]`; None if they are not GEM's.
            values: Further metrics.
            rows: What is trained on, `[episode][row]`.
        """
        self._batch = {
            "values": episode_metrics(trajectories) | dict(values),
            "trajectories": list(trajectories),
            "advantages": advantages,
            "rows": rows if os.environ.get("GEM_RECORD_ROWS") == "1" else None,
        }

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Take what RL2 logs; the last entry of a step has the iteration written.

        Args:
            step: RL2's number of the iteration, from 1.
            values: Metrics under RL2's names.

        Raises:
            RecordError: It cannot be written.
        """
        self._logs |= {k: float(v) for k, v in values.items() if isinstance(v, int | float)}
        batch = self._batch
        if LAST not in values or batch is None:
            return
        logs, self._logs, self._batch = self._logs, {}, None
        metrics = batch["values"] | {k: logs[name] for k, name in RECORDED.items() if name in logs}
        if found := [logs[name] for name in KL if name in logs]:
            metrics["kl"] = found[0]
        if metrics.get("rollout_s"):
            metrics["tokens_per_s"] = metrics["sampled_tokens"] / metrics["rollout_s"]
        self._recorder.metrics(step - 1, metrics)
        self._recorder.episodes(
            step - 1, batch["trajectories"], batch["advantages"], rows=batch["rows"]
        )

    def evaluated(self, step: int, played: Mapping[str, list[Trajectory]]) -> None:
        """Write an evaluation.

        Args:
            step: Number of updates that the evaluated weights have had.
            played: Episodes by name of the evaluation.

        Raises:
            RecordError: It cannot be written.
        """
        for name, trajectories in sorted(played.items()):
            trajectories.sort(key=lambda trajectory: trajectory.task.seed)
            split = f"eval:{name}"
            self._recorder.metrics(step, episode_metrics(trajectories), split)
            self._recorder.episodes(step, trajectories, split=split)
