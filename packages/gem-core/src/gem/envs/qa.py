"""Question answering: short answers compared with the recorded ones; RuleTaker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gem.envs.datasets import DatasetEnv, DatasetOptions, Grade
from gem.grading import qa as grader
from gem.grading.formats import ANSWER_TAG, BOXED
from gem.parameters import extending
from gem.sources import Source

if TYPE_CHECKING:
    from typing_extensions import Unpack

_GUESSES = ("Paris", "1969", "the Nile", "Albert Einstein", "water", "seven", "no one knows")


class QaEnv(DatasetEnv):
    """Questions with short answers; 1.0 for an exact match with any recorded answer, else 0.0.

    Case, accents, articles and punctuation do not count, except where they change the answer: 1.5
    is not 15, `C#` is not `C`, and `A` is an answer. See `gem.grading.qa`.
    """

    guesses: tuple[str, ...] = _GUESSES
    """What `sample_random_action` chooses from."""

    @extending(DatasetEnv, sample="qa", answer_format=ANSWER_TAG)
    def __init__(self, source: Source, **options: Unpack[DatasetOptions]) -> None:
        """Store the parameters; see `DatasetEnv` for those not listed.

        Args:
            source: Rows with a question and an answer: text, a number, or a list of them of which
                any is right.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(source, **options)

    def _verify_item(self) -> None:
        self._recorded_answer()

    def _golds(self) -> list[str]:
        value = self._cell(self._row(), self.answer_column, object)
        golds = [_words(gold) for gold in (value if isinstance(value, list) else [value])]
        words = [gold for gold in golds if gold is not None]
        # What nobody sees is no answer; beside others it does no harm.
        told = [gold for gold in words if gold[:1].isalnum() or grader.normalise(gold)]
        if len(words) < len(golds) or not told:
            raise self._fault(self.answer_column, f"{value!r:.200} is no answer")
        return told

    def _grade(self, answer: str) -> Grade:
        verdict = grader.grade(answer, self._golds())
        return Grade(verdict.correct, float(verdict.correct), verdict.reason)

    def _random_answer(self) -> str:
        return self.action_rng.choice(self.guesses)

    def _recorded_answer(self) -> str:
        golds = self._golds()
        known = set(golds)

        def right(read: str) -> bool:
            return read in known or grader.grade(read, golds).correct

        return self._require_winner(golds, right)


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

    @extending(QaEnv, sample="ruletaker-d1", question_column="question", answer_format=BOXED)
    def __init__(self, source: Source, **options: Unpack[DatasetOptions]) -> None:
        """Store the parameters; see `QaEnv`."""
        super().__init__(source, **options)
