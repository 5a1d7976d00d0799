"""GEM in verl: environments, multi-turn rollouts and turn-level advantages.

Installing the package is enough: verl loads `gem_verl.plugin` in every process through its own
entry-point group, and the launcher stays `python -m verl.trainer.main_ppo`. See docs/verl.md.
"""

from __future__ import annotations

from gem_train.doctor import Requirement

__version__ = "0.1.0"

SUPPORTED_VERL = ">=0.9.1,<0.10"
"""Versions of verl that this package works with."""

TRAINER = Requirement(
    "verl",
    SUPPORTED_VERL,
    by=f"gem-verl {__version__}",
    install=f'pip install "verl[vllm]{SUPPORTED_VERL}"',
)

check_verl = TRAINER.check
"""Returns the version of the installed verl, or raises what `Requirement.check` raises."""

__all__ = ["SUPPORTED_VERL", "TRAINER", "__version__", "check_verl"]
