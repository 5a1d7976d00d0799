r"""Finds matching braces and the boxes, `\boxed{...}`, in a reply, in time linear in its length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# An escaped brace, `\{`, opens nothing; `\\` escapes no brace, unless a command begins in it.
_TOKEN = re.compile(r"(\\(?:boxed|fbox)\s*\{)|\\\\(?!(?:boxed|fbox)\s*\{)|\\[{}]|({)|(})")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# Without any brace inside. If no other brace opens, these are all boxes.
_PLAIN = re.compile(r"\\boxed\{([^{}\\]*)\}")

_LONGEST_MOVE = 1000
_MOST_MOVES = 50


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
    first = _BOX.search(reply)
    if first is None:
        return []
    places: list[tuple[int, int]] = []
    ends: dict[int, int] = {}
    # Numbers of the boxes that are open, -1 for a brace of another kind.
    opened: list[int] = []
    # What is open before the first box closes none.
    for token in _TOKEN.finditer(reply, first.start()):
        kind = token.lastindex
        if kind == 1:
            opened.append(len(places))
            places.append(token.span())
        elif kind == 2:
            opened.append(-1)
        elif kind == 3 and opened:
            ends[opened.pop()] = token.start()
    return [Box(begin, start, ends.get(place)) for place, (begin, start) in enumerate(places)]


def boxed_texts(reply: str) -> list[str]:
    """Return the contents of all boxes that are closed, in the order in which they open."""
    plain = _PLAIN.findall(reply)
    if len(plain) == reply.count("{"):
        return plain
    return [reply[box.start : box.end] for box in find_boxes(reply) if box.end is not None]


def boxed_moves(reply: str) -> Iterator[str]:
    """Yield the contents of closed boxes that can be moves, beginning with the last that opens.

    These are the last 50 boxes, except those with more than 1,000 characters. Without these limits
    the time to read boxes in boxes would grow with the square of the reply's length.
    """
    plain = _PLAIN.findall(reply)
    if len(plain) == reply.count("{"):
        yield from (text for text in plain[: -_MOST_MOVES - 1 : -1] if len(text) <= _LONGEST_MOVE)
        return
    closed = [(box.start, box.end) for box in find_boxes(reply) if box.end is not None]
    for start, end in closed[: -_MOST_MOVES - 1 : -1]:
        if end - start <= _LONGEST_MOVE:
            yield reply[start:end]


def closing_brace(text: str, start: int) -> int | None:
    """Return the place of the brace that closes one opened before `start`, None if none does."""
    depth = 1
    for token in _TOKEN.finditer(text, start):
        kind = token.lastindex
        if kind in (1, 2):
            depth += 1
        elif kind == 3:
            depth -= 1
            if not depth:
                return token.end() - 1
    return None
