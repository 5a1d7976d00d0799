"""Grades mathematical answers: by text, then by value, then by math-verify in a worker process.

1. Equal texts, integers and decimals are decided at once.
2. `gem_math.notation` parses both answers and `gem_math.compare` compares them: numbers
   with percent signs, units and grouped digits, fractions, roots, functions, polynomials,
   equations, tuples, sets, intervals, matrices. Words are compared as text, never as products of
   letters.
3. Where 2. cannot parse one of the two, math-verify decides, in a worker that is killed at the time
   limit. `gem_math.fallback` decides which answers math-verify may see: an integral or a sum that
   merely restates the problem does not answer a question for a number.

Work in this process is bounded by the length of the texts.
"""

from __future__ import annotations

import asyncio
import functools
import numbers
import re
import time
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from math import isfinite, nan
from typing import Any, NamedTuple, TypeAlias

from gem.errors import DataError
from gem.grading.verdict import Verdict
from gem.workers.pool import shared
from gem_math import fallback, notation, phrases
from gem_math.cleaning import clean
from gem_math.compare import same
from gem_math.forms import unevaluated
from gem_math.tree import Node, TooComplexError, UnreadableError

Number: TypeAlias = "int | float | Fraction | Decimal"
Gold: TypeAlias = "str | Number | Sequence[str | Number]"
_Question: TypeAlias = "tuple[str, str]"
"""A cleaned answer and a cleaned gold for math-verify to compare."""

# No digit can match both parts, so matching takes linear time.
_INTEGER = re.compile(r"\s*([+-]?)0*(0|[1-9][0-9]*)\s*")
_DECIMAL = re.compile(r"\s*[+-]?[0-9]{1,30}(?:\.[0-9]{1,11})?\s*")
# Longest text that is parsed; a longer answer is right only if its text equals the gold's.
_MAX_LENGTH = 2 * notation.MAX_LENGTH
_WORDS = re.compile(r"[\w\s'’.,:;&%/()!?-]+")
_EDGES = " ().,:;?"
_LETTER = re.compile(r"[^\W\d_]")
# Letters of choices, and of true, false, yes and no; the case of other symbols matters.
_CASELESS = frozenset("abcdefghijtfyn")
# Words that say the same of a statement or a value.
_SYNONYMS = {"yes": "true", "no": "false", "undefined": "dne", "does not exist": "dne"}
_WORD = re.compile(r"[^\W\d_]{2}")
_SPACES = re.compile(r"(?<!\d) | (?!\d)")


class _Reading(NamedTuple):
    """A text in the forms that are compared."""

    cleaned: str
    """The text without typesetting; see `gem_math.cleaning`."""
    text: str
    """The cleaned text without insignificant spaces."""
    words: str
    """The cleaned text in lower case, without surrounding punctuation; empty if case matters, as
    in formulas."""
    node: Node | None
    problem: str = ""
    """Why `node` is None: `unreadable` or `too complex`."""


def grade(prediction: str | None, gold: Gold, *, timeout_s: float = 1.0) -> Verdict:
    """Return whether an answer means the same as the gold.

    Args:
        prediction: The policy's answer, without the box around it; None when it gave none.
        gold: The right answer, LaTeX or plain, or a number; or several, any of which is right.
            A decimal of 12 digits or more is taken to be rounded.
        timeout_s: CPU time in seconds that math-verify may use for each gold that it compares,
            without the start of its process (about two seconds, once).

    Returns:
        A verdict with reason `exact`, `number`, `text`, `value` or `symbolic` (the layer that
        decided, if correct), or `different`, `unevaluated` (operations are left to carry out; see
        `gem_math.forms`), `no answer`, `empty`, `unreadable`, `too complex` (refused: too
        long, nested too deeply, too large a power or factorial), `timeout`, or `crash` (the worker
        died, out of memory for instance).

    Raises:
        DataError: The gold is not a string, a finite number or a non-empty sequence of these, or
            it is empty.
        MissingExtraError: Math-verify is needed and not installed.
        BusyMachineError: The machine gave math-verify too little CPU time, also when it ran alone.
        UnreachableError: Math-verify is needed, and its process cannot be started or was killed
            from outside twice.
    """
    began = time.perf_counter()
    correct, reason, undecided = _decide(prediction, gold)
    for question in undecided:
        correct, reason = fallback.ask(shared(fallback.TARGET), *question, timeout_s)
        if correct:
            break
    return Verdict(correct, reason, time.perf_counter() - began, float(correct))


async def agrade(prediction: str | None, gold: Gold, *, timeout_s: float = 1.0) -> Verdict:
    """Like `grade`, without blocking the event loop."""
    return await asyncio.to_thread(grade, prediction, gold, timeout_s=timeout_s)


def _decide(prediction: str | None, gold: Gold) -> tuple[bool, str, Sequence[_Question]]:
    """Return correctness and reason without math-verify, and the questions left for it."""
    if type(gold) is str and type(prediction) is str:
        # Integers of any length are compared as text, in linear time.
        right = _gold_integer(gold)
        found = None if right is None else _integer(prediction)
        if found is None:
            return _decide_one(prediction, gold)
        correct = found == right
        return correct, "number" if correct else "different", ()
    golds = _golds(gold)
    reason = ""
    undecided: list[_Question] = []
    for text in golds:
        correct, why, question = _decide_one(prediction, text)
        if correct:
            return True, why, ()
        reason = reason or why
        undecided += question
    return False, reason, undecided


def _decide_one(prediction: Any, gold: str) -> tuple[bool, str, Sequence[_Question]]:
    expected = _gold_reading(gold)
    if not isinstance(prediction, str):
        return False, "no answer", ()
    stripped = prediction.strip()
    if not stripped:
        return False, "empty", ()
    if stripped == gold.strip():
        return True, "exact", ()
    if _DECIMAL.fullmatch(prediction) and _DECIMAL.fullmatch(gold):
        correct = Decimal(stripped) == Decimal(gold.strip())
        return correct, "number" if correct else "different", ()
    if len(prediction) > _MAX_LENGTH:
        different = _INTEGER.fullmatch(stripped) and _DECIMAL.fullmatch(gold)
        return False, "different" if different else "too complex", ()
    answer = _read(prediction)
    if not answer.text:
        return False, "empty", ()
    if answer.text == expected.text:
        return True, "exact", ()
    if expected.words and answer.words == expected.words:
        return True, "text", ()
    if len(expected.words) == 1 and phrases.chosen(answer.cleaned) == expected.text.strip(_EDGES):
        return True, "text", ()
    if expected.node is None and expected.words:
        return False, "different", ()
    if expected.node is None or answer.problem == "unreadable":
        return _decide_by_fallback(answer, expected)
    if answer.node is None:
        return False, answer.problem, ()
    try:
        correct = same(answer.node, expected.node)
        if correct and unevaluated(answer.node, expected.node):
            return False, "unevaluated", ()
    except (TooComplexError, RecursionError):
        return False, "too complex", ()
    return correct, "value" if correct else "different", ()


def _decide_by_fallback(
    answer: _Reading, expected: _Reading
) -> tuple[bool, str, Sequence[_Question]]:
    reason = fallback.refusal(answer.cleaned, expected.cleaned, answer.node is not None)
    try:
        # A gold that cannot be parsed has only its text: then search the answer's text, too.
        if not reason and unevaluated(answer.cleaned, expected.node or expected.cleaned):
            reason = answer.problem or "unevaluated"
    except (TooComplexError, RecursionError):
        reason = "too complex"
    if reason:
        return False, reason, ()
    return False, answer.problem or "different", ((answer.cleaned, expected.cleaned),)


def _integer(text: str) -> str | None:
    """Return an integer as it is usually written, `-12`; None if the text is no integer."""
    if text.isdigit() and text.isascii():
        return text.lstrip("0") or "0"
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    return f"-{found[2]}" if found[1] == "-" and found[2] != "0" else found[2]


_gold_integer = functools.lru_cache(maxsize=4096)(_integer)


@functools.lru_cache(maxsize=4096)
def _gold_reading(gold: str) -> _Reading:
    reading = (
        _read(gold) if len(gold) <= _MAX_LENGTH else _Reading(gold, gold, gold, None, "too complex")
    )
    if not reading.text:
        raise DataError(f"gold is empty: {gold!r}")
    return reading


def _read(text: str) -> _Reading:
    cleaned = phrases.cardinal(clean(phrases.without_phrase(text)))
    compact = _SPACES.sub("", cleaned).replace("{,}", ",")
    node, problem, words = None, "", ""
    try:
        node = notation.read(cleaned)
    except UnreadableError:
        problem = "unreadable"
    except TooComplexError:
        problem = "too complex"
    if _WORDS.fullmatch(cleaned):
        folded = cleaned.casefold()
        bare = folded.strip(_EDGES)
        if node is None:
            words = bare.rstrip("!" + _EDGES)
            words = _SYNONYMS.get(words, words)
        elif _LETTER.fullmatch(bare):
            words = bare if bare in _CASELESS else ""
        elif _WORD.search(cleaned):
            words = folded
    return _Reading(cleaned, compact, words, node, problem)


def _golds(gold: Any) -> list[str]:
    if isinstance(gold, (str, numbers.Number)):
        return [_text(gold)]
    if isinstance(gold, Sequence) and not isinstance(gold, (bytes, bytearray)) and len(gold):
        return [_text(each) for each in gold]
    raise DataError(
        f"gold must be a string, a finite number or a non-empty list of these, got {gold!r}"
    )


def _text(gold: Any) -> str:
    if isinstance(gold, str):
        return gold
    number: Any = gold
    if isinstance(gold, bool) or not isinstance(gold, (numbers.Real, Decimal)):
        number = nan
    elif isinstance(gold, numbers.Integral):
        # Converts NumPy integers.
        number = int(gold)
    elif not isinstance(gold, (numbers.Rational, Decimal)):
        number = float(gold)
    if isinstance(number, Decimal):
        finite = number.is_finite()
    else:
        finite = not isinstance(number, float) or isfinite(number)
    if not finite:
        raise DataError(f"gold must be a string or a finite number, got {gold!r}")
    try:
        return str(number)
    except ValueError:
        # Python refuses to print integers of more than some thousand digits.
        raise DataError("gold must be a number of at most some thousand digits") from None
