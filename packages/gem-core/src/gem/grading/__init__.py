"""Graders: functions that compare a policy's answer with the gold and return a `Verdict`.

`gem.grading.qa` has a function `grade`, and so has each grader of another package, such as
`gem_math.grading` and `gem_sandbox.grading.code`. No answer of a policy makes `grade` raise, and it
returns in bounded time. It raises `DataError` for a gold that cannot be graded, and
`MissingExtraError` if a package that it needs is not installed. Environments
call graders; graders import no environment.
"""

from __future__ import annotations

from gem.grading.verdict import Verdict

__all__ = ["Verdict"]
