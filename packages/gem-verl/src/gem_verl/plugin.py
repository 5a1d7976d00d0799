"""Loaded by `import verl` in every process (entry-point group `verl.plugins`); registers our hooks.

verl hides what a plugin raises, and would later only say that a name is unknown. What goes wrong
here is therefore a warning that names the cause; `python -m gem_verl.doctor` says the same.
"""

from __future__ import annotations

import importlib
import warnings

from gem_verl import check_verl

HOOKS = ("gem_verl.advantage", "gem_verl.rollout", "gem_verl.trainer")
"""Modules that register something when they are imported."""


class GemVerlWarning(UserWarning):
    """GEM is not, or only partly, available in this verl process."""


def load() -> dict[str, str]:
    """Import all hooks; return the reason for each that cannot be imported."""
    failed = {}
    try:
        check_verl()
    except Exception as error:
        failed = dict.fromkeys(HOOKS, str(error))
    else:
        for hook in HOOKS:
            try:
                importlib.import_module(hook)
            except Exception as error:
                failed[hook] = f"{type(error).__name__}: {error}"
    for reason in dict.fromkeys(failed.values()):
        hooks = ", ".join(hook for hook in failed if failed[hook] == reason)
        warnings.warn(f"gem-verl is not active ({hooks}): {reason}", GemVerlWarning, stacklevel=2)
    return failed


FAILED = load()
"""Hooks that are missing in this process, and why."""
