"""verl's registry of rollout servers: under the name `vllm` it has `gem_verl.server.GemReplica`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from verl.workers.rollout.replica import RolloutReplicaRegistry


def load() -> Any:
    """Return the replica; vLLM is imported only now."""
    return import_module("gem_verl.server").GemReplica


RolloutReplicaRegistry.register("vllm", load)
