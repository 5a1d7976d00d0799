"""The version of gem-roll, and the commit of ROLL that it works with."""

from __future__ import annotations

from gem.training.doctor import Requirement

__version__ = "0.1.0"

COMMIT = "8eb27cc2dc34c4d1310b169d9b86d339004d811a"
"""Of ROLL's main branch, 18 August 2026. There is no release: the project `roll` of the package
index is another one."""

SUPPORTED_ROLL = f"commit {COMMIT[:7]}"

TRAINER = Requirement(
    "ROLL",
    SUPPORTED_ROLL,
    by=f"gem-roll {__version__}",
    install=f"git clone https://github.com/alibaba/ROLL && git -C ROLL checkout {COMMIT[:7]}; pip "
    "install what its requirements list, but gem-llm; set GEM_ROLL_HOME to the clone",
)
"""For messages only: what is not installed has no version to check."""
