"""Short text answers: exact match and token F1 after the usual normalisation.

SQuAD's rule deletes punctuation and articles. Here it keeps what would change the answer: the marks
inside numbers (1.5 is not 15), the minus before one, `C#` and `A+`, and answers of which nothing
would be left. docs/grading.md lists what still counts as equal.
"""

from __future__ import annotations

import re
import string
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

from gem.errors import DataError
from gem.grading.verdict import Verdict
from gem.grading.wrapping import readings, visible

Gold: TypeAlias = "str | Sequence[str]"

_ARTICLES = re.compile(r"(?<!\S)(?:a|an|the)(?!\S)")
_ASCII_MARK = re.compile(f"[{re.escape(string.punctuation)}]")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_MARKS = re.compile(
    # Kept, for the answer is another one without it: `1.5`, `1/2`, `3:30`; `.5`; `-5`, `-$5`;
    # `C#`, `C++`, `A+`; `A-`, `AB-`.
    r"(?P<kept>(?<=\d)[.:/](?=\d)|(?<![\w.])\.(?=\d)|(?<![\w)\].%-])-(?=[$£€]?\.?\d)|"
    r"(?<=\w)(?:\#|\+{1,2})(?!\w)|(?:(?<=\b[a-z])|(?<=\bab))-(?!\w))"
    # Parts two numbers: `1914-1918`.
    r"|(?P<between>(?<=\d)[^\w\s]+(?=\d))"
    rf"|{_ASCII_MARK.pattern}"
)
# Without one of these, no mark is kept.
_AT_NUMBERS = re.compile(r"[#+-]|[.$£€]\d|\d[^\w\s]+\d")
_DELETED = str.maketrans("", "", string.punctuation)
_MINUS = re.compile(r"(?<![\w)\].%-])[\u2010-\u2015\ufe58\ufe63\uff0d](?=[$£€]?\.?\d)|\u2212")
_VULGAR = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
# Other numbers, such as 007, are names.
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?|\.[0-9]{1,30})")


def grade(prediction: str | None, gold: Gold) -> Verdict:
    """Return whether the prediction is one of the golds after normalisation.

    Args:
        prediction: The policy's answer; None when it gave none.
        gold: The right answer, or several, any of which is right. Numbers are compared as numbers.

    Returns:
        A verdict with reason `match`, `different`, `empty` or `no answer`.

    Raises:
        DataError: The gold is not a string or a non-empty sequence of strings.
    """
    began = time.perf_counter()
    expected = {_expected(text) for text in _readings(gold)} - {""}
    if not isinstance(prediction, str):
        return Verdict(False, "no answer", time.perf_counter() - began, 0.0)
    answers = [_compared(reading) for reading in readings(prediction)]
    correct = not expected.isdisjoint(answers)
    reason = "match" if correct else "different" if set(answers) - {""} else "empty"
    return Verdict(correct, reason, time.perf_counter() - began, float(correct))


def f1(prediction: str | None, gold: Gold) -> float:
    """Return the best token F1 of the prediction with any gold, from 0 to 1.

    F1 is the harmonic mean of precision and recall of the prediction's tokens, counted with
    multiplicity (Rajpurkar et al. 2016, section 6.1).

    Raises:
        DataError: The gold is not a string or a non-empty sequence of strings.
    """
    golds = _readings(gold)
    texts = readings(prediction) if isinstance(prediction, str) else ()
    best = 0.0
    for said in [Counter(normalise(text).split()) for text in texts]:
        for text in golds:
            expected = Counter(normalise(text).split())
            shared = (said & expected).total() if said else 0
            if shared:
                best = max(best, 2 * shared / (said.total() + expected.total()))
    return best


def normalise(text: str) -> str:
    """Return the text in lower case, without accents, punctuation, articles and extra spaces.

    Punctuation that changes an answer stays: see the module. A text of punctuation or articles
    alone keeps them.
    """
    if text.isascii() and not _ASCII_MARK.search(text):
        words = " ".join(text.casefold().split())
        return " ".join(_ARTICLES.sub(" ", words).split()) or words
    text = visible(text)
    while True:
        shorter = _shortened(text)
        if shorter == text or (shorter.isascii() and not _ASCII_MARK.search(shorter)):
            return shorter
        # What was taken away may leave other marks side by side.
        text = shorter


def _shortened(text: str) -> str:
    if not text.isascii():
        text = _VULGAR.sub(" ", _MINUS.sub("-", text))
        # Compatibility decomposition splits letters from their accents, which are then dropped.
        decomposed = unicodedata.normalize("NFKD", text).replace("\N{FRACTION SLASH}", "/")
        text = "".join(
            " " if unicodedata.category(c) == "Pd" and c != "-" else c
            for c in decomposed
            if not unicodedata.combining(c)
        )
    folded = " ".join(text.casefold().split())
    if _AT_NUMBERS.search(folded):
        words = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), folded)
        words = _MARKS.sub(_mark, words)
    else:
        words = folded.translate(_DELETED)
    if not words.isascii():
        words = "".join(c for c in words if c.isascii() or unicodedata.category(c)[0] != "P")
    words = " ".join(words.split()) or folded
    return " ".join(_ARTICLES.sub(" ", words).split()) or words


def _mark(found: re.Match[str]) -> str:
    return found[0] if found["kept"] else " " if found["between"] else ""


def _compared(text: str) -> str | Decimal:
    """Return what two equal answers have in common: a number, or the normalised text."""
    words = normalise(text)
    return Decimal(words) if _NUMBER.fullmatch(words) else words


# Many answers are compared with one gold.
_expected = lru_cache(maxsize=4096)(_compared)


def _readings(gold: Any) -> list[str]:
    return [reading for text in _golds(gold) for reading in readings(text)]


def _golds(gold: Any) -> Sequence[str]:
    golds = [gold] if isinstance(gold, str) else gold
    if (
        not isinstance(golds, Sequence)
        or not golds
        or not all(isinstance(text, str) for text in golds)
    ):
        raise DataError(f"gold must be a string or a list of strings, got {gold!r}")
    return golds
