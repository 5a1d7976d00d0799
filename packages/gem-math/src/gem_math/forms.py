"""Detects answers that equal the gold but leave operations on numbers unevaluated.

`(16-3-4)*2` equals 18, but a policy that answers it may have copied it from the question. So an
answer may contain an operation that could be carried out only if the gold contains it too. These
are notations, not operations: fractions, mixed numbers, decimals, scientific notation, irrational
roots, multiples of π, e and i, sums of terms that cannot be combined, powers too large to be
written in digits, and the forms of an expression with variables. `gem_math.grading` calls this
after `gem_math.compare` found two answers equal, and before it asks math-verify.
"""

from __future__ import annotations

import contextlib
import math
import re
from fractions import Fraction
from typing import NamedTuple

from gem_math.notation import read
from gem_math.tree import (
    PI,
    Node,
    TooComplexError,
    UnreadableError,
    Work,
    has_pi,
    integer,
    nodes,
    symbols,
    unsigned,
)
from gem_math.values import is_rounded, rational
from gem_math.vocabulary import INVERSES, words

# A power of at least this many bits (about 15 digits) is a notation, not an operation.
_LARGE_BITS = 50
_LARGE_EXPONENT = 20
_MAX_RADICAND = 1_000_000

_FAMILIES = {
    **dict.fromkeys(("sin", "cos", "tan", "cot", "sec", "csc"), "trigonometric function"),
    **dict.fromkeys(INVERSES.values(), "inverse trigonometric function"),
    **dict.fromkeys(("sinh", "cosh", "tanh", "coth", "sech", "csch"), "hyperbolic function"),
    # An inverse hyperbolic function of a number is written as a logarithm.
    **{inverse: "logarithm" for inverse in INVERSES.values() if inverse.endswith("h")},
    **dict.fromkeys(("ln", "log", "lg", "logbase"), "logarithm"),
    **dict.fromkeys(("floor", "ceil"), "rounding"),
    **dict.fromkeys(("max", "min"), "maximum"),
    **dict.fromkeys(("gcd", "lcm"), "common divisor or multiple"),
    "abs": "absolute value",
    "binom": "factorial",
}
_STRUCTURES = words("""
    tuple list set ratio interval union matrix named unequal measure choice family
""")
_BY_KIND = {"add": "sum", "multiply": "product", "divide": "quotient", "power": "power"}
_TEN = Node("number", (Fraction(10), 0))

# For answers that cannot be parsed: a pattern that shows each operation in the text.
_IN_TEXT = {
    "integral": re.compile(r"\\i*int(?![a-z])|\\oint(?![a-z])|∫|\bintegral\b"),
    "sum over a range": re.compile(r"\\sum(?![a-z])|∑"),
    "product over a range": re.compile(r"\\prod(?![a-z])|∏"),
    "limit": re.compile(r"\\lim(?![a-z])"),
    "derivative": re.compile(r"\\frac\s*\{\s*(?:d|\\partial)\b"),
    "factorial": re.compile(r"[\d)}]\s*!|\\[dt]?binom(?![a-z])|\\choose(?![a-z])"),
    "common divisor or multiple": re.compile(r"\\gcd(?![a-z])|\b(?:gcd|lcm|GCD|LCM)\b"),
    "rounding": re.compile(r"\\l(?:floor|ceil)(?![a-z])|\b(?:floor|ceil)\b"),
    "remainder": re.compile(r"\\[bp]?mod(?![a-z])|\bmod\b"),
    "maximum": re.compile(r"\\(?:max|min)(?![a-z])"),
    "determinant": re.compile(r"\\det(?![a-z])|vmatrix"),
    "logarithm": re.compile(r"\\(?:ln|log|lg)(?![a-z])"),
    "trigonometric function": re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])"),
    "product": re.compile(
        r"(?<![\w.^])\d[\d.]*\s*(?:\\times|\\cdot|\*)\s*(?!10\s*\^)\(?\d|\d\s*\^\s*\{?\d+\}?\s+\d"
    ),
    "power": re.compile(r"(?<![\w}.])(?!10\s*\^)\d+\s*\^\s*\{?\s*[12]?\d(?!\d)"),
    "quotient": re.compile(r"\d\s*\\div(?![a-z])"),
    "sum": re.compile(
        r"(?<![\w^_{}\\/.)*])\d[\d.]*\s*[+-]\s*\d[\d.]*(?![\d.]|\s*[a-zA-Z\\(^{/*!%])"
    ),
}
_CALCULUS = frozenset(
    {
        "integral", "sum over a range", "product over a range", "limit", "derivative", "remainder",
        "determinant",
    }
)  # fmt: skip
_SQUARE_ROOT = re.compile(r"\\sqrt\s*(?:\{\s*(\d{1,30})\s*\}|(\d))")


def unevaluated(answer: Node | str, gold: Node | str) -> str | None:
    """Return an operation that a right answer leaves unevaluated and the gold does not contain.

    Args:
        answer: Tree of an answer that equals the gold, or its cleaned text (see
            `gem_math.cleaning`). A text that cannot be parsed is searched for operations.
        gold: Tree or cleaned text of the gold.

    Returns:
        The operation's name, for messages; None if the answer is fully evaluated.

    Raises:
        TooComplexError: The search is too much work.
    """
    if isinstance(answer, str):
        # Before parsing: the parser would read a derivative as a fraction.
        shown = _in_text(answer) & _CALCULUS
        shown -= _in_text(gold) if isinstance(gold, str) else set()
        if shown:
            return min(shown)
    answer, gold = _readable(answer), _without_unit(_readable(gold), answer)
    if answer == gold or (not isinstance(answer, str) and answer.kind == "number"):
        return None
    if (
        not isinstance(answer, str)
        and not isinstance(gold, str)
        and (answer.kind == gold.kind == "equation")
    ):
        # The equation itself was asked for.
        return None
    found = _operations(answer)
    if found:
        found -= _operations(gold)
    elif not isinstance(gold, str) and not isinstance(answer, str):
        found = _beyond_numbers(answer, gold)
    if found:
        return min(found)
    if isinstance(gold, Node) and isinstance(answer, Node) and _is_uncancelled(answer, gold):
        return "quotient"
    return None


def _without_unit(gold: Node | str, answer: Node | str) -> Node | str:
    """Return the gold as the answer reads its unit: degrees as radians, `8/5 h` as a product."""
    if isinstance(gold, str) or isinstance(answer, str):
        return gold
    if gold.kind == "degrees" or (gold.kind == "measure" and gold.args[1] == "degree"):
        return Node("multiply", (gold.args[0], PI)) if has_pi(answer) else gold
    if gold.kind == "measure" and gold.args[1] in symbols(answer):
        return Node("multiply", (gold.args[0], Node("symbol", (gold.args[1],))))
    return gold


def _readable(answer: Node | str) -> Node | str:
    if isinstance(answer, str):
        with contextlib.suppress(UnreadableError, TooComplexError):
            return read(answer)
    return answer


def _operations(answer: Node | str) -> set[str]:
    if isinstance(answer, str):
        return _in_text(answer)
    found = {found for component in _components(answer) for found in _in_component(component)}
    return found | {"union"} if _has_union_of_sets(answer) else found


def _has_union_of_sets(node: Node) -> bool:
    """Return whether finite sets are to be united; a union of intervals is a notation."""
    if node.kind == "union":
        return all(part.kind not in ("interval", "tuple") for part in node.args)
    return node.kind in _STRUCTURES and any(map(_has_union_of_sets, nodes(node)))


def _in_text(text: str) -> set[str]:
    found = {operation for operation, shown in _IN_TEXT.items() if shown.search(text)}
    for radicand in _SQUARE_ROOT.finditer(text):
        number = int(radicand[1] or radicand[2])
        if math.isqrt(number) ** 2 == number:
            found.add("root")
    return found


def _components(node: Node) -> list[Node]:
    """Return the expressions in a structure; a chain or equation is one expression."""
    if node.kind in _STRUCTURES:
        return [found for inner in nodes(node) for found in _components(inner)]
    return [node]


def _in_component(node: Node) -> set[str]:
    if _is_literal(node):
        return {"quotient"} if _is_division(node) else set()
    sides, variables = _sides(node), symbols(node)
    if len(sides) > 1 and not variables:
        # It is enough that one of the equal values is evaluated.
        return min(map(_in_component, sides), key=len)
    survey = _Survey()
    for side in sides:
        survey.visit(side)
    if variables:
        # x² + y² = 5² and (x-(-1)) are common forms.
        survey.found -= {"power", "sign"}
    return survey.found


def _beyond_numbers(answer: Node, gold: Node) -> set[str]:
    """Return the operations of an answer that is not a number, where the gold is only numbers."""
    if answer.kind == "symbol":
        # The letter of a choice.
        return set()
    numbers = _components(gold)
    if any(is_rounded(number) or not _is_plain(number) for number in numbers):
        return set()
    found: set[str] = set()
    if _has_power(answer) and not _has_large_number(gold):
        # The gold has no large number, so the large powers cancel and should be evaluated.
        found.add("power")
    for component in _components(answer):
        sides, variables = _sides(component), symbols(component)
        if not (len(sides) > 1 and variables) and not any(map(_is_plain, sides)):
            found.add("variables" if variables else _BY_KIND.get(component.kind, "function"))
    return found


class _Quotients(NamedTuple):
    """What the quotients of variables in an expression are divided by."""

    shared: bool
    """A factor stands above and below a line, as in x^2/x and 12x/2."""
    degrees: list[int | None]
    """Degrees of the divisors; None for one that is no polynomial, and for any function."""


def _is_uncancelled(answer: Node, gold: Node) -> bool:
    """Return whether an answer has a quotient that the gold shows to cancel: x^2/x for x.

    Either a factor stands above and below the line, or the divisor has a higher degree than all
    divisors of the gold together, as in (x^2-1)/(x-1) for x+1.
    """
    if not symbols(answer):
        return False
    mine = _quotients(answer)
    if not mine.shared and not any(mine.degrees):
        return False
    theirs = _quotients(gold)
    if mine.shared and not theirs.shared:
        return True
    if None in mine.degrees or None in theirs.degrees:
        return False
    total = sum(degree or 0 for degree in theirs.degrees)
    return any((degree or 0) > total for degree in mine.degrees)


def _quotients(node: Node) -> _Quotients:
    shared = False
    degrees: list[int | None] = []
    waiting = [part for part in _components(node) if len(_sides(part)) == 1]
    while waiting:
        each = waiting.pop()
        waiting += nodes(each)
        if each.kind in ("call", "factorial"):
            degrees.append(None)
        elif each.kind == "divide" and symbols(each):
            degrees.append(_degree(each.args[1]))
            shared = shared or _has_shared_factor(*each.args)
        elif each.kind == "power":
            exponent = integer(each.args[1])
            if exponent is not None and exponent < 0:
                degree = _degree(each.args[0])
                degrees.append(None if degree is None else -exponent * degree)
    return _Quotients(shared, degrees)


def _has_shared_factor(above: Node, below: Node) -> bool:
    factors: list[list[Node]] = [[], []]
    for side, part in enumerate((above, below)):
        for factor in _flat(unsigned(part), "multiply"):
            if factor.kind == "power" and (symbols(factor.args[0]) or not symbols(factor.args[1])):
                factor = factor.args[0]
            factors[side].append(factor)
    # As of numbers, a quotient with a line left, such as 2x/2y, is a fraction that is not reduced.
    number = integer(below)
    if number and abs(number) > 1 and any((integer(m) or 1) % number == 0 for m in factors[0]):
        return True
    return any(m == n and symbols(n) for n in factors[1] for m in factors[0])


def _degree(node: Node) -> int | None:
    """Return the degree of a polynomial in all its variables; None for any other expression."""
    kind, args = node
    if kind == "number":
        return 0
    if kind == "symbol":
        return len(symbols(node))
    if kind == "power":
        exponent = integer(args[1])
        degree = _degree(args[0])
        return None if degree is None or exponent is None or exponent < 0 else exponent * degree
    if kind == "divide":
        return _degree(args[0]) if _degree(args[1]) == 0 else None
    if kind in ("add", "multiply", "negate"):
        parts = [_degree(arg) for arg in args]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return sum(known) if kind == "multiply" else max(known)
    return None if symbols(node) else 0


def _sides(node: Node) -> list[Node]:
    """Return the sides of a chain or equation; of any other node, itself."""
    return nodes(node) if node.kind in ("chain", "equation") else [node]


def _is_plain(node: Node) -> bool:
    """Return whether an expression is a rational number, written as a number."""
    if _is_literal(node):
        return True
    survey = _Survey()
    return node.kind not in ("chain", "equation") and survey.visit(node).plain and not survey.found


def _has_power(node: Node) -> bool:
    if node.kind == "power" and not symbols(node):
        return not _is_power_of_ten(node)
    return any(map(_has_power, nodes(node)))


def _has_large_number(node: Node) -> bool:
    if node.kind == "number":
        value = node.args[0]
        return bool(max(abs(value.numerator), value.denominator).bit_length() > _LARGE_BITS)
    return node.kind == "power" or any(map(_has_large_number, nodes(node)))


class _Part(NamedTuple):
    """Properties of a subtree."""

    closed: bool = True
    """It has no variables."""
    plain: bool = False
    """It is a rational number; written as one, or else its operations are in `_Survey.found`."""
    large: bool = False
    """It contains a power that is too large to be written in digits."""
    imaginary: bool = False
    """It contains i."""
    sum: bool = False
    """It is a sum that cannot be combined."""
    root: bool = False
    """It is or contains an irrational root."""


_PLAIN = _Part(plain=True)


class _Survey:
    """Collects the operations in a tree; visits each node once."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.work = Work()

    def visit(self, node: Node) -> _Part:
        kind, args = node
        if kind == "number":
            return _PLAIN
        if kind == "symbol":
            name = args[0]
            if name == "infinity":
                return _PLAIN
            return _Part(closed=name in ("pi", "e", "i"), imaginary=name == "i")
        if kind == "negate":
            part = self.visit(args[0])
            if args[0].kind == "negate" and part.closed:
                self.found.add("sign")
            return part
        if kind in ("add", "multiply"):
            return self._combined(node)
        if kind == "divide":
            return self._quotient(node)
        if kind == "power":
            return self._power(node)
        if kind == "call":
            return self._call(node)
        parts = [self.visit(inner) for inner in nodes(node)]
        closed = all(part.closed for part in parts)
        if kind == "factorial" and closed:
            self.found.add("factorial")
            return _PLAIN
        return parts[0] if len(parts) == 1 else _Part(closed=closed)

    def _combined(self, node: Node) -> _Part:
        """Return the properties of a sum or product with any number of operands."""
        operands = _flat(node, node.kind)
        parts = [self.visit(operand) for operand in operands]
        root = any(p.root for p in parts)
        part = _Part(
            closed=all(p.closed for p in parts),
            plain=all(p.plain for p in parts),
            large=any(p.large for p in parts),
            imaginary=any(p.imaginary for p in parts),
        )
        if node.kind == "add":
            keys = ("" if p.plain else _key(o) for o, p in zip(operands, parts, strict=True))
            if not part.large and len(set(keys)) < len(operands):
                # Some terms could be combined.
                self.found.add("sum")
            return part._replace(sum=not part.plain, root=root)
        factors = [(o, p) for o, p in zip(operands, parts, strict=True) if p.closed]
        numbers = [(o, p) for o, p in factors if p.plain or _has_coefficient(o)]
        if len(operands) == 2 and part.plain and _is_power_of_ten(operands[1]):
            return _PLAIN
        if part.large:
            return part
        alike = ([p.sum, p.root, p.imaginary] for _, p in factors)
        if len(numbers) > 1 or any(sum(each) > 1 for each in zip(*alike, strict=True)):
            self.found.add("product")
        return part._replace(root=root)

    def _quotient(self, node: Node) -> _Part:
        above, below = (self.visit(arg) for arg in node.args)
        closed = above.closed and below.closed
        large = above.large or below.large
        if above.plain and below.plain:
            if not large and any(integer(a) is None and not _is_power_of_ten(a) for a in node.args):
                self.found.add("quotient")
            return _Part(plain=True, large=large)
        if closed and below.imaginary:
            self.found.add("quotient")
        root = above.root or below.root
        return _Part(closed, large=large, imaginary=above.imaginary, sum=above.sum, root=root)

    def _power(self, node: Node) -> _Part:
        base, exponent = self.visit(node.args[0]), node.args[1]
        before = set(self.found)
        part = self.visit(exponent)
        if not (base.closed and part.closed):
            return _Part(closed=False)
        value = rational(exponent, self.work)
        if value is None:
            if part.imaginary:
                self.found.add("trigonometric function")
            return _Part(imaginary=part.imaginary)
        if value.denominator != 1:
            if base.plain and rational(node, self.work) is not None:
                self.found.add("root")
                return _PLAIN
            return _Part(root=True, large=base.large)
        if base.plain:
            if _is_power_of_ten(node):
                return _PLAIN
            number = rational(node.args[0], self.work)
            bits = 0
            if number is not None:
                bits = max(abs(number.numerator), number.denominator).bit_length() - 1
            if base.large or abs(value) * bits >= _LARGE_BITS:
                # The power is a notation of a large number: ignore operations in the exponent.
                self.found = before
                return _Part(plain=True, large=True)
            self.found.add("power")
            return _PLAIN
        if abs(value) >= _LARGE_EXPONENT:
            self.found = before
            return _Part(large=True, imaginary=base.imaginary)
        if node.args[0].kind != "symbol" or base.imaginary:
            self.found.add("power")
        return _Part(imaginary=base.imaginary)

    def _call(self, node: Node) -> _Part:
        name = node.args[0]
        parts = [self.visit(inner) for inner in nodes(node)]
        closed = all(part.closed for part in parts)
        if not closed:
            return _Part(closed=False)
        if name not in ("sqrt", "root"):
            if name in _FAMILIES:
                self.found.add(_FAMILIES[name])
            return _Part(imaginary=any(part.imaginary for part in parts))
        radicand = rational(node.args[1], self.work)
        if radicand is not None and rational(node, self.work) is not None:
            self.found.add("root")
            return _PLAIN
        if radicand is not None and radicand < 0 and name == "sqrt":
            self.found.add("root of a negative number")
        if parts[0].sum and (parts[0].root or parts[0].imaginary):
            self.found.add("root of a sum")
        return _Part(root=True, large=any(part.large for part in parts))


def _flat(node: Node, kind: str) -> list[Node]:
    """Return the operands of nested sums or products, from left to right."""
    found: list[Node] = []
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each.kind == kind:
            waiting += reversed(each.args)
        elif each.kind == "negate" and each.args[0].kind == kind:
            waiting.append(each.args[0])
        else:
            found.append(each)
    return found


def _is_literal(node: Node) -> bool:
    """Return whether a node is a number or a fraction of integers: a shortcut for most answers."""
    node = unsigned(node)
    if node.kind == "divide":
        return None not in map(integer, node.args)
    return node.kind == "number"


def _is_division(node: Node) -> bool:
    """Return whether a fraction of integers has an integer value, such as 12/2."""
    node = unsigned(node)
    if node.kind != "divide":
        return False
    above, below = map(integer, node.args)
    return above is not None and below not in (None, -1, 0, 1) and above % below == 0


def _is_number(node: Node) -> bool:
    return unsigned(node).kind == "number"


def _is_power_of_ten(node: Node) -> bool:
    return node.kind == "power" and node.args[0] == _TEN and _is_number(node.args[1])


def _has_coefficient(node: Node) -> bool:
    """Return whether a factor is a fraction with a rational factor, such as 2π/3."""
    while node.kind == "negate":
        node = node.args[0]
    factors = (factor for arg in node.args for factor in _flat(arg, "multiply"))
    return node.kind == "divide" and any(map(_is_number, factors))


def _key(term: Node) -> str:
    """Return a key that is equal for terms that differ in rational factors only: 2√3 and √27."""
    while term.kind == "negate":
        term = term.args[0]
    if term.kind == "divide":
        return f"{_key(term.args[0])}/{_key(term.args[1])}".removesuffix("/")
    factors = []
    for factor in _flat(term, "multiply"):
        if factor.kind == "divide":
            factors.append(_key(factor))
        elif factor.kind == "call" and factor.args[0] == "sqrt":
            factors.append(_radicand(factor.args[1]))
        elif not _is_number(factor):
            factors.append(repr(factor))
    return "*".join(sorted(factors))


def _radicand(node: Node) -> str:
    """Return a square root's radicand without square factors, as a key."""
    value = rational(node, Work())
    if value is None or not 0 < value.numerator * value.denominator <= _MAX_RADICAND:
        return f"sqrt {node}"
    number, divisor = value.numerator * value.denominator, 2
    while divisor * divisor <= number:
        while number % (divisor * divisor) == 0:
            number //= divisor * divisor
        divisor += 1
    return f"sqrt {number}"
