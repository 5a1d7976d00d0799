"""Loaded by `import verl` in every process (entry-point group `verl.plugins`); registers our hooks.

Each hook is imported right after the verl module that keeps its registry, in the processes that
use that module: the engine's and the storage's processes, which do not, start seconds faster.

verl hides what a plugin raises, and would later only say that a name is unknown. What goes wrong
here is therefore a warning that names the cause; `python -m gem_verl.doctor` says the same.
"""

from __future__ import annotations

import importlib
import warnings
from functools import partial
from types import ModuleType

from gem_train.imports import after_import
from gem_verl import check_verl

HOOKS = {
    "verl.trainer.ppo.core_algos": "gem_verl.advantage",
    "verl.utils.tensordict_utils": "gem_verl.positions",
    "verl.workers.rollout.replica": "gem_verl.registry",
    "verl.experimental.agent_loop.agent_loop": "gem_verl.rollout",
    "verl.trainer.ppo.v1.trainer_sync": "gem_verl.trainer",
}
"""verl module: our module that registers something there. (Of verl's trainer modules the named one
is imported last, when those that ours extends are complete.)"""

FAILED: dict[str, str] = {}
"""Hooks that are missing in this process, and why."""


class GemVerlWarning(UserWarning):
    """GEM is not, or only partly, available in this verl process."""


def load_hook(hook: str, module: ModuleType) -> None:
    """Import one of our modules; if that fails, say so and remember the reason.

    Args:
        hook: Its name.
        module: verl's, which has just been imported.
    """
    try:
        importlib.import_module(hook)
    except Exception as error:
        _report({hook: f"{type(error).__name__}: {error}"})


def load() -> None:
    """Check verl's version and see to it that every hook gets loaded."""
    try:
        check_verl()
    except Exception as error:
        _report(dict.fromkeys(HOOKS.values(), str(error)))
        return
    for module, hook in HOOKS.items():
        after_import(module, partial(load_hook, hook))


def _report(reasons: dict[str, str]) -> None:
    FAILED.update(reasons)
    for reason in dict.fromkeys(reasons.values()):
        hooks = ", ".join(hook for hook in reasons if reasons[hook] == reason)
        warnings.warn(f"gem-verl is not active ({hooks}): {reason}", GemVerlWarning, stacklevel=3)


load()
