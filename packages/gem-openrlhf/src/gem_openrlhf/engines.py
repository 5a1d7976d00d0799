"""A vLLM engine that dies while weights are sent to it ends the run, and is named."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gem_train.ray import call_while_alive


def install(module: ModuleType) -> None:
    """Have the engines watched while OpenRLHF sends them weights."""
    trainer = module.BasePPOTrainer
    original = trainer.broadcast_to_vllm

    def broadcast_to_vllm(self: Any) -> None:
        call_while_alive(lambda: original(self), self.vllm_engines, engine="llm")

    # Trainers reach Ray's workers by value, with methods of this class that are looked up there.
    trainer.broadcast_to_vllm = broadcast_to_vllm
