"""Takes an answer out of a phrase around it: `The answer is $5$.`, `C. the third one`, `5th`.

Only what can be said of one answer is taken away. Whatever is left, doubts included, is compared.
"""

from __future__ import annotations

import re

from gem_math.vocabulary import changes_number, words

_START = re.compile(
    r"\s*(?:\*\*|\\text|so\b|thus|hence|the|my\b|our|final|correct|required|ans|result|solution|val"
    r"|最终|最后|正确|答案)",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"\s*(?:\*\*|\\text\s*\{)?\s*(?:(?:so|thus|hence|therefore|then)\b,?\s*)?"
    r"(?:(?:the|my|our)\s+)?(?:(?:final|correct|required)\s+)?(?:answer|ans|result|solution|value)"
    r"\s*(?:\bis\b|\bequals\b|[:=])\s*:?\s*(?:\*\*(?!\S[^*]*\*\*)|\})?\s*"
    r"|\s*(?:最终|最后|正确)?答案\s*(?:[是为]\s*[:：]?|[:：])\s*",
    re.IGNORECASE,
)
# `The probability is $\frac12$.`: one formula, behind which nothing is said.
_SENTENCE = re.compile(
    r"\s*(?:(?:so|thus|hence|therefore),?\s+)?the((?:\s+[a-z]+){1,6})\s+(?:is|are|equals)\s*:?\s*"
    r"(?:\$([^$]+)\$|\\\(((?:(?!\\\)).)+)\\\)|((?:[^a-zA-Z$]|\\[a-zA-Z]+)+))\s*\.?\s*",
    re.IGNORECASE,
)
_BOLD = re.compile(r"\s*\*\*([^*]+)\*\*\s*")
_NO_SUBJECT = words("a an but cannot if or and than that which without")
_MAX_LENGTH = 500
_CHOICE = re.compile(r"\(?([A-J])(?:\)|[.:])\s+(.+)")
_OTHER_CHOICE = re.compile(r"\b[B-J]\b|\bA\b(?! [a-z])")
_DOUBTS = words("""
    and but else either false incorrect instead maybe neither never no nor not or perhaps possibly
    probably rather versus wrong
""")
_ORDINAL = re.compile(r"(\d+)\s*(?:\^\s*)?(?:\{\s*)?(st|nd|rd|th)(?:\s*\})?")
_LAST = frozenset("tdh}")
_ENDINGS = {"1": "st", "2": "nd", "3": "rd"}


def without_phrase(text: str) -> str:
    """Return the answer in a sentence that says what the answer is; any other text unchanged."""
    if len(text) > _MAX_LENGTH or not _START.match(text):
        return text
    bold = _BOLD.fullmatch(text)
    if bold:
        return bold[1]
    lead = _LEAD.match(text)
    if lead:
        rest = text[lead.end() :]
        return rest if rest.strip(" .*$") else text
    sentence = _SENTENCE.fullmatch(text)
    if sentence is None:
        return text
    subject = sentence[1].lower().split()
    if any(word in _NO_SUBJECT or changes_number(word) for word in subject):
        return text
    return str(sentence[2] or sentence[3] or sentence[4])


def chosen(cleaned: str) -> str:
    """Return the letter of a choice that its text follows, such as `C. the third one`; '' if none.

    Args:
        cleaned: A text that `gem_math.cleaning.clean` returned.
    """
    found = _CHOICE.fullmatch(cleaned)
    if found is None or _OTHER_CHOICE.search(found[2]):
        return ""
    rest = re.findall(r"[a-z]+", found[2].lower())
    return found[1] if rest and _DOUBTS.isdisjoint(rest) else ""


def cardinal(cleaned: str) -> str:
    """Return the number of an ordinal, `5` for `5th`; any other text unchanged."""
    found = _ORDINAL.fullmatch(cleaned) if cleaned[-1:] in _LAST else None
    if found is None:
        return cleaned
    digits = found[1]
    ending = "th" if digits[-2:-1] == "1" else _ENDINGS.get(digits[-1], "th")
    return digits if found[2] == ending else cleaned
