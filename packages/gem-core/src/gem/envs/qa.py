"""Question answering: short answers compared with the recorded ones; RuleTaker."""

from __future__ import annotations

import math
from typing import Any

from gem.envs.datasets import DatasetEnv, Grade
from gem.grading import qa as grader
from gem.grading.formats import ANSWER_TAG, BOXED, AnswerFormat
from gem.sources import Source

_GUESSES = ("Paris", "1969", "the Nile", "Albert Einstein", "water", "seven", "no one knows")


class QaEnv(DatasetEnv):
    """Questions with short answers; 1.0 for an exact match with any recorded answer, else 0.0.

    Case, punctuation, articles and accents do not count.
    """

    guesses: tuple[str, ...] = _GUESSES
    """What `sample_random_action` chooses from."""

    def __init__(
        self,
        source: Source,
        *,
        split: str | None = None,
        sample: str = "qa",
        question_column: str = "problem",
        answer_column: str = "answer",
        answer_format: AnswerFormat | str = ANSWER_TAG,
        eval: bool = False,
        format_error_reward: float = 0.0,
        seed: int | None = None,
    ) -> None:
        """Store the parameters; see `DatasetEnv` for those not listed.

        Args:
            source: Rows with a question and an answer: text, a number, or a list of them of which
                any is right.
            split: Split of a hub data set.
            sample: Sample that `source="sample"` stands for.
            question_column: Column with the question.
            answer_column: Column with the answer or the list of answers.
            answer_format: How to answer: one of `gem.grading.formats` or its name.
            eval: Rows in order.
            format_error_reward: Reward of a reply without an answer.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(
            source,
            split=split,
            sample=sample,
            question_column=question_column,
            answer_column=answer_column,
            answer_format=answer_format,
            eval=eval,
            format_error_reward=format_error_reward,
            seed=seed,
        )

    def _verify_item(self) -> None:
        self._golds()

    def _golds(self) -> list[str]:
        value = self._cell(self._row(), self.answer_column, object)
        golds = [_words(gold) for gold in (value if isinstance(value, list) else [value])]
        words = [gold for gold in golds if gold is not None]
        if len(words) < len(golds) or not any(gold.strip() for gold in words):
            raise self._fault(self.answer_column, f"{value!r:.200} is no answer")
        return words

    def _grade(self, answer: str) -> Grade:
        verdict = grader.grade(answer, self._golds())
        return Grade(verdict.correct, float(verdict.correct), verdict.reason)

    def _random_answer(self) -> str:
        return self.action_rng.choice(self.guesses)

    def _recorded_answer(self) -> str:
        return self._golds()[0]


def _words(gold: Any) -> str | None:
    """Return an answer as text, a whole number without a fraction; None for what is no answer."""
    if callable(getattr(gold, "item", None)):  # numpy's scalars
        gold = gold.item()
    if isinstance(gold, float):
        if not math.isfinite(gold):
            return None
        return str(int(gold)) if gold.is_integer() else str(gold)
    return str(gold) if isinstance(gold, str | bool | int) else None


class RuleTaker(QaEnv):
    """Statements that facts and rules make true or false; the answer goes in the box."""

    guesses = ("True", "False")

    def __init__(
        self,
        source: Source,
        *,
        split: str | None = None,
        sample: str = "ruletaker-d1",
        question_column: str = "question",
        answer_column: str = "answer",
        answer_format: AnswerFormat | str = BOXED,
        eval: bool = False,
        format_error_reward: float = 0.0,
        seed: int | None = None,
    ) -> None:
        """Store the parameters; see `QaEnv`."""
        super().__init__(
            source,
            split=split,
            sample=sample,
            question_column=question_column,
            answer_column=answer_column,
            answer_format=answer_format,
            eval=eval,
            format_error_reward=format_error_reward,
            seed=seed,
        )
