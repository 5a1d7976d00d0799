"""Short text answers: exact match and token F1 after the usual normalisation."""

from __future__ import annotations

import re
import string
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

from gem.errors import DataError
from gem.grading.verdict import Verdict

Gold: TypeAlias = "str | Sequence[str]"

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def grade(prediction: str | None, gold: Gold) -> Verdict:
    """Return whether the prediction is one of the golds after normalisation.

    Args:
        prediction: The policy's answer; None when it gave none.
        gold: The right answer, or several, any of which is right.

    Returns:
        A verdict with reason `match`, `different`, `empty` (nothing is left after normalisation)
        or `no answer`.

    Raises:
        DataError: The gold is not a string or a non-empty sequence of strings.
    """
    began = time.perf_counter()
    expected = {normalise(text) for text in _golds(gold)} - {""}
    if not isinstance(prediction, str):
        return Verdict(False, "no answer", time.perf_counter() - began, 0.0)
    answer = normalise(prediction)
    correct = answer in expected
    reason = "match" if correct else "different" if answer else "empty"
    return Verdict(correct, reason, time.perf_counter() - began, float(correct))


def f1(prediction: str | None, gold: Gold) -> float:
    """Return the best token F1 of the prediction with any gold, from 0 to 1.

    F1 is the harmonic mean of precision and recall of the prediction's tokens, counted with
    multiplicity (Rajpurkar et al. 2016, section 6.1).

    Raises:
        DataError: The gold is not a string or a non-empty sequence of strings.
    """
    golds = _golds(gold)
    said = Counter(normalise(prediction).split() if isinstance(prediction, str) else ())
    best = 0.0
    for text in golds:
        expected = Counter(normalise(text).split())
        shared = (said & expected).total() if said else 0
        if shared:
            best = max(best, 2 * shared / (said.total() + expected.total()))
    return best


def normalise(text: str) -> str:
    """Return the text in lower case, without accents, punctuation, articles and extra spaces."""
    if not text.isascii():
        # Compatibility decomposition splits letters from their accents, which are then dropped.
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(
            " " if unicodedata.category(c) == "Pd" else c
            for c in decomposed
            if not unicodedata.combining(c)
        )
        text = "".join(c for c in text if c.isascii() or unicodedata.category(c)[0] != "P")
    text = text.casefold().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _golds(gold: Any) -> Sequence[str]:
    golds = [gold] if isinstance(gold, str) else gold
    if (
        not isinstance(golds, Sequence)
        or not golds
        or not all(isinstance(text, str) for text in golds)
    ):
        raise DataError(f"gold must be a string or a list of strings, got {gold!r}")
    return golds
