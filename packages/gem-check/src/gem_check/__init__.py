"""For authors of environments: checks that an environment keeps its promises.

`checker` runs the checks; `checks`, `contract`, `scores`, `guesses` and `unearned` implement them
with `playing` and `subject`; `suite` checks many environments; `cli` has the commands.
"""

from __future__ import annotations

from gem_check.checker import CheckReport, CheckResult, check_env
from gem_check.suite import Outcome, check_many

__all__ = [
    "CheckReport",
    "CheckResult",
    "Outcome",
    "check_env",
    "check_many",
]
