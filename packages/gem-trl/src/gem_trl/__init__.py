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

from typing import TYPE_CHECKING, Any

from gem.training.doctor import Requirement

if TYPE_CHECKING:
    from gem_trl.dataset import eval_datasets, task_dataset
    from gem_trl.settings import GemSettings
    from gem_trl.trainer import GemGRPOTrainer

__version__ = "0.1.0"

SUPPORTED_TRL = ">=1.16,<2"
"""Versions of TRL that this package works with."""

TRAINER = Requirement(
    "trl",
    SUPPORTED_TRL,
    by=f"gem-trl {__version__}",
    install=f'pip install "trl{SUPPORTED_TRL}"',
)

check_trl = TRAINER.check
"""Returns the version of the installed TRL, or raises what `Requirement.check` raises."""

__all__ = [
    "SUPPORTED_TRL",
    "TRAINER",
    "GemGRPOTrainer",
    "GemSettings",
    "__version__",
    "check_trl",
    "eval_datasets",
    "task_dataset",
]

_MODULES = {
    "GemGRPOTrainer": "trainer",
    "GemSettings": "settings",
    "eval_datasets": "dataset",
    "task_dataset": "dataset",
}


def __getattr__(name: str) -> Any:
    # Needs TRL, which compiling a command and the doctor's first checks must not import.
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"gem_trl.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
