"""GEM in RL2: environments, multi-turn rollouts and turn-level advantages.

RL2's launcher stays what it is, `torchrun -m RL2.trainer.ppo`, and so do its keys. Two things
switch GEM on:

    rollout.env_path=$(python -m gem_rl2 env-path) +gem.advantage=rebn

See docs/rl2.md.
"""

from __future__ import annotations

from gem_rl2.release import Installation, check_rl2
from gem_rl2.settings import Settings
from gem_rl2.version import SUPPORTED_RL2, TRAINER, __version__

__all__ = ["SUPPORTED_RL2", "TRAINER", "Installation", "Settings", "__version__", "check_rl2"]
