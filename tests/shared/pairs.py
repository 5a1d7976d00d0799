"""Runs that have one, or two, of the features whose pairs adapters judge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec

RUN = RunSpec.from_mapping(
    {
        "name": "pairs",
        "env": {"id": "game:GuessTheNumber-v0-easy"},
        "policy": {
            "model": "m",
            "prompt_tokens": 64,
            "response_tokens": 64,
            "turn_tokens": 8,
        },
        "algorithm": {"advantage": "rebn"},
        "optimizer": {"lr": 1e-6},
        "training": {"iterations": 2, "tasks": 32, "precision": "bf16"},
    }
)
GIVEN: dict[str, dict[str, Any]] = {
    "nodes": {"nodes": 2},
    "gpus_per_node": {"gpus_per_node": 4},
    "engine.tensor_parallel": {"engine": {"tensor_parallel": 2}, "gpus_per_node": 4},
    "engine.engines": {"engine": {"engines": 1}},
    "engine.memory_share": {"engine": {"memory_share": 0.4}},
    "learner.tensor_parallel": {"learner": {"tensor_parallel": 2}, "gpus_per_node": 4},
    "learner.sequence_parallel": {"learner": {"sequence_parallel": 2}, "gpus_per_node": 4},
    "learner.pass_tokens": {"learner": {"pass_tokens": 512}},
    "learner.checkpointing": {"learner": {"checkpointing": True}},
    "learner.offload": {"learner": {"offload": True}},
    "sdpa": {"learner": {"attention": "sdpa"}},
    "flash attention": {"learner": {"attention": "flash_attention_2"}},
    "executor": {"executor": "process:2"},
    "checkpoint_every": {"checkpoint_every": 5},
    "logger": {"logger": "wandb"},
    "critic": {},
    "initial policy": {},
    "fp32": {},
}
"""Tables of the hardware. Without a word of it, activations are kept."""
ALGORITHM = {"critic": {"advantage": "gae"}, "initial policy": {"kl_coef": 0.01}}


SEVERAL = [name for name, tables in GIVEN.items() if "gpus_per_node" in tables]
"""Features of several GPUs, which have that feature, too."""


def run_with(*names: str) -> tuple[RunSpec, Hardware, str]:
    """Return a run with these features, and the implementation of attention that it names.

    That is flash attention, unless the features say otherwise or compute in fp32.
    """
    made: dict[str, Any] = {"engine": {}, "learner": {"checkpointing": False}}
    spec = RUN
    for name in names:
        for key, value in GIVEN[name].items():
            made[key] = {**made[key], **value} if isinstance(value, dict) else value
        spec = replace(spec, algorithm=replace(spec.algorithm, **ALGORITHM.get(name, {})))
        if name == "fp32":
            spec = replace(spec, training=replace(spec.training, precision="fp32"))
    made["learner"].setdefault("attention", "sdpa" if "fp32" in names else "flash_attention_2")
    size = made["engine"].get("tensor_parallel", 1)
    if "engines" in made["engine"]:  # as many as the GPUs allow
        gpus = made.get("nodes", 1) * made.get("gpus_per_node", 1)
        made["engine"]["engines"] = gpus // size
    hardware = Hardware.from_mapping(made)
    return spec, hardware, str(hardware.learner.attention)
