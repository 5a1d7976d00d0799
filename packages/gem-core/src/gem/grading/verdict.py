"""What a grader returns."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """Whether an answer is right, and how that was found out."""

    correct: bool
    reason: str
    """A word or two, the same for the same kind of case: each grader's docstring lists its own."""
    seconds: float
    """Wall time spent on grading."""
    score: float
    """1.0 if correct, else 0.0; a grader that gives partial credit may say something between."""
