"""`python -m gem_trl.train key=value ...`: train without a script of one's own.

    python -m gem_trl.train model=Qwen/Qwen3-1.7B train=gem:game:GuessTheNumber-v0 \\
        turn_tokens=512 record_dir=runs/guess trl.learning_rate=1e-6
    accelerate launch --num_processes 8 -m gem_trl.train ...

`gem_trl.config.Config` has all keys; `trl.` stands before those of GRPOConfig. With `record_dir`
the run leaves a record (`gem.training.record`), saves checkpoints, and goes on from the last one
when it is started again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gem.errors import ConfigurationError, GemError
from gem_trl import check_trl
from gem_trl.config import Config, read, trl_config


def train(config: Config) -> None:
    """Run an experiment, from its last checkpoint if it has one.

    Raises:
        ConfigurationError: A key is wrong, or TRL cannot do it.
        RecordError: The record cannot be written.
        RolloutError: Too many episodes of a batch failed.
        UnsupportedVersionError: TRL is of an unsupported version.
    """
    check_trl()
    from transformers.trainer_utils import get_last_checkpoint

    from gem_trl.dataset import eval_datasets, task_dataset
    from gem_trl.trainer import GemGRPOTrainer

    args = trl_config(config, int(os.environ.get("WORLD_SIZE", "1")))
    folder = config.checkpoints
    last = get_last_checkpoint(str(folder)) if config.save_every and folder.exists() else None
    trainer = GemGRPOTrainer(
        model=config.model,
        args=args,
        train_dataset=task_dataset(config.train_uri),
        eval_dataset=eval_datasets(*config.eval.split()) or None,
        gem=config,
    )
    trainer.train(resume_from_checkpoint=last)


def main(argv: Sequence[str] | None = None) -> int:
    """Train from the command line; exit status 2 and a message if it is impossible."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    try:
        train(read(arguments))
    except GemError as error:
        kind = "" if isinstance(error, ConfigurationError) else f"{type(error).__name__}: "
        sys.stderr.write(f"{kind}{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
