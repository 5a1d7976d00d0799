"""GEM in fake-trainer: environments, multi-turn rollouts and turn-level advantages."""

from __future__ import annotations

from gem_template.version import SUPPORTED_TEMPLATE, TRAINER, __version__

__all__ = ["SUPPORTED_TEMPLATE", "TRAINER", "__version__"]
