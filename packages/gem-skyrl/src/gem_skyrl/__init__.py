"""GEM in SkyRL: environments, multi-turn rollouts and turn-level advantages.

SkyRL's launcher stays what it is; one word of its command line switches GEM on:

    python -m skyrl.train.entrypoints.main_base \\
        trainer.override_entrypoint=gem_skyrl.entrypoint gem.advantage=rebn ...

See docs/skyrl.md.
"""

from __future__ import annotations

from gem_skyrl.settings import Settings
from gem_skyrl.version import SUPPORTED_SKYRL, TRAINER, __version__, check_skyrl

__all__ = ["SUPPORTED_SKYRL", "TRAINER", "Settings", "__version__", "check_skyrl"]
