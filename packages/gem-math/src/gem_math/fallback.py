"""Decides whether math-verify may compare two answers, and calls it in a worker process.

Math-verify parses more notation than `gem_math.notation` and is more lenient: it finds formulas
in prose, takes the last part of a chain, and evaluates what a question asks to be evaluated. So it
is asked only about an answer that is one formula, has no more parts than the gold, and leaves
nothing to compute: neither what `gem_math.forms.unevaluated` finds nor any operation unknown to
that module; see `refusal`.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re

from gem.errors import MissingExtraError
from gem.workers.pool import WorkerPool
from gem_math.vocabulary import FUNCTIONS, GREEK, is_notation, words

TARGET = "gem_math.symbolic:equal"

# Math-verify would hardly finish: powers of powers of numbers, large exponents and factorials.
_COSTLY = re.compile(
    r"\d\s*(?:\^|\*\*)[\s({]*\d+\s*(?:\^|\*\*)|(?:\^|\*\*)[\s({]*-?\d{4,}|(?:\^|\*\*)[\s({]*\d+\s*"
    r"(?:\^|\*\*)|\d{4,}[\s)}]*!|\)\s*!|factorial|binom\s*\{[^{}]*\d{4}"
)
_MAX_LENGTH = 500
_MAX_DEPTH = 12

_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{\s*[a-zA-Z]+\*?\s*\}(?:\s*\{[\sclr|]+\})?")
# Commands that leave nothing to compute, or no more than what `gem_math.notation` parses.
_FORM = (GREEK | FUNCTIONS - {"floor", "ceil", "binom", "max", "min", "gcd", "lcm"}) | words("""
    frac dfrac tfrac cfrac sqrt pi infty cdot times pm mp begin end row dollar deg circ prime
    mathbb mathcal overline bar hat vec overrightarrow in notin cup cap setminus subset emptyset
    varnothing mid vert lvert rvert langle rangle lbrace rbrace lbrack rbrack le leq leqq leqslant
    ge geq geqq geqslant lt gt ne neq cdots ldots dots forall exists colon ell quad
""")
_WORD = re.compile(r"[^\W\d_]{3,}")
# Marks that math-verify leaves out: primes behind what is no name, and what goes on.
_DROPPED = re.compile(r"[^a-zA-Z\s'\"]\s*['\"]|\\[lc]?dots(?![a-zA-Z])")
# Characters that `gem_math.cleaning` does not translate; math-verify drops some, as in `42 ≅ 7`.
_UNKNOWN = re.compile(r"[^\x00-\x7f°º]")
_GROUPED = re.compile(r"(?<=\d)(?<!(?<!\d)0),(?=\d{3}(?!\d))")
_BRACKETED = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")
_SEPARATOR = re.compile(r"[,;&]|\\row|\\lor|\\vee|\\wedge|\\land|\b(?:or|and)\b")
_EQUALITY = re.compile(r"(?<![<>!=])=")
_NAMED = re.compile(r"\s*\\?[a-zA-Z]+(?:_\{?\w+\}?)?(?:\([a-zA-Z]\))?\s*=(?!=)")
_ARITHMETIC = re.compile(
    r"[\d%][\s)}\]]*(?:[-+*/]|\\cdot|\\times|\\div)[\s({\[]*(?:\d|\\[dtc]?frac\s*\{?\d+\}?\{?\d)|"
    # A number behind another number, a letter or a word: math-verify may take only the first.
    r"(?:\d|(?<![\\a-zA-Z])(?!and\b|or\b)[a-zA-Z]+)\s+\d|\d\s*_|"
    r"\)\s*\(\s*\d|\d\s*!|\\end\{\w+\}\s*[-+*]?\s*\\begin"
)
# What math-verify drops between two numbers, as in `0\$42`.
_SIGN = re.compile(
    r"\\dollar(?![a-z])|(?:\^\s*\{?\s*)?\\(?:circ|degree)(?![a-zA-Z])(?:\s*\})?|[°º]"
)


@functools.cache
def _check_installed() -> None:
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtraError("gem-math needs math-verify: pip install 'gem-core[math]'")


def refusal(answer: str, gold: str, readable: bool) -> str:
    """Return why math-verify may not compare two cleaned texts; '' if it may.

    Args:
        answer: The policy's answer.
        gold: The right answer; commands and words in it are allowed in the answer too.
        readable: Whether `gem_math.notation` parses the answer.

    Returns:
        `too complex` where math-verify would hardly finish; `different` for an answer with more
        parts than the gold, such as several answers of which one is right; `unreadable` for prose,
        for an answer with more equations, primes or ellipses than the gold, with other characters
        outside ASCII, and for operations left to compute.
    """
    if _costly(answer) or _costly(gold):
        return "too complex"
    if _parts(answer) > _parts(gold):
        return "different"
    if readable:
        return ""
    if len(_DROPPED.findall(answer)) > len(_DROPPED.findall(gold)):
        return "unreadable"
    if set(_UNKNOWN.findall(answer)) - set(_UNKNOWN.findall(gold)):
        return "unreadable"
    commands = set(_COMMAND.findall(answer)) - set(_COMMAND.findall(gold))
    if commands - _FORM:
        return "unreadable"
    words = set(_words(answer)) - set(_words(gold))
    if any(not is_notation(word) for word in words):
        return "unreadable"
    equalities = len(_EQUALITY.findall(answer)) - len(_EQUALITY.findall(gold))
    if equalities > 1 or (equalities == 1 and not _NAMED.match(answer)):
        return "unreadable"
    # Operations between two numbers or two matrices.
    mine, theirs = (len(_ARITHMETIC.findall(_SIGN.sub(" ", text))) for text in (answer, gold))
    return "unreadable" if mine > theirs else ""


def ask(pool: WorkerPool, answer: str, gold: str, timeout_s: float) -> tuple[bool, str]:
    """Return math-verify's verdict on two cleaned texts, and the reason.

    Raises:
        MissingExtraError: Math-verify is not installed.
        UnreachableError: No worker can be started, or somebody killed two of them.
    """
    _check_installed()
    reply = pool.call(answer, gold, timeout_s=timeout_s)
    if reply.failure == "crash":
        # Retry once: if the answer caused the crash, it crashes again.
        reply = pool.call(answer, gold, timeout_s=timeout_s)
    if reply.failure in ("timeout", "crash"):
        return False, reply.failure
    if reply.failure is not None or reply.value is None:
        # Math-verify raised, or could not parse one of the texts.
        return False, "unreadable"
    return bool(reply.value), "symbolic" if reply.value else "different"


def _words(text: str) -> list[str]:
    return _WORD.findall(_COMMAND.sub(" ", _ENVIRONMENT.sub(" ", text)))


def _parts(text: str) -> int:
    """Return the number of separators outside brackets: the number of parts, less one."""
    text, changed = _GROUPED.sub("", text), 1
    while changed:
        text, changed = _BRACKETED.subn(" ", text)
    return len(_SEPARATOR.findall(text))


def _costly(text: str) -> bool:
    """Return whether math-verify would hardly finish, judged by the text alone."""
    if len(text) > _MAX_LENGTH or _COSTLY.search(text):
        return True
    depths = itertools.accumulate((c in "({[") - (c in ")}]") for c in text)
    return max(depths, default=0) > _MAX_DEPTH
