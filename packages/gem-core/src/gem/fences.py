"""Finds fenced code blocks in a reply; answers and tool calls are read by the same rule.

A block opens with at least three backticks or tildes and an info string, whose first word is the
language. It ends at the first line that begins with at least as many of the same characters. A
block of Python ends at the first such backticks outside of its strings and comments: a program may
contain fences.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# At the beginning of a line with any info string; elsewhere with one word at most.
_OPEN = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>(?P<char>[`~])(?P=char){2,})(?!(?P=char))"
    r"(?P<info>[^`\n]*)(?:\n|\Z)"
    r"|(?<![`\n])(?P<within>`{3,})(?!`)(?P<word>(?<=\s```)|[^\s`]+)[ \t]*(?:\n|\Z)"
    r"|(?<!`)(?P<inline>`{3})(?:python3?|py)[ \t]+(?P<code>[^`\n]+)```(?!`)",
    re.MULTILINE | re.IGNORECASE,
)
# What matters on the way to the end of a block: text in quotes, comments, lines with a fence.
_STEP = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})(?P<rest>[^\n]*)|(?P<within>`{3,})"
    r"|(?P<triple>\"\"\"|''')"
    r"|\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?|#[^\n]*",
    re.MULTILINE | re.DOTALL,
)
_TRIPLE_END = {
    quotes: re.compile(
        rf"(?:[^\\{quotes[0]}]|\\.|{quotes[0]}{{1,2}}(?!{quotes[0]}))*{quotes}", re.S
    )
    for quotes in ('"""', "'''")
}
_LINE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})(?P<rest>[^\n]*)", re.MULTILINE)
_PYTHON = re.compile(r"py(?:thon)?[\d.]*")
_WORD = re.compile(r"\s*\{?\.?([^\s,:{}]*)")


class Fenced(NamedTuple):
    """A fenced block, with the positions where its fences start and end."""

    start: int
    content: str
    """The text between the fences, without the indentation of the opening one."""
    end: int
    language: str
    """The first word of the info string, in lower case; empty if there is none."""
    closed: bool
    """Whether the block has an end; otherwise the next block or the end of the text ends it."""

    @property
    def python(self) -> bool:
        """Whether the block says that it is Python."""
        return _PYTHON.fullmatch(self.language) is not None


def fenced_blocks(text: str) -> list[Fenced]:
    """Return the fenced blocks of a text, in order; takes linear time for any text."""
    blocks: list[Fenced] = []
    position, quoted = 0, True
    while (opening := _OPEN.search(text, position)) is not None:
        if opening["inline"]:
            blocks.append(
                Fenced(opening.start("inline"), opening["code"], opening.end(), "python", True)
            )
            position = opening.end()
            continue
        fence = opening["fence"] or opening["within"]
        info = opening["word"] if opening["fence"] is None else opening["info"]
        word = _WORD.match(info)
        language = word[1].lower() if word else ""
        python = not language or _PYTHON.fullmatch(language) is not None
        closing = None
        if python and quoted:
            closing = _closing(text, opening.end(), fence)
            # What has no end would be looked for again and again.
            quoted = closing is not None
        start = opening.start("fence") if opening["fence"] else opening.start("within")
        closing = closing or _first_closing(text, opening.end(), fence)
        content_end, end, closed = closing
        content = _outdented(text[opening.end() : content_end], opening["indent"] or "")
        blocks.append(Fenced(start, content, end, language, closed))
        position = end
    return blocks


def _closing(text: str, position: int, fence: str) -> tuple[int, int, bool] | None:
    """Return where a block of Python ends; None if its strings, or the block, do not end."""
    begin = position
    while (step := _STEP.search(text, position)) is not None:
        position = step.end()
        if step["triple"]:
            ending = _TRIPLE_END[step["triple"]].match(text, position)
            if ending is None:
                return None
            position = ending.end()
        elif step["fence"] and step["fence"].startswith(fence):
            return _ended(text, begin, step)
        elif step["within"] and step["within"].startswith(fence):
            return step.start(), step.end(), True
    return None


def _first_closing(text: str, begin: int, fence: str) -> tuple[int, int, bool]:
    """Return where a block ends if its quotes mean nothing."""
    position = begin
    while (line := _LINE.search(text, position)) is not None:
        if line["fence"].startswith(fence):
            return _ended(text, begin, line)
        position = line.end()
    return _within(text, begin, len(text), fence)


def _ended(text: str, begin: int, line: re.Match[str]) -> tuple[int, int, bool]:
    """Return the end of a block at a line that begins with its fence.

    With a word right behind it, the line opens the next block.
    """
    if re.match(r"\w", line["rest"]):
        return _within(text, begin, line.start(), line["fence"])
    return line.start(), line.end("fence"), True


def _within(text: str, begin: int, end: int, fence: str) -> tuple[int, int, bool]:
    """Return the end of a block by a fence that does not begin its line, if there is one."""
    found = text.find(fence, begin, end)
    return (end, end, False) if found < 0 else (found, found + len(fence), True)


def _outdented(content: str, indent: str) -> str:
    if not indent:
        return content
    lines = content.split("\n")
    return "\n".join(line.removeprefix(indent) for line in lines)
