"""`python -m gem_trl.train` on CPUs that accelerate takes for accelerators.

accelerate has FSDP and DeepSpeed for accelerators only: on CPUs it silently makes each process
train the whole model. Here it is told that the processes are of an accelerator, with
`ACCELERATE_TORCH_DEVICE=cpu`; its FSDP, PyTorch's, and DeepSpeed are as they are. Each process
says what its model is wrapped in, and whether it samples in step.
"""

from __future__ import annotations

import sys
from typing import Any

from accelerate.state import DistributedType, PartialState

import gem_trl.trainer
from gem_trl.train import main


class Sharded(gem_trl.trainer.GemGRPOTrainer):
    """A trainer that says how its model is held when it trains."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        model = self.model_wrapped
        stage = model.zero_optimization_stage() if self.is_deepspeed_enabled else ""
        step = "in step" if self.sampling_is_collective else "apart"
        sys.stderr.write(f"held by {type(model).__name__}{stage} {step}\n")
        return super()._generate_and_score_completions(inputs)


def _prepare_backend(self: Any, *args: Any, **kwargs: Any) -> tuple[str, DistributedType]:
    return "gloo", DistributedType.MULTI_GPU


if __name__ == "__main__":
    PartialState._prepare_backend = _prepare_backend
    gem_trl.trainer.GemGRPOTrainer = Sharded  # type: ignore[misc]
    sys.exit(main())
