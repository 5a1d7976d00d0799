"""What follows from several premises and from none of them alone, in propositional logic.

reasoning-gym takes every valid conclusion for right, so that two premises joined by "and" win
everywhere. Here a conclusion counts if no part of it follows from a single premise: none of its
prime implicates, the shortest clauses that it implies, does.

A formula is its truth table: bit r is its value in row r, in which variable i is true if bit i of
r is set.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce

ASKED = (
    "State something that follows from several of these statements together, no part of which "
    "follows from a single one of them."
)
"""What the question has to say beside the library's own words."""

_MAX_CHARACTERS = 1000
_TOKEN = re.compile(r"[A-Za-z]\w*|[∧∨¬→↔()]")
# The loosest first; all are grouped from the left.
_JOINED: tuple[tuple[str, Callable[[int, int], int]], ...] = (
    ("↔", lambda left, right: ~(left ^ right)),
    ("→", lambda left, right: ~left | right),
    ("∨", operator.or_),
    ("∧", operator.and_),
)


def refusal(text: str, premises: Sequence[str], variables: Sequence[str]) -> str | None:
    """Return why a text is no conclusion; None if it is one.

    Raises:
        ValueError: It is no formula.
    """
    if len(text) > _MAX_CHARACTERS:
        return f"longer than {_MAX_CHARACTERS} characters"
    every = (1 << (1 << len(variables))) - 1
    given = _tables(tuple(premises), tuple(variables))
    conclusion = _Reader(text, variables).table
    if reduce(operator.and_, given, every) & ~conclusion:
        return "does not follow"
    if conclusion == every:
        return "always true"
    for _, clause in _prime(conclusion, tuple(variables)):
        if any(not premise & ~clause for premise in given):
            return "part of it follows from a single premise"
    return None


def conclusion(premises: Sequence[str], variables: Sequence[str]) -> str | None:
    """Return a shortest conclusion that counts; None if there is none."""
    every = (1 << (1 << len(variables))) - 1
    given = _tables(tuple(premises), tuple(variables))
    together = reduce(operator.and_, given, every)
    if not together:
        return None
    for text, clause in _prime(together, tuple(variables)):
        if not any(not premise & ~clause for premise in given):
            return text
    return None


@lru_cache(maxsize=256)
def _tables(premises: tuple[str, ...], variables: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(_Reader(premise, variables).table for premise in premises)


def _prime(table: int, variables: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield the shortest clauses that a formula implies: their text and table."""
    found: list[frozenset[tuple[str, bool]]] = []
    for literals, text, clause in _clauses(variables):
        if not table & ~clause and not any(known <= literals for known in found):
            found.append(literals)
            yield text, clause


@lru_cache(maxsize=8)
def _clauses(variables: tuple[str, ...]) -> list[tuple[frozenset[tuple[str, bool]], str, int]]:
    """Return every clause over the variables, the shortest first."""
    columns = _columns(variables)
    every = (1 << (1 << len(variables))) - 1
    clauses = []
    for size in range(1, len(variables) + 1):
        for names in itertools.combinations(variables, size):
            for signs in itertools.product((True, False), repeat=size):
                table = 0
                for name, sign in zip(names, signs, strict=True):
                    table |= columns[name] if sign else every & ~columns[name]
                words = [n if s else f"¬{n}" for n, s in zip(names, signs, strict=True)]
                text = f"({' ∨ '.join(words)})" if size > 1 else words[0]
                clauses.append((frozenset(zip(names, signs, strict=True)), text, table))
    return clauses


def _columns(variables: Sequence[str]) -> dict[str, int]:
    rows = range(1 << len(variables))
    return {
        name: sum(1 << row for row in rows if row >> place & 1)
        for place, name in enumerate(variables)
    }


class _Reader:
    """Reads a formula into its truth table."""

    def __init__(self, text: str, variables: Sequence[str]) -> None:
        self._columns = _columns(variables)
        self._every = (1 << (1 << len(variables))) - 1
        self._tokens = _TOKEN.findall(text)
        if "".join(self._tokens) != "".join(text.split()):
            raise ValueError(f"not a formula: {text!r:.40}")
        self._tokens.reverse()
        self.table = self._joined(0)
        if self._tokens:
            raise ValueError(f"not a formula: {self._tokens[-1]!r}")

    def _joined(self, level: int) -> int:
        if level == len(_JOINED):
            return self._single()
        sign, join = _JOINED[level]
        left = self._joined(level + 1)
        while self._tokens and self._tokens[-1] == sign:
            self._tokens.pop()
            left = self._every & join(left, self._joined(level + 1))
        return left

    def _single(self) -> int:
        token = self._tokens.pop() if self._tokens else "nothing"
        if token == "¬":
            return self._every & ~self._single()
        if token == "(":
            inside = self._joined(0)
            if not self._tokens or self._tokens.pop() != ")":
                raise ValueError("not a formula: a bracket is not closed")
            return inside
        if token not in self._columns:
            raise ValueError(f"not a variable of the premises: {token!r}")
        return self._columns[token]
