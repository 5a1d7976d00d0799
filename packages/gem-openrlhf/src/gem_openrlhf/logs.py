"""OpenRLHF's TensorBoard tracker, which also finishes the entries of the record."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from openrlhf.utils.logging_utils import TensorboardLogger

from gem_openrlhf.record import ITERATIONS, recording, write_evaluated
from gem_openrlhf.settings import load_settings


class GemTensorboardLogger(TensorboardLogger):  # type: ignore[misc]
    """The tracker of `--logger.tensorboard_dir`."""

    def __init__(self, args: Any) -> None:
        """Find out where the record goes."""
        super().__init__(args)
        self._recording = recording(load_settings(args.train.agent_func_path))
        # `gem_openrlhf.dataset` has counted them before OpenRLHF makes its trackers.
        self._asked = int(getattr(args, ITERATIONS, 0))
        # OpenRLHF logs parts of the loss: neither the share of the KL penalty nor the loss that
        # balances the experts of a model.
        penalised = args.algo.kl.use_loss and args.algo.kl.init_coef > 0
        self._incomplete = penalised or args.actor.aux_loss_coef > 0
        self._entropy_coef = args.actor.entropy_coef or 0.0

    def log_train(self, global_step: int, logs_dict: Mapping[str, Any]) -> None:
        """Log and record an iteration."""
        super().log_train(global_step, logs_dict)
        metrics = {}
        if "policy_loss" in logs_dict and not self._incomplete:
            metrics["loss"] = float(logs_dict["policy_loss"])
            if self._entropy_coef:
                metrics["loss"] -= self._entropy_coef * float(logs_dict["entropy_loss"])
        self._recording.write_iteration(global_step - 1, logs_dict, metrics=metrics)

    def log_eval(self, global_step: int, logs_dict: Mapping[str, Any]) -> None:
        """Log and record an evaluation."""
        super().log_eval(global_step, logs_dict)
        write_evaluated(self._recording, global_step)

    def close(self) -> None:
        """Close; OpenRLHF does it when its loop has ended.

        Raises:
            UnfinishedError: Fewer iterations are recorded than were asked for.
        """
        with self._recording.to_the_end(lambda: self._asked):
            super().close()


def install(module: ModuleType) -> None:
    """Replace the tracker in its module."""
    module.TensorboardLogger = GemTensorboardLogger  # type: ignore[attr-defined]
