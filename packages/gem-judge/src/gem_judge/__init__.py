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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gem_judge.asking import JudgeFailure, JudgeVerdict
    from gem_judge.items import Criterion, Item
    from gem_judge.judging import Judge
    from gem_judge.named import RULES, VARIABLE, judge_of, judges_in
    from gem_judge.settings import JudgeSettings

# Imported at their first use: the registry imports this package for its ids, and a caller that
# asks no judge does not pay for the import of numpy and sqlite3.
_LAZY = {
    "gem_judge.asking": ("JudgeFailure", "JudgeVerdict"),
    "gem_judge.items": ("Criterion", "Item"),
    "gem_judge.judging": ("Judge",),
    "gem_judge.named": ("RULES", "VARIABLE", "judge_of", "judges_in"),
    "gem_judge.settings": ("JudgeSettings",),
}

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


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'gem_judge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
