"""Compares the trees of two answers: structure, names and units; `values` compares expressions."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from fractions import Fraction

from gem_math.tree import (
    Node,
    TooComplexError,
    Work,
    has_pi,
    renamed,
    size,
    substitute,
    symbols,
    unsigned,
)
from gem_math.values import is_integer, same_value

_MAX_UNORDERED = 64
_EXPRESSIONS = frozenset(
    {"number", "symbol", "add", "multiply", "divide", "power", "negate", "factorial", "call"}
)
# What `_plain` leaves as it is.
_FINAL = _EXPRESSIONS - {"negate"} | {"interval", "tuple", "list", "measure"}
_FINITE = frozenset({"set", "list"})
_ORDERED = frozenset({"interval", "list", "tuple"})
_ALPHABET = f"{string.ascii_lowercase} {string.ascii_uppercase}"
# A constant of integration, and letters that usually stand for any integer.
_CONSTANT = re.compile(r"[Cc](?:_\d)?|K")
_CHOICES = frozenset("ABCDEFGHIJ")
_SOMEWHERE = Fraction(7, 5)
_PARAMETERS = frozenset({"k", "n", "m"})
# What tells a function from its derivatives and its inverse: `''` and `^-1`.
_DECORATION = re.compile(r"[^('^]*(\^[^'(]*)?('*)")
_DEGREES = ({"degree", "degreeC"}, {"degree", "degreeF"})


def same(answer: Node, gold: Node) -> bool:
    """Return whether an answer means what the gold means.

    Raises:
        TooComplexError: An exact value would be too large, or the comparison too much work.
    """
    return _same(answer, gold, Work())


def _same(answer: Node, gold: Node, work: Work) -> bool:
    work.spend(1)
    if answer == gold:
        return True
    answer, gold = _plain(answer, work), _plain(gold, work)
    if answer.kind in _EXPRESSIONS and gold.kind in _EXPRESSIONS:
        equal = same_value(answer, gold, work)
        if equal or answer.kind != "add" or gold.kind != "add":
            return equal
        return _same_up_to_constant(answer, gold, work)
    kinds = {answer.kind, gold.kind}
    if "choice" in kinds:
        return _same_choice(answer, gold, work)
    if "family" in kinds:
        return _same_family(answer, gold, work)
    if "measure" in kinds:
        return _same_measure(answer, gold, work)
    if "named" in kinds:
        return _same_named(answer, gold, work)
    if kinds <= {"equation"}:
        return _same_equation(answer, gold, work)
    if "matrix" in kinds:
        return _same_matrix(answer, gold, work)
    if kinds == {"list"} and not _has_names(answer):
        ordered = _by_name(gold)
        if ordered is not gold:
            return _all_same(answer.args, ordered.args, work)
    if kinds <= {"list", "set", "union"} or (
        # Accept the list `1, 2` where the gold is {1, 2}.
        "set" in kinds and len(kinds) == 2 and not kinds & {"interval", "tuple"}
    ):
        return _same_unordered(_members(answer), _members(gold), work)
    if kinds <= {"interval", "tuple", "list"}:
        return _same_ordered(answer, gold, work)
    if kinds == {"ratio"} or kinds == {"ratio", "divide"}:
        # 3:4 is the fraction 3/4 written another way; 6:8 and 0.75 are not.
        return _all_same(answer.args, gold.args, work)
    if kinds == {"unequal"}:
        return _all_same(answer.args, gold.args, work) or _all_same(
            answer.args[::-1], gold.args, work
        )
    if kinds & {"interval", "tuple", "list", "union", "ratio", "equation", "unequal", "chain"}:
        return False
    return same_value(answer, gold, work)


def _same_up_to_constant(answer: Node, gold: Node, work: Work) -> bool:
    """Compare antiderivatives, which a constant may tell apart that is part of their C.

    The constant of integration is a summand such as C, c or C_1 that occurs once. The gold's is a
    capital, or its only symbol but one.
    """
    expected = _constant(gold)
    name = _constant(answer) if expected else ""
    if not name:
        return False
    others = symbols(gold) - {expected}
    if others != symbols(answer) - {name} or any(other[0].isupper() for other in others):
        return False
    if (expected[0].islower() and len(others) != 1) or {"a", "b"} <= others:
        return False
    answer = renamed(answer, name, expected)
    if name != expected and same_value(answer, gold, work):
        return True
    if len(others) != 1:
        return False
    work.spend(size(answer) + size(gold))
    difference = _difference(answer, gold)
    return same_value(difference, substitute(difference, dict.fromkeys(others, _SOMEWHERE)), work)


def _constant(node: Node) -> str:
    found, waiting, rest = "", [node], []
    while waiting:
        term = waiting.pop()
        if term.kind == "add":
            waiting += term.args
        elif term.kind == "symbol" and _CONSTANT.fullmatch(term.args[0]) and not found:
            found = str(term.args[0])
        else:
            rest.append(term)
    return "" if found and any(found in symbols(term) for term in rest) else found


def _plain(node: Node, work: Work) -> Node:
    """Simplify a node: a chain of equal values to the last, a set of one to its element, etc."""
    if node.kind in _FINAL:
        return node
    if node.kind == "set" and len(node.args) == 1:
        return _plain(node.args[0], work)
    if node.kind == "union" and not any(
        member.kind in ("interval", "tuple", "union") for member in node.args
    ):
        return _united(node, work)
    if node.kind == "equation":
        work.spend(size(node))
        if symbols(node):
            return node
        return node.args[1] if _same(node.args[0], node.args[1], work) else node
    if node.kind == "chain":
        name, *values = node.args
        if all(_same(value, values[0], work) for value in values[1:]):
            return Node("named", (name, values[-1])) if name else values[-1]
    if node.kind == "degrees" or (node.kind == "negate" and node.args[0].kind == "degrees"):
        inner = node.args[0] if node.kind == "degrees" else Node("negate", node.args[0].args)
        return Node("measure", (inner, "degree"))
    if node.kind == "negate" and node.args[0].kind == "measure":
        value, unit = node.args[0].args
        return Node("measure", (Node("negate", (value,)), unit))
    return node


def _united(node: Node, work: Work) -> Node:
    """Return the union of finite sets as one set."""
    members: list[Node] = []
    for part in node.args:
        for member in part.args if part.kind in _FINITE else (part,):
            if len(members) >= _MAX_UNORDERED:
                raise TooComplexError("too many members")
            if not any(_same(member, other, work) for other in members):
                members.append(member)
    return _plain(Node("set", tuple(members)), work)


def _same_family(answer: Node, gold: Node, work: Work) -> bool:
    """Compare values with a parameter that is any integer: a + bk has the values of a + b(k+1).

    One of them may leave out what the parameter is.
    """
    named = [node.args[1] for node in (answer, gold) if node.kind == "family"]
    parts: list[tuple[Node, str]] = []
    for node, other in ((answer, gold), (gold, answer)):
        if node.kind == "family":
            parts.append((node.args[0], node.args[1]))
            continue
        parameters = set(symbols(node) - symbols(other) | (symbols(node) & set(named)))
        parameters &= _PARAMETERS
        if len(parameters) != 1:
            return False
        parts.append((node, parameters.pop()))
    (mine, own), (theirs, parameter) = parts
    if own != parameter and parameter in symbols(mine):
        return False
    return _same_values_of_family(renamed(mine, own, parameter), theirs, parameter, work)


def _same_values_of_family(answer: Node, gold: Node, parameter: str, work: Work) -> bool:
    if answer.kind == gold.kind == "named" and answer.args[0] != gold.args[0]:
        return False
    answer, gold = (node.args[1] if node.kind == "named" else node for node in (answer, gold))
    if "list" in (answer.kind, gold.kind):
        return _same_unordered(
            _members(answer),
            _members(gold),
            work,
            lambda a, b: _same_values_of_family(a, b, parameter, work),
        )
    if _same(answer, gold, work):
        return True
    work.spend(3 * (size(answer) + size(gold)))
    values = [
        [substitute(node, {parameter: Fraction(k)}) for k in range(3)] for node in (answer, gold)
    ]
    steps = []
    for first, second, third in values:
        step = _difference(second, first)
        if not same_value(_difference(third, second), step, work):
            return False
        steps.append(step)
    step, expected = steps
    if not same_value(step, expected, work) and not same_value(_minus(step), expected, work):
        return False
    offset = Node("divide", (_difference(values[0][0], values[1][0]), expected))
    return is_integer(offset, work)


def _minus(node: Node) -> Node:
    return Node("negate", (node,))


def _difference(left: Node, right: Node) -> Node:
    return Node("add", (left, _minus(right)))


def _same_measure(answer: Node, gold: Node, work: Work) -> bool:
    """Compare values with units; a missing unit matches any unit.

    An uncertain unit (`?`) in the answer is wrong unless the gold has a unit too.
    """
    (value, unit), (right, expected) = _measured(answer), _measured(gold)
    if unit[:1] == "?" and not expected:
        return False
    unit, expected = unit.lstrip("?"), expected.lstrip("?")
    if unit == expected or {unit, expected} in _DEGREES:
        return _same(value, right, work)
    if "unit" in (unit.rstrip("23"), expected.rstrip("23")):
        return _same(value, right, work)
    if unit and expected:
        return False
    if "degree" in (unit, expected):
        angle, other = (value, right) if unit else (right, value)
        expressions = {other.kind, angle.kind} <= _EXPRESSIONS
        if expressions and has_pi(other) and same_value(Node("degrees", (angle,)), other, work):
            return True
    if "%" in (unit, expected):
        percent, other = (value, right) if unit else (right, value)
        hundredth = Node("divide", (percent, Node("number", (Fraction(100), 0))))
        if _same(hundredth, other, work):
            return True
        # Either may leave the sign out: 50% equals 50. But the answer 0.5% is not a gold of 0.5.
        return not (unit and _is_below_one(right)) and _same(percent, other, work)
    if _same(value, right, work):
        return True
    # `5 m` may be the product 5*m.
    letter = unit or expected
    if len(letter) != 1:
        return False
    product = Node("multiply", (value if unit else right, Node("symbol", (letter,))))
    return _same(product, right if unit else value, work)


def _is_below_one(node: Node) -> bool:
    inner = unsigned(node)
    if inner.kind == "divide":
        parts = [arg.args[0] for arg in inner.args if arg.kind == "number"]
        return len(parts) == 2 and bool(abs(parts[0]) < abs(parts[1]))
    return inner.kind == "number" and bool(abs(inner.args[0]) < 1)


def _same_choice(answer: Node, gold: Node, work: Work) -> bool:
    """Compare the choice `(B) 5` with another choice, with `B` or with `5`."""
    if answer.kind == gold.kind:
        return bool(answer.args[0] == gold.args[0]) and _same(answer.args[1], gold.args[1], work)
    choice, other = (answer, gold) if answer.kind == "choice" else (gold, answer)
    if other == Node("symbol", (choice.args[0],)):
        # `B. D` names two choices.
        named = answer.args[1] if choice is answer else gold
        return named.kind != "symbol" or named.args[0] not in _CHOICES
    if choice is answer:
        return _same(answer.args[1], other, work)
    return _same(other, gold.args[1], work)


def _measured(node: Node) -> tuple[Node, str]:
    unit = ""
    while node.kind == "measure":
        node, unit = node.args
    return node, unit


def _same_named(answer: Node, gold: Node, work: Work) -> bool:
    """Compare named values, such as `x = 5`; names are compared only if both answers have one.

    If the gold is `x = 5`, an answer that is an equation must be solved for x.
    """
    if answer.kind == gold.kind:
        names = {answer.args[0], gold.args[0]}
        functions = all(name == "y" or name.endswith("(x)") for name in names)
        if len(names) == 1 or (functions and _are_one_function(names)):
            return _same(answer.args[1], gold.args[1], work)
        # `x = y` is `y = x`.
        return all(
            a.args[1] == Node("symbol", (b.args[0],)) for a, b in ((answer, gold), (gold, answer))
        )
    if gold.kind == "equation":
        name, value = answer.args
        return _same_equation(Node("equation", (Node("symbol", (name,)), value)), gold, work)
    if answer.kind == "equation":
        # `5 = x` means `x = 5`.
        value, name = answer.args
        solved = name == Node("symbol", (gold.args[0],)) and name.args[0] not in symbols(value)
        return solved and _same(value, gold.args[1], work)
    if answer.kind == "named":
        return _same(_by_name(answer), gold, work)
    return _same(answer, _by_name(gold) if _has_names(answer) else gold.args[1], work)


def _has_names(node: Node) -> bool:
    """Return whether the members of a list or tuple are named values."""
    items = _ordered(node)[0] if node.kind in _ORDERED else ()
    return bool(items) and all(item.kind == "named" for item in items)


def _by_name(node: Node) -> Node:
    """Return named values without their names, in the order of these: `y=5, x=3` is `3, 5`.

    Only letters that follow each other in the alphabet say an order; `m=2, b=5` has its own.
    """
    name, node = node.args if node.kind == "named" else ("", node)
    if node.kind not in _ORDERED or not (name or _has_names(node)):
        return node
    items, brackets = _ordered(node)
    names = name.strip("()").split(",") if name else [item.args[0] for item in items]
    distinct = len(names) == len(items) > 1 and all(len(each) == 1 for each in names)
    if not distinct or "".join(sorted(names)) not in _ALPHABET:
        return node
    values = items if name else [item.args[1] for item in items]
    ordered = tuple(value for _, value in sorted(zip(names, values, strict=True)))
    return Node(node.kind, (*ordered, brackets) if node.kind == "interval" else ordered)


def _are_one_function(names: set[str]) -> bool:
    """Return whether functions are no derivatives or powers of each other; y may be an inverse."""
    decorations = set()
    for name in names:
        found = _DECORATION.match(name)
        inverse, primes = found.groups("") if found else ("", "")
        decorations.add(("" if "y" in names and inverse == "^-1" else inverse, primes))
    return len(decorations) == 1


def _same_equation(answer: Node, gold: Node, work: Work) -> bool:
    """Return whether left minus right of both equations differ by a constant, non-zero factor."""
    work.spend(size(answer) + size(gold))
    first, second = (_difference(*equation.args) for equation in (answer, gold))
    names = symbols(first)
    if not names or names != symbols(second):
        return False
    fixed = {name: Fraction(3 + 2 * i, 7) for i, name in enumerate(sorted(names))}
    a, b = (substitute(node, fixed) for node in (first, second))
    # first * second(point) = second * first(point), with neither zero at the point.
    zero = Node("number", (Fraction(0), 0))
    if same_value(a, zero, work) or same_value(b, zero, work):
        return same_value(first, second, work)
    return same_value(Node("multiply", (first, b)), Node("multiply", (second, a)), work)


def _same_matrix(answer: Node, gold: Node, work: Work) -> bool:
    if answer.kind == gold.kind:
        rows = zip(answer.args, gold.args, strict=False)
        return len(answer.args) == len(gold.args) and all(_all_same(a, b, work) for a, b in rows)
    matrix, other = (answer, gold) if answer.kind == "matrix" else (gold, answer)
    entries = [entry for row in matrix.args for entry in row]
    if len(matrix.args) > 1 and len(matrix.args[0]) > 1:
        return False
    if other.kind == "interval" and other.args[2] in ("()", "[]"):
        return _all_same(entries, other.args[:2], work)
    if other.kind == "tuple":
        return _all_same(entries, other.args, work)
    return False


def _members(node: Node) -> tuple[Node, ...]:
    """Return the members of a list or set; repeated tuples and intervals count once."""
    members = node.args if node.kind in ("list", "set", "union") else (node,)
    if all(member.kind in ("tuple", "interval") for member in members):
        return tuple(dict.fromkeys(members))
    return members


def _same_unordered(
    answers: Sequence[Node],
    golds: Sequence[Node],
    work: Work,
    equal: Callable[[Node, Node], bool] | None = None,
) -> bool:
    if len(answers) != len(golds):
        return False
    if len(golds) > _MAX_UNORDERED:
        raise TooComplexError("too many members")
    left = list(golds)
    for answer in answers:
        found = next(
            (
                i
                for i, gold in enumerate(left)
                if (equal(answer, gold) if equal else _same(answer, gold, work))
            ),
            None,
        )
        if found is None:
            return False
        del left[found]
    return True


def _same_ordered(answer: Node, gold: Node, work: Work) -> bool:
    """Compare tuples and intervals in order; a list without brackets may stand for a tuple."""
    if not _has_names(gold):
        answer = _by_name(answer)
    elif not _has_names(answer):
        gold = _by_name(gold)
    (items, brackets), (others, expected) = _ordered(answer), _ordered(gold)
    bare = "" in (brackets, expected)
    if not bare:
        brackets, expected = (each.replace("<>", "()") for each in (brackets, expected))
    if brackets != expected and not (bare and "()" in (brackets, expected)):
        return False
    return _all_same(items, others, work)


def _ordered(node: Node) -> tuple[tuple[Node, ...], str]:
    if node.kind != "interval":
        return node.args, "()" if node.kind == "tuple" else ""
    low, high, brackets = node.args
    return (low, high), brackets


def _all_same(answers: Sequence[Node], golds: Sequence[Node], work: Work) -> bool:
    return len(answers) == len(golds) and all(
        _same(answer, gold, work) for answer, gold in zip(answers, golds, strict=True)
    )
