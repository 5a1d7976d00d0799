"""The expression tree of an answer: `notation` makes it; `compare`, `values`, `forms` read it.

Kinds of `Node` and their arguments:

| kind | arguments |
|---|---|
| `number` | `Fraction`, significant digits of a decimal or 0 |
| `symbol` | name; `pi`, `e`, `i`, `infinity` have their usual meaning |
| `add`, `multiply`, `divide`, `power` | two nodes |
| `negate`, `factorial`, `degrees` | one node |
| `call` | name of a function, then its arguments |
| `measure` | node, unit (`%` included) |
| `tuple`, `list`, `set`, `ratio` | nodes; a list has commas but no brackets |
| `interval` | lower and upper node, brackets: `[)`, or `<>` for 1<x<2; a pair (1,2) is one too |
| `union` | nodes |
| `matrix` | rows: tuples of nodes |
| `named` | name left of an equals sign, or symbol of an inequality (text), node |
| `equation`, `unequal` | two nodes |
| `chain` | name left of the first equals sign or '', then equal nodes |
| `choice` | letter of a choice, the node after it |
| `family` | node, name of a symbol in it that is any integer |
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

MAX_HEIGHT = 250
MAX_WORK = 20_000


class Node(NamedTuple):
    """A node of an answer's tree; see the table at the top."""

    kind: str
    args: tuple[Any, ...]


class UnreadableError(Exception):
    """The text cannot be parsed; never leaves the grader."""


class TooComplexError(Exception):
    """The text is too long or nested too deeply; never leaves the grader."""


FIXED = frozenset({"pi", "e", "i", "infinity"})
"""Names of the symbols that have a fixed value."""
PI = Node("symbol", ("pi",))
_LEAVES = frozenset({"number", "symbol"})
# Kinds whose arguments are all nodes.
_OPERATIONS = frozenset({"add", "multiply", "divide", "power", "negate"})


class Work:
    """The budget of a comparison, which bounds its time whatever the policy wrote.

    One unit is a visit of a node, a few microseconds.
    """

    def __init__(self, limit: int = MAX_WORK) -> None:
        self.left = limit

    def spend(self, units: int) -> None:
        """Spend units of the budget.

        Raises:
            TooComplexError: The budget is spent.
        """
        self.left -= units
        if self.left < 0:
            raise TooComplexError("too much work")


def size(node: Node) -> int:
    """Return the number of nodes.

    Raises:
        TooComplexError: The tree is higher than `MAX_HEIGHT`, because of a long sum or product.
    """
    count, height, level = 0, 0, [node]
    while level:
        height += 1
        if height > MAX_HEIGHT:
            raise TooComplexError("nested too deeply")
        count += len(level)
        level = [inner for each in level for inner in nodes(each)]
    return count


def nodes(node: Node) -> list[Node]:
    """Return the child nodes; of a matrix, the nodes of all rows."""
    if node.kind in _LEAVES:
        return []
    if node.kind in _OPERATIONS:
        return list(node.args)
    parts: list[Any] = [arg for arg in node.args if isinstance(arg, tuple)]
    return [inner for part in parts for inner in ([part] if isinstance(part, Node) else part)]


def unsigned(node: Node) -> Node:
    """Return the node without a minus sign before it."""
    return node.args[0] if node.kind == "negate" else node


def integer(node: Node) -> int | None:
    """Return the value of an integer, with a minus sign or without; None for any other node."""
    inner = unsigned(node)
    if inner.kind != "number" or inner.args[0].denominator != 1:
        return None
    return int(inner.args[0]) * (1 if inner is node else -1)


def symbols(node: Node) -> frozenset[str]:
    """Return the names of the symbols that have no fixed value."""
    found, waiting = set(), [node]
    while waiting:
        each = waiting.pop()
        if each.kind == "symbol":
            found.add(each.args[0])
        else:
            waiting += nodes(each)
    return frozenset(found - FIXED)


def has_pi(node: Node) -> bool:
    """Return whether π occurs in the tree."""
    return node == PI or any(map(has_pi, nodes(node)))


def renamed(node: Node, old: str, new: str) -> Node:
    """Return the tree with another name for a symbol."""
    if node.kind == "symbol":
        return Node("symbol", (new,)) if node.args[0] == old else node
    return Node(
        node.kind,
        tuple(renamed(arg, old, new) if isinstance(arg, Node) else arg for arg in node.args),
    )


def substitute(node: Node, values: dict[str, Fraction]) -> Node:
    """Return the tree with numbers in place of some symbols."""
    if node.kind == "symbol":
        value = values.get(node.args[0])
        return node if value is None else Node("number", (value, 0))
    return Node(
        node.kind,
        tuple(substitute(arg, values) if isinstance(arg, Node) else arg for arg in node.args),
    )
