r"""Finds matching braces and the boxes, `\boxed{...}`, in a reply, in time linear in its length."""

from __future__ import annotations

import re
from typing import NamedTuple

# An escaped brace, `\{`, opens nothing; `\\` escapes no brace, unless a command begins in it.
_TOKEN = re.compile(r"(\\(?:boxed|fbox)\s*\{)|\\\\(?!(?:boxed|fbox)\s*\{)|\\[{}]|([{}])")


class Box(NamedTuple):
    r"""The place of a `\boxed{...}` or `\fbox{...}` in a reply."""

    begin: int
    """Of the command."""
    start: int
    """Of the content."""
    end: int | None
    """Of the content, where the closing brace is; None if there is none."""


def find_boxes(reply: str) -> list[Box]:
    """Return all boxes, in the order in which they open."""
    if "boxed" not in reply and "fbox" not in reply:
        return []
    boxes: list[Box] = []
    # Places in `boxes` of those that are open, None for a brace of another kind.
    opened: list[int | None] = []
    for token in _TOKEN.finditer(reply):
        if token[1]:
            opened.append(len(boxes))
            boxes.append(Box(token.start(), token.end(), None))
        elif token[2] == "{":
            opened.append(None)
        elif token[2] == "}" and opened:
            place = opened.pop()
            if place is not None:
                boxes[place] = boxes[place]._replace(end=token.start())
    return boxes


def boxed_texts(reply: str) -> list[str]:
    """Return the contents of all boxes that are closed, in the order in which they open."""
    return [reply[box.start : box.end] for box in find_boxes(reply) if box.end is not None]


def closing_brace(text: str, start: int) -> int | None:
    """Return the place of the brace that closes one opened before `start`, None if none does."""
    depth = 1
    for token in _TOKEN.finditer(text, start):
        if token[1] or token[2] == "{":
            depth += 1
        elif token[2] == "}":
            depth -= 1
            if not depth:
                return token.end() - 1
    return None
