"""What follows from several premises and from none of them alone, in propositional logic.

reasoning-gym takes every valid conclusion for right, so that two premises joined by "and" win
everywhere. Here a conclusion counts if no part of it follows from a single premise: none of its
prime implicates, the shortest clauses that it implies, does.

A formula is its truth table: bit r is its value in row r, in which variable i is true if bit i of
r is set.
"""

from __future__ import annotations

import ast
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
# Python's parser reads a formula whose signs are replaced by operators that bind in the same order
# and are grouped from the left, too.
_AS_PYTHON = str.maketrans({"¬": "~", "∧": "*", "∨": "+", "→": ">>", "↔": "&"})
_JOINED: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Mult: operator.and_,
    ast.Add: operator.or_,
    ast.RShift: lambda left, right: ~left | right,
    ast.BitAnd: lambda left, right: ~(left ^ right),
}


def refusal(text: str, premises: Sequence[str], variables: Sequence[str]) -> str | None:
    """Return why a text is no conclusion; None if it is one.

    Raises:
        ValueError: It is no formula.
    """
    if len(text) > _MAX_CHARACTERS:
        return f"longer than {_MAX_CHARACTERS} characters"
    every = (1 << (1 << len(variables))) - 1
    given = _tables(tuple(premises), tuple(variables))
    conclusion = table_of(text, variables)
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
    return tuple(table_of(premise, variables) for premise in premises)


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


def table_of(text: str, variables: Sequence[str]) -> int:
    """Return the truth table of a formula.

    Raises:
        ValueError: It is no formula of the variables.
    """
    columns = _columns(variables)
    every = (1 << (1 << len(variables))) - 1

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Name) and node.id in columns:
            return columns[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return every & ~value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _JOINED:
            return every & _JOINED[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"not a formula of the premises' variables: {text!r:.40}")

    if "".join(_TOKEN.findall(text)) != "".join(text.split()):
        raise ValueError(f"not a formula: {text!r:.40}")
    try:
        return value(ast.parse(f"({text.translate(_AS_PYTHON)})", mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"not a formula: {text!r:.40} ({error.msg})") from None
