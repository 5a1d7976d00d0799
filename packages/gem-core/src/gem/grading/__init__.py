"""Graders: pure functions from an answer and what is expected to a `Verdict`.

`gem.grading.math`, `gem.grading.qa` and `gem.grading.code` each have a function `grade`. It raises
for no answer of a policy and returns in bounded time; it does raise, by a named error, when what
is expected of the policy is not gradable (`DataError`) or a needed package is not installed
(`MissingExtraError`).
"""

from __future__ import annotations

from gem.grading.verdict import Verdict

__all__ = ["Verdict"]
