"""`python -m gem_rl2.doctor`: does GEM work in this RL2 installation, and if not, why?"""

from __future__ import annotations

import sys
from functools import partial

from gem_rl2.release import check_rl2
from gem_rl2.version import TRAINER
from gem_train.doctor import Check, Requirement, doctor, entry_point, importable
from gem_train.seams import check_seams

SGLANG = Requirement("sglang", ">=0.5.2,<0.5.10", TRAINER.by, 'pip install "sglang==0.5.2"')
"""Versions that RL2's imports and transformers 4 allow; 0.5.2 and 0.5.9 were tried."""
ROUTER = Requirement(
    "sglang-router", "<=0.2.1", TRAINER.by, 'pip install "sglang-router==0.2.1" (Python < 3.12)'
)
"""Later ones were not tried."""
TRANSFORMERS = Requirement(
    "transformers", ">=4.55,<5", TRAINER.by, 'pip install "transformers==4.57.1"'
)
"""RL2 and ring-flash-attn 0.1.8 import what transformers 5 no longer has."""
HYDRA = Requirement("hydra-core", ">=1.3", TRAINER.by, 'pip install "hydra-core==1.3.2"')

HOOK = "hydra_plugins.gem_rl2_hook"
HINTS = {
    "hydra_plugins": "reinstall gem-rl2",
    "flash_attn": "run: pip install flash-attn --no-build-isolation (without a GPU: gem-cpu's "
    "stand-in, see docs/rl2.md)",
}
"""What to do where an import fails whose error names the key."""


def check_version() -> str:
    """RL2 is there, the release."""
    return f"{check_rl2()}; {TRAINER.by}"


def check_engine() -> str:
    """SGLang and its router are of versions that this RL2 works with."""
    return f"engine: sglang {SGLANG.check()}, sglang-router {ROUTER.check()}"


def check_libraries() -> str:
    """transformers and hydra are of versions that RL2 works with."""
    found = f"libraries: transformers {TRANSFORMERS.check()}, hydra {HYDRA.check()}, flash-attn"
    importable("flash_attn", what="flash-attn, which RL2 wants,", hints=HINTS)
    return found


def check_hooks() -> str:
    """RL2 can be imported, what is replaced is what it was, and Hydra finds the hook."""
    rl2 = check_rl2()
    sys.path.insert(0, rl2.path)
    _, program, hook = importable(
        HOOK, "RL2.trainer.ppo", "gem_rl2.hook", what="RL2 with GEM's hook", hints=HINTS
    )
    check_seams(TRAINER, hook.SEAMS, owner=program, found=str(rl2))
    return f"hook fits: {', '.join(seam.path for seam in hook.SEAMS)}"


CHECKS: tuple[Check, ...] = (
    check_version,
    partial(entry_point, "gem-rl2", "rl2"),
    check_engine,
    check_libraries,
    check_hooks,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor(CHECKS))
