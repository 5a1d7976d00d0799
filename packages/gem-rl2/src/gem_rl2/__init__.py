"""GEM in RL2: environments, multi-turn rollouts and turn-level advantages.

RL2's launcher stays what it is, `torchrun -m RL2.trainer.ppo`, and so do its keys. Two things
switch GEM on:

    rollout.env_path=$(python -m gem_rl2 env-path) +gem.advantage=rebn

See docs/rl2.md.
"""

from __future__ import annotations

from gem.training.doctor import Requirement

__version__ = "0.1.0"

SUPPORTED_RL2 = "==0.0.2"
"""Versions of RL2 that this package works with: the release, and the checkouts that have kept its
number; `gem_rl2.release` tells them apart."""

TRAINER: Requirement = Requirement(
    "rl-square",
    SUPPORTED_RL2,
    by=f"gem-rl2 {__version__}",
    install='pip install "gem-rl2[rl2]"',
)

# They use what is above.
from gem_rl2.release import Installation, check_rl2  # noqa: E402
from gem_rl2.settings import Settings  # noqa: E402

__all__ = ["SUPPORTED_RL2", "TRAINER", "Installation", "Settings", "__version__", "check_rl2"]
