"""`python -m gem_oat.doctor`: does GEM work in this oat installation, and if not, why?"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import sysconfig

from gem.training.doctor import Check, ProblemError, doctor
from gem_oat import INSTALL, SUPPORTED_OAT, __version__, check_oat

LAUNCHPAD = "pip install dm-launchpad==0.5.2"


def check_version() -> str:
    """oat is installed in a supported version."""
    return f"oat-llm {check_oat()} (supported: {SUPPORTED_OAT}), gem-oat {__version__}"


def check_entry_point() -> str:
    """gem-bench will find the adapter."""
    names = {entry.name for entry in importlib.metadata.entry_points(group="gem.adapters")}
    if "oat" not in names:
        raise ProblemError(
            "gem-oat's entry point is missing: the package is on the path but not installed. "
            "Run: pip install gem-oat (in a clone: pip install -e packages/gem-oat)"
        )
    return "gem-bench finds the adapter"


def check_launchpad() -> str:
    """Launchpad can be imported, which needs its compiled RPC and the library of Python."""
    if importlib.util.find_spec("launchpad") is None:
        raise ProblemError(f"Launchpad is not installed; install it with: {LAUNCHPAD}")
    try:
        launchpad = importlib.import_module("launchpad")
    except Exception as error:
        raise ProblemError(_launchpad_problem(str(error))) from error
    return f"Launchpad: {launchpad.__name__} can be imported"


def _launchpad_problem(error: str) -> str:
    if "libpython" in error:
        folder = sysconfig.get_config_var("LIBDIR")
        return (
            f"Launchpad's RPC does not find the library of Python ({error}); run: "
            f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH (Python must have been built with "
            "--enable-shared; conda's is)"
        )
    if "courier" in error:
        version = ".".join(map(str, sys.version_info[:2]))
        return (
            f"Launchpad has no compiled RPC for Python {version} ({error}); its wheels end with "
            "Python 3.10. Use that; or, without a GPU, gem-cpu's stand-in: set GEM_CPU=1 and put "
            "gem_cpu.openrlhf_plugin.startup_folder() on PYTHONPATH"
        )
    if "tensorflow" in error:
        return (
            f"Launchpad's RPC does not find a library of TensorFlow ({error}); run: "
            "pip install --no-deps tensorflow-cpu==2.8.4"
        )
    return f"Launchpad cannot be imported: {error}"


def check_engine() -> str:
    """vLLM can be imported."""
    try:
        vllm = importlib.import_module("vllm")
    except Exception as error:
        raise ProblemError(
            f"vLLM cannot be imported ({type(error).__name__}: {error}); install the one that oat "
            f"wants with: {INSTALL}"
        ) from error
    return f"engine: vLLM {vllm.__version__}"


def check_hooks() -> str:
    """oat can be imported, and what is extended of it is what it was."""
    try:
        importlib.import_module("gem_oat.learner")
        importlib.import_module("gem_oat.rollout")
    except Exception as error:
        raise ProblemError(
            f"oat cannot be imported with GEM's classes: {type(error).__name__}: {error}"
        ) from error
    from gem_oat.seams import check_seams

    return f"{check_seams()} functions of oat are as expected"


def check_devices() -> str:
    """There is something to train on."""
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        raise ProblemError(
            "torch finds no GPU; for a run without one see docs/oat.md (gem-cpu, GEM_CPU=1)"
        )
    return f"devices: {count}"


CHECKS: tuple[Check, ...] = (
    check_version,
    check_entry_point,
    check_launchpad,
    check_engine,
    check_hooks,
    check_devices,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor(CHECKS))
