r"""What may stand around the whole of an answer without changing it.

Models write `\boxed{\text{up}}`, `\boxed{$5$}` or `**up**` where `up` is meant, and texts from web
pages hold characters that nobody sees. Every grader and every game reads its answers here:
`readings` where a text is looked up or parsed, `unwrapped` where both sides are normalised anyway.
"""

from __future__ import annotations

import re
import unicodedata

from gem.grading.braces import closing_brace

# Commands that set all of their argument in a font or a frame.
_COMMAND = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|tt|sf|sc|up|md)?|math(?:rm|bf|it|sf|tt|normal)|mbox|hbox|"
    r"operatorname|boldsymbol|bm|emph|underline|boxed|fbox)\*?\s*\{"
)
# The longer of two that begin alike comes first.
_PAIRS = (
    *(("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")),
    *(("**", "**"), ("__", "__"), ("*", "*"), ("```", "```"), ("`", "`")),
    *(('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("«", "»"), ("„", "“")),
)
_OPENING = frozenset({begin[0] for begin, _ in _PAIRS} | {"\\"})
_ESCAPED = re.compile(r"\\([_%#&${}])")
# Invisible, but not of the category Cf: the grapheme joiner, the variation selectors, and the
# Mongolian separators.
_SELECTORS = frozenset({0x034F, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)})
# Of the category Cf, but with a shape: signs before Arabic, Syriac and Kaithi numbers.
_DRAWN = frozenset({*range(0x0600, 0x0606), 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD})
_MOST_LAYERS = 6


def visible(text: str) -> str:
    """Return a text without the characters that nobody sees, such as U+200B and U+FEFF.

    These are the category Cf of Unicode (zero widths, marks of direction, soft hyphens) and the
    selectors of glyphs.
    """
    if text.isascii():
        return text
    return "".join(c for c in text if c < "\x80" or not _invisible(c))


def _invisible(character: str) -> bool:
    number = ord(character)
    if number in _SELECTORS:
        return True
    return unicodedata.category(character) == "Cf" and number not in _DRAWN


def unwrapped(text: str) -> str:
    """Return a text without what stands around the whole of it.

    That is: whitespace, text and font commands, mathematics signs, Markdown, quotes, a final point,
    and anywhere in it the characters that nobody sees. Takes time linear in the length.
    """
    text = visible(text).strip()
    for _ in range(_MOST_LAYERS):
        inner = _inner(text)
        if inner is None:
            break
        text = inner
    return text


def readings(text: str) -> tuple[str, ...]:
    r"""Return what a text may mean, each once: as it is written first, then layer by layer.

    The last reading has `\_`, `\%` and the like as the characters they stand for, since they can
    be written in no other way inside `\text`. A grader that takes any of them takes the text.
    """
    text = text.strip()
    if text.isascii() and not _may_be_wrapped(text) and "\\" not in text:
        return (text,)
    found = {text: None, visible(text).strip(): None}
    for _ in range(_MOST_LAYERS):
        inner = _inner(next(reversed(found)))
        if inner is None:
            break
        found[inner] = None
    found[_ESCAPED.sub(r"\1", next(reversed(found)))] = None
    return tuple(found)


def _may_be_wrapped(text: str) -> bool:
    return text[:1] in _OPENING or text[-1:] == "."


def _inner(text: str) -> str | None:
    """Return a text without its outermost layer, None if it has none; never an empty text."""
    if not _may_be_wrapped(text):
        return None
    command = _COMMAND.match(text)
    if command is not None:
        end = closing_brace(text, command.end())
        if end == len(text) - 1:
            return text[command.end() : end].strip() or None
    for begin, end_ in _PAIRS:
        if text.startswith(begin) and text.endswith(end_):
            return text[len(begin) : -len(end_)].strip() or None
    if text.endswith(".") and not text.endswith("..."):
        return text[:-1].rstrip() or None
    return None
