"""For authors of environments and adapters: the environment checker, golden trajectories.

`checker` runs the checks; `checks`, `contract`, `scores`, `guesses` and `unearned` implement them
with `playing` and `subject`; `suite` checks many environments; `cli` has the commands.
`conformance` has the tests of adapters, to be imported from there.
"""

from __future__ import annotations

from gem.testing.checker import CheckReport, CheckResult, check_env
from gem.testing.suite import Outcome, check_many

__all__ = [
    "CheckReport",
    "CheckResult",
    "Outcome",
    "check_env",
    "check_many",
]
