"""All forward passes of a step with dynamic batches count in its gradient.

OpenRLHF tells DeepSpeed that each of them is a step of its own, and then lets it step after the
last. DeepSpeed's ZeRO optimisers keep only the gradients of that one, unless DeepSpeed is told that
its caller decides where a step ends.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def install(module: ModuleType) -> None:
    """Have DeepSpeed add up the gradients of all passes until OpenRLHF steps."""
    strategy = module.DeepspeedStrategy
    original = strategy.get_ds_train_config

    def get_ds_train_config(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        config: dict[str, Any] = original(self, *args, **kwargs)
        if self.use_dynamic_batch:
            # An older DeepSpeed, which would ignore the key, has no constant for it.
            from deepspeed.runtime.constants import MANAGED_GRADIENT_ACCUMULATION

            config[MANAGED_GRADIENT_ACCUMULATION] = False
        return config

    strategy.get_ds_train_config = get_ds_train_config
