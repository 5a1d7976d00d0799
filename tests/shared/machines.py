"""The shipped hardware files, and one on which every setting has another value than the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomllib

from gem_train.experiment.hardware import Hardware

FOLDER = Path(__file__).parents[2] / "packages/gem-bench/src/gem_bench/hardware"
SHIPPED = {
    file.stem: Hardware.from_mapping(tomllib.loads(file.read_text(encoding="utf-8")))
    for file in sorted(FOLDER.glob("*.toml"))
}


def eight(native: dict[str, Any] | None = None, **tables: Any) -> Hardware:
    """Eight GPUs in one node, used otherwise than by default.

    Args:
        native: The table `native`.
        **tables: Keys of the tables `engine` and `learner` that replace these.
    """
    engine = {"memory_share": 0.35, **tables.get("engine", {})}
    learner = {
        "pass_tokens": 4096,
        "checkpointing": False,
        "offload": True,
        "attention": "sdpa",
        **tables.get("learner", {}),
    }
    return Hardware.from_mapping(
        {
            "gpus_per_node": 8,
            "checkpoint_every": 7,
            "executor": "process:8",
            "logger": "wandb",
            "engine": engine,
            "learner": learner,
            "native": native or {},
        }
    )
