"""`python -m gem_rl2.doctor`: does GEM work in this RL2 installation, and if not, why?"""

from __future__ import annotations

import importlib
import importlib.util
import sys

from gem.errors import MissingExtraError
from gem.training.doctor import Check, ProblemError, doctor, require
from gem_rl2 import __version__
from gem_rl2.release import check_rl2

SGLANG = ">=0.5.2,<0.5.10"
"""Versions that RL2's imports and transformers 4 allow; 0.5.2 and 0.5.9 were tried."""
ROUTER = "<=0.2.1"
"""Later ones lack a request that a checkout makes, and it waits for ever."""
TRANSFORMERS = ">=4.55,<5"
"""RL2 and ring-flash-attn 0.1.8 import what transformers 5 no longer has."""

HOOK = "hydra_plugins.gem_rl2_hook"


def check_version() -> str:
    """RL2 is there, in one of the two known forms."""
    return f"{check_rl2()}; gem-rl2 {__version__}"


def check_engine() -> str:
    """SGLang and its router are of versions that this RL2 works with."""
    by = f"gem-rl2 {__version__}"
    sglang = require("sglang", SGLANG, by=by, install='pip install "sglang==0.5.2"')
    router = require(
        "sglang-router", ROUTER, by=by, install='pip install "sglang-router==0.2.1" (Python < 3.12)'
    )
    return f"engine: sglang {sglang}, sglang-router {router}"


def check_libraries() -> str:
    """transformers and hydra are of versions that RL2 works with."""
    by = f"gem-rl2 {__version__}"
    transformers = require(
        "transformers", TRANSFORMERS, by=by, install='pip install "transformers==4.57.1"'
    )
    require("hydra-core", ">=1.3", by=by, install='pip install "hydra-core==1.3.2"')
    if importlib.util.find_spec("flash_attn") is None:
        raise MissingExtraError(
            "flash-attn is not installed; RL2 wants it: pip install flash-attn "
            "--no-build-isolation (without a GPU: gem-cpu's stand-in, see docs/rl2.md)"
        )
    return f"libraries: transformers {transformers}, hydra, flash-attn"


def check_hooks() -> str:
    """RL2 can be imported, what is replaced is what it was, and Hydra finds the hook."""
    rl2 = check_rl2()
    sys.path.insert(0, rl2.path)
    try:
        if importlib.util.find_spec(HOOK) is None:
            raise ImportError(f"no module {HOOK}; reinstall gem-rl2")
        program = importlib.import_module("RL2.trainer.ppo")
        hook = importlib.import_module("gem_rl2.hook")
    except Exception as error:
        raise ProblemError(
            f"RL2 with GEM's hook cannot be imported: {type(error).__name__}: {error}"
        ) from error
    hook.check_signatures(program, rl2)
    return f"hook fits: {', '.join(hook.SIGNATURES[rl2.form])}"


CHECKS: tuple[Check, ...] = (check_version, check_engine, check_libraries, check_hooks)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor(CHECKS))
