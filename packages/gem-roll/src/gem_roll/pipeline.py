"""`GemAgenticPipeline`: named in ROLL's YAML as `pipeline_cls`.

ROLL has no registry of advantage estimators, and the loop of its pipeline is one long method. So
the module-level function that this method calls is replaced, in the driver, by one that reads the
turns of the rows; the record is written from what the pipeline logs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from roll.distributed.scheduler import initialize
from roll.distributed.scheduler.protocol import DataProto
from roll.pipeline.agentic import agentic_pipeline

from gem.errors import ConfigurationError
from gem_roll import rows
from gem_roll.checkout import check_roll
from gem_roll.settings import check_config
from gem_roll.version import SUPPORTED_ROLL, __version__
from gem_train.experiment.metrics import episode_metrics
from gem_train.recording import Names, RunRecording
from gem_train.settings import check_episodes

RECORDED: Names = {
    "loss": "actor/total_loss@sum",
    "grad_norm": "actor_train/grad_norm",
    "lr": "actor/lr",
    "entropy": "critic/entropy/mean",
    "clip_fraction": "actor/clipfrac@sum",
    "value_loss": "critic/loss",
    "value_grad_norm": "critic/grad_norm",
    "rollout_s": "time/step_rollout",
    "advantage_s": "time/step_adv",
    "update_s": "time/step_train",
    "sync_s": "time/step_model_update",
}
"""Names in the record, and in ROLL's metrics."""
KL = {"kl": "actor/kl_loss@sum"}
"""Without a reference model ROLL logs a divergence from nothing under this name."""


class GemAgenticPipeline(agentic_pipeline.AgenticPipeline):  # type: ignore[misc]
    """ROLL's agentic pipeline with GEM's advantages, evaluations and record."""

    def __init__(self, pipeline_config: Any) -> None:
        """Check the configuration before any model is loaded; then let ROLL begin.

        Raises:
            ConfigurationError: The configuration contradicts itself, or ROLL has joined a Ray
                cluster that nobody asked for.
            UnsupportedVersionError: It is another ROLL.
        """
        check_roll(Path(agentic_pipeline.__file__).parents[3])
        check_cluster()
        self._gem = check_config(pipeline_config)
        settings = self._settings = self._gem[pipeline_config.train_env_manager.tags[0]]
        about = {"trainer": "roll", "versions": {"roll": SUPPORTED_ROLL, "gem-roll": __version__}}
        names = {**RECORDED, **(KL if pipeline_config.use_kl_loss else {})}
        self._recording = RunRecording(settings.record_dir, about, names, **settings.recorded)
        super().__init__(pipeline_config)
        self._check_whole_batch()
        agentic_pipeline.agentic_compute_advantage = self._compute_advantage
        self._log, self.tracker.log = self.tracker.log, self._log_and_record

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Train to the end; see ROLL's method.

        Raises:
            UnfinishedError: Fewer iterations are recorded than were asked for, or something called
                `sys.exit()`.
        """
        with self._recording.to_the_end(lambda: int(self.pipeline_config.max_steps)):
            return super().run(*args, **kwargs)

    def _check_whole_batch(self) -> None:
        """Let ROLL itself say whether it would copy or delete rows of a batch."""
        size = self.pipeline_config.rollout_batch_size
        batch = DataProto.from_dict({"input_ids": torch.zeros(size, 1)})
        if len(self.adjust_batch(batch, mode="copy")) != size:
            raise ConfigurationError(
                "rollout_batch_size: ROLL would copy or delete episodes: it is no multiple of what "
                f"a worker's infer_batch_size or optimiser step takes at once, got {size}"
            )

    def _compute_advantage(self, data: Any, gamma: float, lambd: float, **_: Any) -> Any:
        """Take the place of ROLL's function of that name."""
        episodes = rows.read(data)
        per_turn = rows.compute(self._settings, data, episodes, gamma, lambd)
        drawn = self.pipeline_config.actor_infer.generating_args
        # vLLM's log-probabilities are of temperature 1.
        recomputed = self.pipeline_config.enable_old_logprobs_recompute and drawn.temperature == 1
        self._recording.keep_batch(
            [episode.trajectory for episode in episodes],
            per_turn,
            lambda: [rows.trained_rows(data, episode) for episode in episodes],
            metrics=rows.engine_metrics(data) if recomputed else {},
        )
        return data

    def val(self, global_step: int, trace_meta: Any) -> dict[str, float]:
        """Evaluate: play the validation environments; ROLL calls this in a thread of its own.

        Returns:
            ROLL's metrics: those of `gem_train.experiment.metrics` under `val/<tag>/`.

        Raises:
            RolloutError: Too many episodes failed.
        """
        asked = DataProto(meta_info={"global_step": global_step, "is_offload_states": False})
        size = self.pipeline_config.val_batch_size
        batch = ray.get(self.val_rollout_scheduler.get_batch.remote(asked, size))
        found: dict[str, float] = {}
        tags = batch.non_tensor_batch["tags"]
        for tag in (tag for tag in self._gem if tag in tags):
            read = rows.read(batch.select_idxs(np.flatnonzero(tags == tag)))
            played = [episode.trajectory for episode in read]
            check_episodes(played, self._gem[tag].max_failed_fraction, batch=f"of {tag}")
            self._recording.write_evaluation(global_step, tag.removeprefix("eval:"), played)
            metrics = episode_metrics(played, info=self._gem[tag].info_metrics.split())
            found |= {f"val/{tag}/{k}": v for k, v in metrics.items()}
        DataProto.drop(batch)
        return found

    def _log_and_record(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        """Take the place of the tracker's `log`, which ROLL calls once an iteration."""
        self._recording.write_iteration(step, values)
        self._log(values=values, step=step, **kwargs)


def check_cluster() -> None:
    """Refuse a Ray cluster of others: ROLL joins whichever one it finds on the machine.

    Raises:
        ConfigurationError: ROLL has joined one, and `RAY_ADDRESS` does not say so.
    """
    if initialize.log_monitor_listener is None and not os.environ.get("RAY_ADDRESS"):
        raise ConfigurationError(
            "ROLL has joined a Ray cluster that was running on this machine: end it (`ray stop`), "
            "or set RAY_ADDRESS=auto to use it deliberately"
        )
