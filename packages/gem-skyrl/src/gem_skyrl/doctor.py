"""`python -m gem_skyrl.doctor`: does GEM work with this fake-trainer, and if not, why?"""

from __future__ import annotations

import sys
from functools import partial

from gem_skyrl.seams import SEAMS
from gem_skyrl.version import TRAINER
from gem_train import doctor
from gem_train.seams import check_seams


def check_hooks() -> str:
    """fake-trainer can be imported, and has what is extended or called."""
    doctor.importable("gem_skyrl.trainer", what="fake-trainer with GEM's class")
    return check_seams(TRAINER, SEAMS)


CHECKS: tuple[doctor.Check, ...] = (
    TRAINER.describe,
    partial(doctor.entry_point, "gem-skyrl", "skyrl"),
    check_hooks,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor.doctor(CHECKS))
