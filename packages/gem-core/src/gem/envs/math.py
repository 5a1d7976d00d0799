"""Math: problems with one right answer, as text or with figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gem.core import ContentPart, Observation
from gem.envs.datasets import DatasetEnv, Grade
from gem.errors import DataError
from gem.grading import math as grader
from gem.grading.formats import BOXED, AnswerFormat
from gem.parameters import positive, text
from gem.sources import Row, Source

_GOLD_TYPES = (str, int, float, list)
_PLACEHOLDER = "<image>"


class MathEnv(DatasetEnv):
    """Math problems; 1.0 for an answer equal to the recorded one, or to one of them, else 0.0."""

    def __init__(
        self,
        source: Source,
        *,
        split: str | None = None,
        sample: str = "math",
        question_column: str = "problem",
        answer_column: str = "answer",
        answer_format: AnswerFormat | str = BOXED,
        timeout_s: float = 1.0,
        eval: bool = False,
        format_error_reward: float = 0.0,
        seed: int | None = None,
    ) -> None:
        """Store the parameters; see `DatasetEnv` for those not listed.

        Args:
            source: Rows with a problem and an answer: text, a number, or a list of them of which
                any is right.
            split: Split of a hub data set.
            sample: Sample that `source="sample"` stands for.
            question_column: Column with the problem.
            answer_column: Column with the answer or the list of answers.
            answer_format: How to answer: one of `gem.grading.formats` or its name.
            timeout_s: Longest time that grading one answer may take; then it counts as wrong.
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
        self.timeout_s = positive("timeout_s", timeout_s)

    def _verify_item(self) -> None:
        self._gold()

    def _gold(self) -> Any:
        gold = self._cell(self._row(), self.answer_column, *_GOLD_TYPES)
        if gold == [] or isinstance(gold, bool):
            raise self._fault(self.answer_column, f"{gold!r} is no answer")
        return gold

    def _grade(self, answer: str) -> Grade:
        gold = self._gold()
        try:
            verdict = grader.grade(answer, gold, timeout_s=self.timeout_s)
        except DataError as error:
            raise self._fault(self.answer_column, str(error)) from None
        return Grade(verdict.correct, float(verdict.correct), verdict.reason)

    def _random_answer(self) -> str:
        return str(self.action_rng.randrange(1000))

    def _recorded_answer(self) -> str:
        gold = self._gold()
        return str(gold[0] if isinstance(gold, list) else gold)


class MathVisualEnv(MathEnv):
    """Math problems with figures: the observation is a list of image and text parts.

    Each `<image>` in the problem's text stands for the next figure; figures without one come
    first. An image part holds the encoded file as bytes.
    """

    def __init__(
        self,
        source: Source,
        *,
        split: str | None = None,
        sample: str = "geometry",
        question_column: str = "problem",
        answer_column: str = "answer",
        image_column: str = "images",
        answer_format: AnswerFormat | str = BOXED,
        timeout_s: float = 1.0,
        eval: bool = False,
        format_error_reward: float = 0.0,
        seed: int | None = None,
    ) -> None:
        """Store the parameters; see `MathEnv` for those not listed.

        Args:
            source: Rows with figures, a problem and an answer.
            split: Split of a hub data set.
            sample: Sample that `source="sample"` stands for.
            question_column: Column with the problem.
            answer_column: Column with the answer or the list of answers.
            image_column: Column with one figure or a list: the bytes of an image file, a mapping
                with `bytes` or `path`, or a path, relative to the folder of the data file.
            answer_format: How to answer: one of `gem.grading.formats` or its name.
            timeout_s: Longest time that grading one answer may take; then it counts as wrong.
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
            timeout_s=timeout_s,
            eval=eval,
            format_error_reward=format_error_reward,
            seed=seed,
        )
        self.image_column = text("image_column", image_column)

    def _observe(self) -> Observation:
        row = self._row()
        images = self._images(row)
        first, *rest = self._cell(row, self.question_column, str).split(_PLACEHOLDER)
        if len(rest) > len(images):
            what = f"{len(rest)} times {_PLACEHOLDER}, but {len(images)} figures"
            raise self._fault(self.question_column, what)
        # The figures that no placeholder stands for lead.
        leading = len(images) - len(rest)
        parts = images[:leading]
        for image, words in zip([None, *images[leading:]], [first, *rest], strict=True):
            if image is not None:
                parts.append(image)
            if words.strip():
                parts.append({"type": "text", "text": words.strip()})
        parts.append({"type": "text", "text": self.answer_format.instruction})
        return parts

    def _images(self, row: Row) -> list[ContentPart]:
        value = self._cell(row, self.image_column, object)
        images = value if isinstance(value, list) else [value]
        return [{"type": "image", "image": self._image(image)} for image in images]

    def _image(self, value: Any) -> Any:
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, bytes) or hasattr(value, "tobytes"):
            return value
        if not isinstance(value, str):
            raise self._fault(self.image_column, f"{type(value).__name__} is no figure")
        path = self.table.folder / Path(value).expanduser()
        try:
            return path.read_bytes()
        except OSError as error:
            raise self._fault(self.image_column, f"{path} cannot be read: {error}") from None
