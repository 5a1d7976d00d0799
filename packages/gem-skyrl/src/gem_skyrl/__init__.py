"""GEM in fake-trainer: environments, multi-turn rollouts and turn-level advantages."""

from __future__ import annotations

from gem_skyrl.version import SUPPORTED_SKYRL, TRAINER, __version__

__all__ = ["SUPPORTED_SKYRL", "TRAINER", "__version__"]
