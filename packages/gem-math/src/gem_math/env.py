"""Math: problems with one right answer, as text or with figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem.core import ContentPart, Observation
from gem.envs.datasets import DatasetEnv, DatasetOptions, Grade
from gem.errors import DataError
from gem.grading.formats import BOXED
from gem.parameters import extending, positive, text
from gem.sources import Row, Source
from gem_math import grading as grader
from gem_math.cleaning import clean

if TYPE_CHECKING:
    from typing_extensions import Unpack

_GOLD_TYPES = (str, int, float, list)
_PLACEHOLDER = "<image>"


class MathEnv(DatasetEnv):
    """Math problems; 1.0 for an answer equal to the recorded one, or to one of them, else 0.0."""

    @extending(DatasetEnv, sample="math", answer_format=BOXED)
    def __init__(
        self, source: Source, *, timeout_s: float = 1.0, **options: Unpack[DatasetOptions]
    ) -> None:
        """Store the parameters; see `DatasetEnv` for those not listed.

        Args:
            source: Rows with a problem and an answer: text, a number, or a list of them of which
                any is right.
            timeout_s: CPU time in seconds that math-verify may use for one answer; beyond it the
                answer counts as wrong.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(source, **options)
        self.timeout_s = positive("timeout_s", timeout_s)

    def _verify_item(self) -> None:
        answers = self._answers()
        if not all(answer.isalnum() or clean(answer) for answer in answers):
            raise self._fault(self.answer_column, f"{answers!r:.200} has an empty answer")
        known = {answer.strip() for answer in answers}
        self._require_winner(answers, lambda read: read in known or self._grade(read).correct)

    def _verify_shown(self) -> None:
        super()._verify_shown()
        # Parsing the recorded answer takes longer than loading it.
        self._recorded_answer()

    def _answers(self) -> list[str]:
        gold = self._gold()
        return [str(each) for each in (gold if isinstance(gold, list) else [gold])]

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
        return self._require_winner(self._answers(), lambda read: self._grade(read).correct)


class MathOptions(DatasetOptions, total=False):
    """Parameters of `MathEnv` beside the source, for the signature of its subclass."""

    timeout_s: float


class MathVisualEnv(MathEnv):
    """Math problems with figures: the observation is a list of image and text parts.

    Each `<image>` in the problem's text stands for the next figure; figures without one come
    first. An image part holds the encoded file as bytes.
    """

    @extending(MathEnv, sample="geometry")
    def __init__(
        self, source: Source, *, image_column: str = "images", **options: Unpack[MathOptions]
    ) -> None:
        """Store the parameters; see `MathEnv` for those not listed.

        Args:
            source: Rows with figures, a problem and an answer.
            image_column: Column with one figure or a list: the bytes of an image file, a mapping
                with `bytes` or `path`, or a path, relative to the folder of the data file.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(source, **options)
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
