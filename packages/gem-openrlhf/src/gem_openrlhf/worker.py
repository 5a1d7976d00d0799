"""Ray's worker hook: OpenRLHF's classes get their GEM subclasses wherever they are imported.

    export RAY_RUNTIME_ENV_HOOK=gem_openrlhf.worker.runtime_env_hook

makes Ray call `setup` in each worker process of the run, before anything of OpenRLHF is imported
there. The same without the variable, for `ray job submit`: put
`"worker_process_setup_hook": "gem_openrlhf.worker.setup"` into `--runtime-env-json`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from gem.errors import ConfigurationError
from gem.training.imports import after_import
from gem_openrlhf import SUPPORTED_OPENRLHF, __version__, check_openrlhf
from gem_openrlhf.settings import Settings

SETUP = "gem_openrlhf.worker.setup"
VARIABLE = "RAY_RUNTIME_ENV_HOOK"
HOOK = "gem_openrlhf.worker.runtime_env_hook"
_KEY = "worker_process_setup_hook"

SEAMS = (
    ("openrlhf.trainer.ppo_utils.experience_maker", "gem_openrlhf.advantage"),
    ("openrlhf.trainer.ppo_trainer", "gem_openrlhf.dataset"),
    ("openrlhf.trainer.ppo_trainer", "gem_openrlhf.engines"),
    ("openrlhf.utils.logging_utils", "gem_openrlhf.logs"),
)
"""OpenRLHF's module, and ours whose `install(module)` replaces one name in it."""

_state = {"installed": False}


def runtime_env_hook(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Add `setup` to the runtime environment that a driver asks Ray for.

    Raises:
        ConfigurationError: Another setup hook is asked for already.
    """
    result = dict(runtime_env or {})
    other = result.setdefault(_KEY, SETUP)
    if other != SETUP:
        raise ConfigurationError(f"{_KEY} is already {other!r}; call {SETUP}() from it instead")
    return result


def setup() -> None:
    """Have the seams replaced in this process, when their modules are imported.

    Raises:
        MissingExtraError: OpenRLHF is not installed.
        UnsupportedVersionError: Its version is not supported.
    """
    if _state["installed"]:
        return
    check_openrlhf()
    for theirs, ours in SEAMS:
        after_import(theirs, _installer(ours))
    _state["installed"] = True


def installed() -> bool:
    """Whether `setup` ran in this process."""
    return _state["installed"]


def require_hook(settings: Settings) -> None:
    """Refuse settings that this process could not honour.

    Raises:
        ConfigurationError: They need the hook, and `setup` was not called.
    """
    needed = settings.needs_hook()
    if needed and not installed():
        raise ConfigurationError(
            f"{', '.join(f'gem.{name}' for name in needed)} needs gem-openrlhf's worker hook, "
            f"which is not active: start the launcher with {VARIABLE}={HOOK} (with ray job submit: "
            f'"{_KEY}": "{SETUP}" in --runtime-env-json). gem-openrlhf {__version__}, openrlhf '
            f"{SUPPORTED_OPENRLHF}"
        )


def _installer(ours: str) -> Any:
    def install(module: ModuleType) -> None:
        importlib.import_module(ours).install(module)

    return install
