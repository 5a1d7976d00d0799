"""`python -m gem_oat.doctor`: does GEM work in this oat installation, and if not, why?"""

from __future__ import annotations

import sys
import sysconfig
from functools import partial

from gem_oat import TRAINER
from gem_oat.seams import SEAMS
from gem_train.doctor import Check, ProblemError, doctor, entry_point, importable
from gem_train.seams import check_seams

LAUNCHPAD_HINTS = {
    "No module named 'launchpad'": "install it with: pip install dm-launchpad==0.5.2",
    "libpython": "Launchpad's RPC does not find the library of Python; run: export "
    f"LD_LIBRARY_PATH={sysconfig.get_config_var('LIBDIR')}:$LD_LIBRARY_PATH (Python must have been "
    "built with --enable-shared; conda's is)",
    "courier": "Launchpad has no compiled RPC for Python "
    f"{sys.version_info.major}.{sys.version_info.minor}; its wheels end with Python 3.10. Use "
    "that; or, without a GPU, gem-cpu's stand-in: set GEM_CPU=1 and put "
    "gem_cpu.openrlhf_plugin.startup_folder() on PYTHONPATH",
    "tensorflow": "Launchpad's RPC does not find a library of TensorFlow; run: pip install "
    "--no-deps tensorflow-cpu==2.8.4",
}
"""Part of an error, and what to do about it."""


def check_launchpad() -> str:
    """Launchpad can be imported, which needs its compiled RPC and the library of Python."""
    importable("launchpad", what="Launchpad", hints=LAUNCHPAD_HINTS)
    return "Launchpad can be imported"


def check_engine() -> str:
    """vLLM can be imported."""
    hints = {"": f"install the version that oat needs with: {TRAINER.install}"}
    [vllm] = importable("vllm", what="vLLM", hints=hints)
    return f"engine: vLLM {vllm.__version__}"


def check_hooks() -> str:
    """oat can be imported, and has what is extended or called."""
    importable("gem_oat.learner", "gem_oat.rollout", what="oat with GEM's classes")
    return check_seams(TRAINER, SEAMS)


def check_devices() -> str:
    """There is something to train on."""
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        raise ProblemError("torch finds no GPU; without one see docs/oat.md (gem-cpu, GEM_CPU=1)")
    return f"devices: {count}"


CHECKS: tuple[Check, ...] = (
    TRAINER.describe,
    partial(entry_point, "gem-oat", "oat"),
    check_launchpad,
    check_engine,
    check_hooks,
    check_devices,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor(CHECKS))
