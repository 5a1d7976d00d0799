"""What keeps a task from running in a box: where it stands, and how many of a kind there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that a box cannot do."""

    file: str
    """In the task's folder; or `image`, `solution`, ..."""
    text: str
    line: int = 0
    """0: the whole file."""
    kind: str = ""
    """What many problems have in common, without names; empty: the text."""

    def __str__(self) -> str:
        """Return file, line and text."""
        return f"{self.file}{f', line {self.line}' if self.line else ''}: {self.text}"

    @property
    def group(self) -> tuple[str, str]:
        """Return the file and what kind of problem it has."""
        return self.file, self.kind or self.text


def told(problems: Iterable[Problem]) -> list[str]:
    """Return the problems as lines: the first of each file and kind, and the number of others."""
    problems = list(problems)
    counts = Counter(each.group for each in problems)
    first = {each.group: each for each in reversed(problems)}
    return [
        f"{first[group]}{f' (and {count - 1} more)' if count > 1 else ''}"
        for group, count in counts.items()
    ]
