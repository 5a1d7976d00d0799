"""Judges: a language model that says whether an answer is right, where no program can.

- `JudgeSettings`: whom to ask and how; a table `[judge.<name>]` of a RunSpec.
- `Item`: what is judged: an answer with a question and a reference, named criteria (`Criterion`),
  or another answer to compare it with.
- `Judge`: asks for votes and returns a `JudgeVerdict` for each item, or a `JudgeFailure`.
- `judge_of`: the judge that an environment's parameter `judge` names.

A judge that fails makes an episode void, with the cause `grader`. An answer that makes the judge
fail earns 0 and is counted.
"""

from __future__ import annotations

from gem.grading.judge.asking import JudgeFailure, JudgeVerdict
from gem.grading.judge.items import Criterion, Item
from gem.grading.judge.judging import Judge
from gem.grading.judge.named import RULES, VARIABLE, judge_of, judges_in
from gem.grading.judge.settings import JudgeSettings

__all__ = [
    "RULES",
    "VARIABLE",
    "Criterion",
    "Item",
    "Judge",
    "JudgeFailure",
    "JudgeSettings",
    "JudgeVerdict",
    "judge_of",
    "judges_in",
]
