"""Ray's worker hook: OpenRLHF's classes get their GEM subclasses wherever they are imported.

    export RAY_RUNTIME_ENV_HOOK=gem_openrlhf.worker.runtime_env_hook

makes Ray call `setup` in each worker process of the run, before anything of OpenRLHF is imported
there. The same without the variable, for `ray job submit`: put
`"worker_process_setup_hook": "gem_openrlhf.worker.setup"` into `--runtime-env-json`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from gem.errors import ConfigurationError
from gem_openrlhf.settings import Settings, load_settings
from gem_openrlhf.version import TRAINER
from gem_train.imports import after_import
from gem_train.seams import Seam, check_seams

SETUP = "gem_openrlhf.worker.setup"
VARIABLE = "RAY_RUNTIME_ENV_HOOK"
HOOK = "gem_openrlhf.worker.runtime_env_hook"
_KEY = "worker_process_setup_hook"
SWITCH_ON = f'{VARIABLE}={HOOK} (with ray job submit: "{_KEY}": "{SETUP}" in --runtime-env-json)'
"""How a launcher is started with the worker hook."""

_LOGGED = "self, global_step, logs_dict"
SEAMS = {
    "gem_openrlhf.advantage": [
        Seam(
            "openrlhf.trainer.ppo_utils.experience_maker:"
            "RemoteExperienceMaker.compute_advantages_and_returns",
            "self, experiences",
        )
    ],
    "gem_openrlhf.dataset": [
        Seam("openrlhf.trainer.ppo_trainer:prepare_datasets", "strategy, tokenizer")
    ],
    "gem_openrlhf.engines": [
        Seam("openrlhf.trainer.ppo_trainer:BasePPOTrainer.broadcast_to_vllm", "self")
    ],
    "gem_openrlhf.logs": [
        Seam("openrlhf.utils.logging_utils:TensorboardLogger.log_train", _LOGGED),
        Seam("openrlhf.utils.logging_utils:TensorboardLogger.log_eval", _LOGGED),
        Seam("openrlhf.utils.logging_utils:TensorboardLogger.close", "self"),
    ],
    "gem_openrlhf.passes": [
        Seam("openrlhf.utils.deepspeed.deepspeed:DeepspeedStrategy.get_ds_train_config")
    ],
}
"""Modules of this package, whose `install` replaces names in a module of OpenRLHF, and these."""

_state = {"installed": False}


def runtime_env_hook(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Add `setup` to the runtime environment that a driver asks Ray for.

    Raises:
        ConfigurationError: Another setup hook is asked for already, or the driver's command has a
            flag that cannot work.
    """
    _check_command(sys.argv)
    result = dict(runtime_env or {})
    other = result.setdefault(_KEY, SETUP)
    if other != SETUP:
        raise ConfigurationError(f"{_KEY} is already {other!r}; call {SETUP}() from it instead")
    return result


def _check_command(argv: Sequence[str]) -> None:
    # Of this flag the launcher leaves no trace: where others are checked it is "agent" in any case.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--train.agent_func_path", dest="agent_file")
    parser.add_argument("--reward.remote_url", dest="url")
    given, _ = parser.parse_known_args(argv)
    if given.url is not None and load_settings(given.agent_file) is not None:
        raise ConfigurationError(
            "--reward.remote_url: rewards come from the environments; OpenRLHF replaces it with "
            f"'agent' when there is an agent file; leave it out, got {given.url!r}"
        )


def setup() -> None:
    """Have the seams replaced in this process, when their modules are imported.

    Raises:
        MissingExtraError: OpenRLHF is not installed.
        UnsupportedVersionError: Its version is not supported.
    """
    if _state["installed"]:
        return
    TRAINER.check()
    for ours, seams in SEAMS.items():
        after_import(seams[0].path.partition(":")[0], partial(install, ours))
    _state["installed"] = True


def install(ours: str, module: ModuleType) -> None:
    """Let a module of this package replace names in a module of OpenRLHF that is just imported.

    Args:
        ours: Key of `SEAMS`.
        module: OpenRLHF's.

    Raises:
        UnsupportedVersionError: What would be replaced is not what it was.
    """
    check_seams(TRAINER, SEAMS[ours])
    importlib.import_module(ours).install(module)


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
            f"which is not active: start the launcher with {SWITCH_ON}. {TRAINER.by}, openrlhf "
            f"{TRAINER.supported}"
        )
