"""The result that every grader returns."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """Whether an answer is right, and why."""

    correct: bool
    reason: str
    """A fixed phrase of a word or two; each grader's docstring lists its own."""
    seconds: float
    """Wall time spent on grading."""
    score: float
    """1.0 if correct, else 0.0; with partial credit, anything between."""
