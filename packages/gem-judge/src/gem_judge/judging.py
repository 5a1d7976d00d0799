"""`Judge`: a judge to train with: calibrated, recorded, and not asked about answers of no worth."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from gem.blame import boundary
from gem.errors import JudgeError, UnreachableError
from gem_judge.asking import UNJUDGED, JudgeFailure, JudgeVerdict, UncheckedJudge
from gem_judge.calibration import require_calibrated
from gem_judge.items import Item, Kind, worthless
from gem_judge.settings import JudgeSettings

MOST_UNJUDGED = 0.01
"""Share of answers at which the judge fails, above which a run ends."""
_FEWEST_UNJUDGED = 5


class Judge(UncheckedJudge):
    """Asks a model whether answers are right. Threads may share it; see `JudgeSettings`."""

    def __init__(self, settings: JudgeSettings | Mapping[str, Any], name: str = "judge") -> None:
        """See `UncheckedJudge`."""
        super().__init__(settings, name)
        self._calibrating = threading.Lock()
        # Kinds of items that it may grade; None until the calibration is known.
        free = self.settings.allow_uncalibrated
        self._kinds: frozenset[str] | None = frozenset(get_args(Kind)) if free else None

    def verdict(self, item: Item) -> JudgeVerdict:
        """Return the verdict on an item.

        Raises:
            UnreachableError: The judge fails; its cause is `grader`.
            JudgeError: The run cannot go on with this judge.
        """
        with boundary("grader"):
            [found] = self.verdicts([item])
            if isinstance(found, JudgeFailure):
                raise UnreachableError(found.message)
        return found

    def verdicts(self, items: Sequence[Item]) -> list[JudgeVerdict | JudgeFailure]:
        """Return the verdict on each item, or why there is none.

        Raises:
            JudgeError: See `UncheckedJudge.verdicts`. Or the judge is not calibrated, or it fails
                at more than 1 % of the answers.
            UnreachableError: The judge fails while it is calibrated.
            RecordError: The cache cannot be written.
        """
        self._check_calibrated(items)
        shorter = [self.shortened(item) for item in items]
        reasons = [worthless(item) for item in shorter]
        asked = iter(
            super().verdicts([i for i, reason in zip(shorter, reasons, strict=True) if not reason])
        )
        found = [
            self._unasked(item, reason) if reason else next(asked)
            for item, reason in zip(shorter, reasons, strict=True)
        ]
        for each in found:
            self._record(each)
        return found

    def _unasked(self, item: Item, reason: str) -> JudgeVerdict:
        chars = len(item.answer)
        return JudgeVerdict(False, reason, 0.0, 0.0, self.key(item), chars=chars, cached=True)

    def _record(self, found: JudgeVerdict | JudgeFailure) -> None:
        given = found if isinstance(found, JudgeVerdict) else None
        self.store.record(
            self.name,
            found.key,
            given.score if given else None,
            given.correct if given else None,
            found.reason if isinstance(found, JudgeVerdict) else found.message,
            _letters(found.votes),
            found.chars,
            found.seconds,
            given is not None and given.cached,
        )
        if given is None or given.reason != UNJUDGED:
            return
        total = self.store.verdict_count(self.name)
        failed = self.store.verdict_count(self.name, UNJUDGED)
        if failed >= _FEWEST_UNJUDGED and failed > MOST_UNJUDGED * total:
            raise JudgeError(
                f"judge {self.name!r} gives no verdict on {failed} of {total} answers, and grades "
                f"others: at most {MOST_UNJUDGED:.0%} may be so. Look at the votes without a value "
                f"in {self.store.path}"
            )

    def _check_calibrated(self, items: Sequence[Item]) -> None:
        if self._kinds is None:
            with self._calibrating:
                if self._kinds is None:
                    agreement = require_calibrated(self.settings, self.name, self.store)
                    self._kinds = frozenset(agreement.kinds)
        if unknown := {item.kind for item in items} - self._kinds:
            raise JudgeError(
                f"judge {self.name!r} is asked about items of the kind {', '.join(unknown)}; its "
                f"calibration file has {', '.join(sorted(self._kinds))} only"
            )


def _letters(votes: Sequence[Mapping[str, str] | None]) -> str:
    """Return votes as a short text: a word for each name, votes apart by a bar."""
    return "|".join("-" if v is None else " ".join(f"{k}={v[k]}" for k in v) for v in votes)
