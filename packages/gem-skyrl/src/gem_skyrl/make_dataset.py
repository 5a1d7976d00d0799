"""`python -m gem_skyrl.make_dataset`: write a dataset file for SkyRL.

    python -m gem_skyrl.make_dataset train.jsonl 'gem:game:GuessTheNumber-v0?n=25600&seed=0'
    python -m gem_skyrl.make_dataset --eval eval.jsonl \\
        'gem:game:GuessTheNumber-v0?n=128&seed=1000000#name=same&temperature=0' \\
        'gem:game:Mastermind-v0?n=128#name=other'
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gem_skyrl.dataset import line
from gem_train.experiment.tasksets import dataset_command


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file; exit status 2 and a message if the URIs are wrong."""
    return dataset_command(line, argv, program="python -m gem_skyrl.make_dataset", trainer="SkyRL")


if __name__ == "__main__":
    sys.exit(main())
