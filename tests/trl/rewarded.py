"""`python -m gem_trl.train` with a reward function beside the environment's rewards."""

from __future__ import annotations

import sys
from typing import Any

import gem_trl.trainer
from gem_trl.train import main


def brevity(completions: list[Any], **_: Any) -> list[float]:
    """The shorter the last message, the better."""
    return [-0.1 * len(messages[-1]["content"]) for messages in completions]


class Rewarded(gem_trl.trainer.GemGRPOTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, reward_funcs=brevity, **kwargs)


if __name__ == "__main__":
    gem_trl.trainer.GemGRPOTrainer = Rewarded  # type: ignore[misc]
    sys.exit(main(sys.argv[1:]))
