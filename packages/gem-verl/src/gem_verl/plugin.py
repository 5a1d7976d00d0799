"""Loaded by `import verl` in every process (entry-point group `verl.plugins`); registers our hooks.

Each hook is imported right after the verl module that keeps its registry, in the processes that
use that module: the engine's and the storage's processes, which do not, start seconds faster.

verl hides what a plugin raises, and would later only say that a name is unknown. What goes wrong
here is therefore a warning that names the cause; `python -m gem_verl.doctor` says the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from gem_verl import check_verl

HOOKS = {
    "verl.trainer.ppo.core_algos": "gem_verl.advantage",
    "verl.experimental.agent_loop.agent_loop": "gem_verl.rollout",
    "verl.trainer.ppo.v1.trainer_sync": "gem_verl.trainer",
}
"""verl module: our module that registers something there. (Of verl's trainer modules the named one
is imported last, when those that ours extends are complete.)"""

FAILED: dict[str, str] = {}
"""Hooks that are missing in this process, and why."""


class GemVerlWarning(UserWarning):
    """GEM is not, or only partly, available in this verl process."""


class _Watcher(MetaPathFinder):
    """Notices the import of a module in `HOOKS`; finds it through the other finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in HOOKS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Then(spec.loader)
                return spec
        return None


class _Then(Loader):
    """Executes a module as its own loader does, then loads the hook."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        load_hook(HOOKS[module.__name__])


def load_hook(hook: str) -> None:
    """Import one of our modules; if that fails, say so and remember the reason."""
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
    if not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())
    for module, hook in HOOKS.items():
        if module in sys.modules:
            load_hook(hook)


def _report(reasons: dict[str, str]) -> None:
    FAILED.update(reasons)
    for reason in dict.fromkeys(reasons.values()):
        hooks = ", ".join(hook for hook in reasons if reasons[hook] == reason)
        warnings.warn(f"gem-verl is not active ({hooks}): {reason}", GemVerlWarning, stacklevel=3)


load()
