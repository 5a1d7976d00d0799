"""GEM in TRL: environments, multi-turn rollouts and turn-level advantages.

A training script stays what it is with TRL; the trainer's class and the dataset are GEM's:

    from gem_trl import GemGRPOTrainer, GemSettings, task_dataset

    trainer = GemGRPOTrainer(
        model="Qwen/Qwen3-1.7B",
        args=GRPOConfig(...),
        train_dataset=task_dataset("gem:game:GuessTheNumber-v0?n=25600&seed=0"),
        gem=GemSettings(advantage="rebn", turn_tokens=512),
    )
    trainer.train()

See docs/trl.md.
"""

from __future__ import annotations

from gem_train.doctor import Requirement
from gem_train.imports import lazy

__version__ = "0.1.0"

SUPPORTED_TRL = ">=1.15,<2"
"""Versions of TRL that this package works with."""

TRAINER = Requirement(
    "trl", SUPPORTED_TRL, by=f"gem-trl {__version__}", install=f'pip install "trl{SUPPORTED_TRL}"'
)

check_trl = TRAINER.check
"""Returns the version of the installed TRL, or raises what `Requirement.check` raises."""

_PLACES = {
    "GemAsyncGRPOTrainer": "async_trainer",
    "GemGRPOTrainer": "trainer",
    "GemSettings": "settings",
    "eval_datasets": "dataset",
    "task_dataset": "dataset",
}

__all__ = ["SUPPORTED_TRL", "TRAINER", "__version__", "check_trl", *_PLACES]

__getattr__ = lazy(__name__, _PLACES)
