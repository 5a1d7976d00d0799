"""The record of a run (`gem.training.record`), put together from what the parts of OpenRLHF know.

The experience maker knows the episodes of an iteration, OpenRLHF's tracker its losses and times;
both live in one process. Evaluation episodes end in the engines' processes, which leave them in a
file for the tracker to collect: `record_dir` must be the same folder for all.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gem.training.metrics import episode_metrics
from gem.training.record import RUN, Recorder, TrainedRow
from gem.trajectory import Trajectory
from gem_openrlhf import __version__, check_openrlhf

RECORDED = {
    "loss": "policy_loss",
    "grad_norm": "actor_grad_norm",
    "entropy": "entropy_loss",
    "lr": "actor_lr",
    "kl": "kl",
    "clip_fraction": "ppo_clip_ratio",
    "value_loss": "critic_loss",
    "value_grad_norm": "critic_grad_norm",
    "rollout_kl": "vllm_kl",
    "rollout_s": "timing/generation",
    "advantage_s": "timing/make_experience",
    "update_s": "timing/ppo_train",
    "sync_s": "timing/broadcast",
    "step_s": "timing/step_total",
}
"""Names in the record, and in OpenRLHF's logs."""

EVALUATED = "evaluated"


class Recording:
    """Writes the record of the run in this process."""

    def __init__(self, folder: str) -> None:
        self._recorder = Recorder(folder)
        # A launcher that knows more about the run has already written it.
        if not (self._recorder.folder / RUN).exists():
            known = {"openrlhf": check_openrlhf(), "gem-openrlhf": __version__}
            self._recorder.start({"trainer": "openrlhf", "versions": known})
        self._batch: dict[str, Any] | None = None

    def batch(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Sequence[float]] | None,
        values: Mapping[str, float],
        rows: Sequence[Sequence[TrainedRow]],
    ) -> None:
        """Keep what the experience maker knows of the iteration that begins.

        Args:
            trajectories: Its episodes.
            advantages: `[episode][turn]`; None if they are not GEM's.
            values: Its metrics.
            rows: What is trained on, `[episode][row]`.
        """
        self._batch = {
            "values": dict(values),
            "trajectories": list(trajectories),
            "advantages": advantages,
            "rows": rows if os.environ.get("GEM_RECORD_ROWS") == "1" else None,
        }

    def trained(self, step: int, logs: Mapping[str, Any]) -> None:
        """Write an iteration.

        Args:
            step: OpenRLHF's number of it, from 1.
            logs: OpenRLHF's metrics of it.

        Raises:
            RecordError: It cannot be written.
        """
        batch = self._batch
        if batch is None:
            return
        self._batch = None
        values = batch["values"]
        values |= {ours: float(logs[name]) for ours, name in RECORDED.items() if name in logs}
        if values.get("rollout_s"):
            values["tokens_per_s"] = values["sampled_tokens"] / values["rollout_s"]
        self._recorder.metrics(step - 1, values)
        self._recorder.episodes(
            step - 1, batch["trajectories"], batch["advantages"], rows=batch["rows"]
        )

    def evaluated(self, step: int) -> None:
        """Collect and write the evaluation episodes played since the last call.

        Args:
            step: Number of updates that the evaluated weights have had.

        Raises:
            RecordError: They cannot be written.
        """
        played: dict[str, list[Trajectory]] = {}
        for file in sorted((self._recorder.folder / EVALUATED).glob("*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                trajectory = Trajectory.from_dict(entry["trajectory"])
                played.setdefault(entry["name"], []).append(trajectory)
            file.unlink()
        for name, trajectories in played.items():
            trajectories.sort(key=lambda trajectory: trajectory.task.seed)
            split = f"eval:{name}"
            self._recorder.metrics(step, episode_metrics(trajectories), split)
            self._recorder.episodes(step, trajectories, split=split)


@functools.cache
def recording(folder: str) -> Recording:
    """The record of this process's run."""
    return Recording(folder)


def keep_evaluated(folder: str, name: str, trajectory: Trajectory) -> None:
    """Leave an evaluation episode for the process that writes the record."""
    path = Path(folder) / EVALUATED / f"{os.uname().nodename}-{os.getpid()}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"name": name, "trajectory": trajectory.to_dict()})
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
