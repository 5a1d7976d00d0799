"""SkyRL's FSDP worker of the policy, whose output layer stays tied to its embeddings.

Before FSDP divides a model, SkyRL moves it to PyTorch's meta device. There every module gets a
parameter of its own, also where two modules shared one. SkyRL would train output layer and
embeddings apart, and vLLM, which knows only one matrix for both, would sample from another policy
than the one that is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from skyrl.backends.skyrl_train.distributed import fsdp_strategy
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase

from gem_skyrl.version import TRAINER
from gem_train.seams import Seam, check_seams, replaced

_STRATEGY = "skyrl.backends.skyrl_train.distributed.fsdp_strategy"
SEAMS = (
    Seam(f"{_STRATEGY}:apply_fsdp2", "model, fsdp_kwargs, config"),
    Seam(
        "skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker:FSDPPolicyWorkerBase.init_model",
        "self, model_path, num_training_steps",
    ),
)
"""What is replaced or extended in the processes of the learner."""


class GemPolicyWorkerBase(FSDPPolicyWorkerBase):  # type: ignore[misc]
    """A rank of the policy's learner."""

    def init_model(self, model_path: str, num_training_steps: int | None = None) -> Any:
        """Load the model, and tie what its configuration says is tied."""
        check_seams(TRAINER, SEAMS)
        with replaced(fsdp_strategy, "apply_fsdp2", tied(fsdp_strategy.apply_fsdp2)):
            return super().init_model(model_path, num_training_steps)


def tied(apply: Callable[..., None]) -> Callable[..., None]:
    """Return a function that ties a model's weights before `apply` divides them."""

    def apply_fsdp2(model: Any, fsdp_kwargs: Any, config: Any) -> None:
        model.tie_weights()
        apply(model, fsdp_kwargs, config)

    return apply_fsdp2


PolicyWorker = ray.remote(num_gpus=1)(GemPolicyWorkerBase)
