"""Removes from an answer what is not mathematics: typesetting, text commands, units.

The first step of `gem_math.grading`, before `gem_math.notation` parses the text.
"""

from __future__ import annotations

import re
import unicodedata

from gem.grading.wrapping import unwrapped
from gem_math.vocabulary import (
    REST,
    SCALES,
    UNITS,
    WIDE_UNITS,
    changes_number,
    is_counted,
    is_notation,
    words,
)

_POWERS = {"square": "2", "sq": "2", "cubic": "3"}
_NO_UNITS = frozenset({"and", "mod"})
_ONE_OR_LESS = re.compile(
    r"[+-]?\s*(?:1|0?\.\d+|\d+\s*/\s*\d+|\\[dtc]?frac\s*(?:\{[^{}]*\}|\d){1,2})\s*"
)
_UNIT = r"(?:(?:square|sq\.?|cubic)\s+)?[a-zA-Z]+\.?(?:\s*\^?\s*\{?\s*[23]\s*\}?)?"
_UNIT_TAIL = re.compile(rf"(?<![\\a-zA-Z])({_UNIT}(?:\s*(?:/|\bper\b)\s*{_UNIT})?)$")
_MAX_UNIT = 80
_UNIT_PART = re.compile(r"(?:(square|sq|cubic)\.?\s+)?([a-zA-Z]+)\.?\s*\^?\s*\{?\s*([23]?)")

# Commands that change the typesetting only.
_LOOKS = re.compile(
    r"\\(?:displaystyle|textstyle|scriptstyle|left|right|[bB]igg?[lrm]?|limits|quad|qquad|hfill|"
    r"mathstrut|nonumber)(?![a-zA-Z])\.?|\\[,;:! ()\[\]]|~"
)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|tt|sf)?|math(?:rm|bf|it|sf|tt|normal)|mbox|hbox|operatorname|"
    r"boldsymbol|bm|vec|underline|boxed|fbox)\*?\s*\{([^{}]*)\}"
)
# Digits in groups, unless a 0 stands in front: `0,125` may be a decimal.
_DIGIT_GROUPS = re.compile(r"(?<=\d)(?<!(?<!\d)0)(?:\{,\}|,?\\[, ]|,?\\!\s*|\\;)(?=\d{3}(?!\d))")
_SPACED_DIGITS = re.compile(r"[+-]?[1-9]\d{0,2}(?: \d{3})+")
# Two backslashes for one: the text was escaped twice.
_ESCAPED_TWICE = re.compile(r"\\\\(?=[a-zA-Z]{2})")
_PRIMES = re.compile(r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|(\\prime)(?![a-zA-Z]))")
# `\text{blue cows}` after a number.
_WORDS_BEHIND = re.compile(
    r"(?<=[\d)}])\s*\\(?:text|textrm|mathrm|mbox)\s*\{\s*([a-zA-Z]+(?:\s+[a-zA-Z]+)+)\s*\}\W*$"
)
# A text after a number that contains one of these says more than what is counted.
_NO_COUNTED = words("""
    a and approximately at base be between but cubic each equals exactly for if in infinitely is
    least less many minus mod modulo more most no not only or otherwise over per plus point sq
    square than times to when where wrong
""")
_TEMPERATURE = re.compile(r"\\deg\s*([CF])$")
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])|°|º")
_SUPERSCRIPTS = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta",
    "θ": "theta", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi",
    "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ϕ": "phi", "χ": "chi", "ψ": "psi",
    "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Φ": "Phi",
    "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_CHARACTERS = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "⁄": "/",
        "∕": "/", "≈": "\\approx ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∞": "\\infty ",
        "√": " sqrt ", "∪": "\\cup ", "∈": "\\in ", "±": "\\pm ", "∓": "\\mp ", "∅": "\\emptyset ",
        "ℝ": "\\mathbb{R} ", "，": ",", "（": "(", "）": ")", "′": "'", "″": "''",
        **{letter: f"\\{name} " for letter, name in _GREEK.items()},
        "、": ",", "％": "%", "£": "\\$", "€": "\\$", "\xa0": " ",
    }
)  # fmt: skip
_REALS = re.compile(r"\\mathbb\s*\{?R\}?|\ball real numbers\b")
_ELLIPSIS = re.compile(r"\.{3,}|\\dots[a-z]?(?![a-zA-Z])")
# A fraction of one character behind a digit: `2½` is a mixed number.
_MIXED = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")
# `2:30 PM`, `9 a.m.`, `9 am`; other numbers with two letters may be a product.
_HALF_OF_DAY = re.compile(r"(\d:\d\d|^\d{1,2}(?= )|\d(?= ?[ap]\.)) ?([ap])\.? ?m$", re.IGNORECASE)
# Chinese and Japanese words behind a number, unless they change it.
_WIDE_UNIT = re.compile(r"(?<=[\d)}])\s*[\u4e00-\u9fff]{1,6}$")
# `1又1/2` is a mixed number; `x=1或x=2`, `x=1またはx=2` and `x=1且y=2` are lists.
_WIDE_MIXED = re.compile(r"(?<=\d)\s*又\s*(?=\\[dtc]?frac(?![a-z])|\d+\s*/\s*\d)")
_WIDE_OR, _WIDE_AND = re.compile(r"或者?|または|또는"), re.compile(r"并且|而且|且|かつ")
_WIDE_CHANGES = frozenset(
    "一二三四五六七八九十百千万亿億兆半倍分成多余餘点點又和或不非无無约約几幾"
)
# `5'` and `5''` are feet and inches, or minutes and seconds.
_MARKED = re.compile(r"(?<=[\d)}])\s*('{1,2})$")
_MARKS = {"'": "?ft", "''": "?in"}
_OPENING, _CLOSING = re.compile(r"(?<!\\)\{"), re.compile(r"(?<!\\)\}")
_SCALE = re.compile(rf"(?<=\d)\s*({'|'.join(SCALES)})s?\b", re.I)


def clean(text: str) -> str:
    """Return the answer without typesetting; answers with the same result are equal."""
    text = unwrapped(text)
    if not text.isascii():
        text = _MIXED.sub(" ", text)
        text = _WIDE_OR.sub(" or ", _WIDE_AND.sub(" and ", _WIDE_MIXED.sub(" ", text)))
        text = _SUPERSCRIPTS.sub(lambda m: f"^{{{m[0].translate(_SUPERSCRIPT)}}}", text)
        text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS)).translate(_CHARACTERS)
    if "\\" in text:
        if "\\prime" in text:
            text = _PRIMES.sub(lambda m: "'" * (m[1] or m[2]).count("prime"), text)
        text = _WORDS_BEHIND.sub(_joined, text) if text.rstrip("$ .\\").endswith("}") else text
        text = _DIGIT_GROUPS.sub("", text)
        if "\\\\" in text and "\\begin" not in text:
            text = _ESCAPED_TWICE.sub(r"\\", text)
        text = text.replace("\\\\", "\\row ").replace("\\$", " \\dollar ")
        text = _LOOKS.sub(" ", text)
        text = text.replace("\\%", "%").replace("\\_", "_").replace("\\&", " and ")
        for _ in range(3):
            text, changed = _TEXT.subn(r" \1 ", text)
            if not changed:
                break
    else:
        text = _DIGIT_GROUPS.sub("", text)
    if "..." in text or "\\dots" in text:
        text = _ELLIPSIS.sub(r" \\ldots ", text)
    text = " ".join(text.replace("$", " ").split()).rstrip(".,; \\").removesuffix("\\row")
    text = text.rstrip()
    if text.endswith("}") and 0 < len(_OPENING.findall(text)) == len(_CLOSING.findall(text)) - 1:
        text = text[:-1].rstrip()  # of a command that was cut off in front
    if text[-1:] in ("m", "M"):
        text = _HALF_OF_DAY.sub(lambda m: f"{m[1]} \\{m[2].upper()}M", text)
    return text.replace(" ", "") if _SPACED_DIGITS.fullmatch(text) else text


def _joined(found: re.Match[str]) -> str:
    """Join the words after a number into one, which may be a unit; keep them if they cannot be one.

    `pounds of flour left` becomes `pounds`.
    """
    words = found[1].lower().split()
    if any(word in _NO_COUNTED or word in _NO_UNITS or changes_number(word) for word in words):
        return found[0]
    if "of" in words[1:]:
        words = words[: words.index("of")]
    while len(words) > 1 and words[-1] in REST:
        words.pop()
    return " " + "".join(words)


def expanded(cleaned: str) -> tuple[str, str]:
    """Split a cleaned answer into `(text, unit)`; mathematical words in the text become signs.

    A unit is `?` and a word where it is uncertain: the word is neither a known unit nor a plural.
    """
    text = _DEGREES.sub(r" \\deg ", cleaned)
    text = _REALS.sub(r"(-\\infty,\\infty)", text)
    text = _SCALE.sub(lambda m: f"*10^{{{SCALES[m[1].lower()]}}}", text)
    last = text[-1:]
    if last == "M" and text[-3:] in ("\\AM", "\\PM"):
        return text[:-3], text[-2:]
    wide = None if text.isascii() else _WIDE_UNIT.search(text)
    if wide and wide[0].strip() in WIDE_UNITS:
        return text[: wide.start()], WIDE_UNITS[wide[0].strip()]
    if wide and _WIDE_CHANGES.isdisjoint(wide[0]):
        return text[: wide.start()], f"?{wide[0].strip()}"
    marked = _MARKED.search(text) if last == "'" else None
    if marked:
        return text[: marked.start()], _MARKS[marked[1]]
    temperature = _TEMPERATURE.search(text) if last in ("C", "F") else None
    if temperature:
        return text[: temperature.start()], "degree" + temperature[1]
    if "\\dollar" in text:
        return text.replace("\\dollar", " "), "dollar"
    if last == "%" and "," not in text and ";" not in text:
        return text[:-1], "%"
    tail = None
    if not text[-1:].isdigit() or "^" in text:
        tail = _UNIT_TAIL.search(text, max(0, len(text) - _MAX_UNIT))
    if tail is not None:
        head = text[: tail.start()]
        unit = _canonical_unit(tail[1], apart=head[-1:].isspace())
        head = head.rstrip()
        if _ONE_OR_LESS.fullmatch(head):
            # A number of 1 or less takes the singular, so the word need not be a plural.
            unit = unit.lstrip("?")
        if unit and (head[-1:] in (")", "}", "]") or head[-1:].isdigit() or head.endswith("\\pi")):
            return head, unit
    return text, ""


def _canonical_unit(phrase: str, apart: bool) -> str:
    """Return the canonical name of a unit, or '' if the phrase is not a unit.

    Any word that a space separates from its number may be a unit, such as `apples`; it is
    prefixed with `?` if it is neither known nor a plural.
    """
    parts: list[str] = []
    doubt = ""
    for part in re.split(r"/|\bper\b", phrase):
        found = _UNIT_PART.fullmatch(part.strip().rstrip("} "))
        if found is None:
            return ""
        name = found[2]
        word = name.lower()
        unit = UNITS.get(name) or (UNITS.get(word) if len(word) > 2 else None)
        if unit is None or (len(name) == 1 and not apart):
            if not apart or len(word) < 3 or word in _NO_UNITS or is_notation(word):
                return ""
            if changes_number(word):
                return ""
            if not parts and not is_counted(word):
                doubt = "?"
            unit = word.rstrip("s")
        power = found[3] or _POWERS.get(found[1] or "", "")
        parts.append(unit + power)
    return doubt + "/".join(parts)
