"""Graders: functions that compare a policy's answer with the gold and return a `Verdict`.

`gem.grading.math` and `gem.grading.qa` each have a function `grade`, as have those of packages. No
answer of a policy makes it raise, and it returns in bounded time. It raises `DataError` for a gold
that cannot be graded and `MissingExtraError` where a needed package is not installed. Environments
call graders; graders import no environment.
"""

from __future__ import annotations

from gem.grading.verdict import Verdict

__all__ = ["Verdict"]
