"""Decides whether two trees of `gem.grading.notation` mean the same.

Values without functions are compared exactly: rationals as fractions, rational functions at points
of two finite fields, where polynomials that differ agree with probability below 1e-13. Everything
else is compared in floating point at a few fixed points.
"""

from __future__ import annotations

import cmath
import math
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from gem.grading.notation import Node, TooComplexError

# Mersenne primes: 2**61 - 1 and 2**89 - 1.
_PRIMES = (2**61 - 1, 2**89 - 1)
_POINTS = 4
_MAX_BITS = 1 << 13
_MAX_FIELD_EXPONENT = 1 << 64
_MAX_FACTORIAL = 1000
_MAX_UNORDERED = 64
# Decimals of at least so many digits are taken to be rounded: floats of a data set.
_ROUNDED_DIGITS = 12
_ROUNDED = 1e-11
_CLOSE = 1e-10
_MAX_NOISE = 1e-12
_SEQUENCES = ("tuple", "list")
_TRIGONOMETRIC = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})


class _NotRationalError(Exception):
    """The value is not a rational function with integer exponents."""


class _UndefinedError(Exception):
    """No value at this point."""


def same(answer: Node, gold: Node) -> bool:
    """Return whether an answer means what the gold means.

    Raises:
        TooComplexError: An exact value would be too large.
    """
    if answer == gold:
        return True
    answer, gold = _plain(answer), _plain(gold)
    kinds = {answer.kind, gold.kind}
    if "measure" in kinds:
        return _same_measure(answer, gold)
    if "named" in kinds:
        return _same_named(answer, gold)
    if kinds <= {"equation"}:
        return _same_equation(answer, gold)
    if "matrix" in kinds:
        return _same_matrix(answer, gold)
    if kinds <= {"list", "set", "union"} or (
        # Who answers `1, 2` to a set need not know how to typeset one.
        "set" in kinds and len(kinds) == 2 and not kinds & {"interval", "tuple"}
    ):
        return _same_unordered(_members(answer), _members(gold))
    if kinds <= {"interval", "tuple", "list"}:
        return _same_ordered(answer, gold)
    if kinds == {"ratio"}:
        return _all_same(answer.args, gold.args)
    if kinds == {"unequal"}:
        return _all_same(answer.args, gold.args) or _all_same(answer.args[::-1], gold.args)
    if kinds & {"interval", "tuple", "list", "union", "ratio", "equation", "unequal"}:
        return False
    return _same_value(answer, gold)


# Structures


def _plain(node: Node) -> Node:
    """Return a chain of equal values as its last, a set of one as its element, and so on."""
    if node.kind == "set" and len(node.args) == 1:
        return _plain(node.args[0])
    if node.kind == "equation" and not _symbols(node):
        return node.args[1] if same(*node.args) else node
    if node.kind == "chain":
        name, *values = node.args
        if all(same(value, values[0]) for value in values[1:]):
            return Node("named", (name, values[-1])) if name else values[-1]
    if node.kind == "degrees" or (node.kind == "negate" and node.args[0].kind == "degrees"):
        inner = node.args[0] if node.kind == "degrees" else Node("negate", node.args[0].args)
        return Node("measure", (inner, "degree"))
    if node.kind == "negate" and node.args[0].kind == "measure":
        value, unit = node.args[0].args
        return Node("measure", (Node("negate", (value,)), unit))
    return node


def _same_measure(answer: Node, gold: Node) -> bool:
    """Compare values with units; a missing unit is any unit."""
    (value, unit), (right, expected) = _measured(answer), _measured(gold)
    if unit == expected or "unit" in (unit.rstrip("23"), expected.rstrip("23")):
        return same(value, right)
    if unit and expected:
        return False
    if "%" in (unit, expected):
        # 50% is 50 as well as 0.5: data sets have either.
        percent, other = (value, right) if unit else (right, value)
        hundredth = Node("divide", (percent, Node("number", (Fraction(100), 0))))
        return same(percent, other) or same(hundredth, other)
    if same(value, right):
        return True
    # `5 m` may mean five times m.
    letter = unit or expected
    if len(letter) != 1:
        return False
    product = Node("multiply", (value if unit else right, Node("symbol", (letter,))))
    return same(product, right if unit else value)


def _measured(node: Node) -> tuple[Node, str]:
    unit = ""
    while node.kind == "measure":
        node, unit = node.args
    return node, unit


def _same_named(answer: Node, gold: Node) -> bool:
    """Compare what names stand for; the name is part of the answer only if both have one."""
    if answer.kind == gold.kind:
        names = {answer.args[0], gold.args[0]}
        functions = all(name == "y" or name.endswith("(x)") for name in names)
        if len(names) == 1 or functions:
            return same(answer.args[1], gold.args[1])
        # y = 2x and x = y/2 are the same line.
        if _symbols(answer.args[1]) or _symbols(gold.args[1]):
            return _same_equation(_as_equation(answer), _as_equation(gold))
        return False
    if "equation" in (answer.kind, gold.kind):
        return _same_equation(_as_equation(answer), _as_equation(gold))
    value, other = (answer, gold) if answer.kind == "named" else (gold, answer)
    return same(value.args[1], other)


def _as_equation(node: Node) -> Node:
    if node.kind != "named":
        return node
    return Node("equation", (Node("symbol", (node.args[0],)), node.args[1]))


def _same_equation(answer: Node, gold: Node) -> bool:
    """Return whether the sides' differences are proportional, by a factor that is not zero."""
    first, second = (Node("add", (e.args[0], Node("negate", (e.args[1],)))) for e in (answer, gold))
    names = _symbols(first)
    if not names or names != _symbols(second):
        return False
    fixed = {name: Fraction(3 + 2 * i, 7) for i, name in enumerate(sorted(names))}
    a, b = (_substitute(node, fixed) for node in (first, second))
    # first * second(point) = second * first(point), with neither zero at the point.
    zero = Node("number", (Fraction(0), 0))
    if _same_value(a, zero) or _same_value(b, zero):
        return _same_value(first, second)
    return _same_value(Node("multiply", (first, b)), Node("multiply", (second, a)))


def _same_matrix(answer: Node, gold: Node) -> bool:
    if answer.kind == gold.kind:
        rows = zip(answer.args, gold.args, strict=False)
        return len(answer.args) == len(gold.args) and all(_all_same(a, b) for a, b in rows)
    matrix, other = (answer, gold) if answer.kind == "matrix" else (gold, answer)
    entries = [entry for row in matrix.args for entry in row]
    if len(matrix.args) > 1 and len(matrix.args[0]) > 1:
        return False
    if other.kind == "interval" and other.args[2] == "()":
        return _all_same(entries, other.args[:2])
    if other.kind == "tuple":
        return _all_same(entries, other.args)
    return len(entries) == 1 and same(entries[0], other)


def _members(node: Node) -> tuple[Node, ...]:
    return node.args if node.kind in ("list", "set", "union") else (node,)


def _same_unordered(answers: Sequence[Node], golds: Sequence[Node]) -> bool:
    if len(answers) != len(golds):
        return False
    if len(golds) > _MAX_UNORDERED:
        raise TooComplexError("too many members")
    left = list(golds)
    for answer in answers:
        for i, gold in enumerate(left):
            if same(answer, gold):
                del left[i]
                break
        else:
            return False
    return True


def _same_ordered(answer: Node, gold: Node) -> bool:
    """Compare tuples and intervals; a bare list may stand for a tuple, in order."""
    (items, brackets), (others, expected) = _ordered(answer), _ordered(gold)
    bare = "" in (brackets, expected)
    if brackets != expected and not (bare and "()" in (brackets, expected)):
        return False
    return _all_same(items, others)


def _ordered(node: Node) -> tuple[tuple[Node, ...], str]:
    if node.kind != "interval":
        return node.args, "()" if node.kind == "tuple" else ""
    low, high, brackets = node.args
    return (low, high), brackets


def _all_same(answers: Sequence[Node], golds: Sequence[Node]) -> bool:
    return len(answers) == len(golds) and all(
        same(answer, gold) for answer, gold in zip(answers, golds, strict=True)
    )


# Values


def _same_value(answer: Node, gold: Node) -> bool:
    names = _symbols(answer) | _symbols(gold)
    if not names:
        try:
            a, b = _exact(answer), _exact(gold)
            return a == b or (_is_rounded(answer, gold) and _near(float(a), float(b), _ROUNDED))
        except (_NotRationalError, TooComplexError, OverflowError):
            pass
        except _UndefinedError:
            return False
    try:
        return _same_in_fields(answer, gold)
    except _NotRationalError:
        return _same_in_floats(answer, gold)


def _is_rounded(*nodes: Node) -> bool:
    """Return whether one value is a decimal with so many digits that it may be rounded."""
    for node in nodes:
        inner = node.args[0] if node.kind == "negate" else node
        if inner.kind == "number" and inner.args[1] >= _ROUNDED_DIGITS:
            return True
    return False


def _near(a: complex, b: complex, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def _exact(node: Node) -> Fraction:
    """Return the value of a tree without symbols."""
    kind, args = node
    if kind == "number":
        value: Fraction = args[0]
    elif kind == "negate":
        value = -_exact(args[0])
    elif kind == "add":
        value = _exact(args[0]) + _exact(args[1])
    elif kind == "multiply":
        value = _exact(args[0]) * _exact(args[1])
    elif kind == "divide":
        below = _exact(args[1])
        if not below:
            raise _UndefinedError
        value = _exact(args[0]) / below
    elif kind == "power":
        value = _exact_power(_exact(args[0]), _exact(args[1]))
    elif kind == "factorial":
        value = Fraction(_factorial(_exact(args[0])))
    elif kind == "measure" and args[1] == "%":
        value = _exact(args[0]) / 100
    elif kind == "call":
        value = _exact_call(args[0], [_exact(arg) for arg in args[1:]])
    else:
        raise _NotRationalError
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise TooComplexError("value too large")
    return value


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        root = _exact_root(base, exponent.denominator)
        return _exact_power(root, Fraction(exponent.numerator))
    n = exponent.numerator
    if not base and n < 0:
        raise _UndefinedError
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and abs(n) * (bits - 1) > _MAX_BITS:
        raise TooComplexError("value too large")
    if bits <= 1:
        return base ** (n % 2) if n else Fraction(1)
    return base**n


def _exact_root(base: Fraction, degree: int) -> Fraction:
    """Return the real root if it is rational; of a negative base, only a square root is not."""
    if base < 0 or degree > 64:
        raise _NotRationalError
    roots = []
    for part in (base.numerator, base.denominator):
        root = math.isqrt(part) if degree == 2 else _integer_root(part, degree)
        if root**degree != part:
            raise _NotRationalError
        roots.append(root)
    return Fraction(*roots)


def _integer_root(number: int, degree: int) -> int:
    """Return the largest integer whose power does not exceed the number, by bisection."""
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= number:
            low = middle
        else:
            high = middle - 1
    return low


def _factorial(value: Fraction) -> int:
    if value.denominator != 1 or value < 0:
        raise _UndefinedError
    if value > _MAX_FACTORIAL:
        raise TooComplexError("factorial too large")
    return math.factorial(value.numerator)


def _exact_call(name: str, args: list[Fraction]) -> Fraction:
    if name == "sqrt" and len(args) == 1:
        return _exact_root(args[0], 2)
    if name == "root" and args[1].denominator == 1 and 2 <= args[1] <= 64:
        if args[0] < 0 and args[1] % 2:
            return -_exact_root(-args[0], args[1].numerator)
        return _exact_root(args[0], args[1].numerator)
    if name == "abs":
        return abs(args[0])
    if name == "floor":
        return Fraction(math.floor(args[0]))
    if name == "ceil":
        return Fraction(math.ceil(args[0]))
    if name in ("max", "min"):
        return max(args) if name == "max" else min(args)
    if name in ("binom", "gcd", "lcm"):
        if not all(arg.denominator == 1 for arg in args):
            raise _NotRationalError
        integers = [arg.numerator for arg in args]
        if name != "binom":
            return Fraction(getattr(math, name)(*integers))
        if len(integers) != 2 or min(integers) < 0:
            raise _UndefinedError
        if min(integers[1], integers[0] - integers[1]) > _MAX_FACTORIAL:
            raise TooComplexError("binomial coefficient too large")
        return Fraction(math.comb(*integers))
    raise _NotRationalError


def _same_in_fields(answer: Node, gold: Node) -> bool:
    agreed = 0
    for point in range(_POINTS):
        for prime in _PRIMES:
            try:
                a, a_defined = _in_field(answer, point, prime), True
            except _UndefinedError:
                a, a_defined = 0, False
            try:
                b, b_defined = _in_field(gold, point, prime), True
            except _UndefinedError:
                b, b_defined = 0, False
            if a_defined != b_defined or a != b:
                return False
            agreed += a_defined
    return agreed > 0


def _in_field(node: Node, point: int, prime: int) -> int:
    """Return the value modulo a prime; symbols, and pi and e, have values of the point's own."""
    kind, args = node
    if kind == "number":
        value: Fraction = args[0]
        return _quotient(value.numerator, value.denominator, prime)
    if kind == "symbol":
        if args[0] in ("i", "infinity"):
            raise _NotRationalError
        seed = zlib.crc32(args[0].encode()) + 1
        return pow(seed * 0x9E3779B97F4A7C15 + point, 3 + point, prime)
    if kind == "negate":
        return -_in_field(args[0], point, prime) % prime
    if kind in ("add", "multiply", "divide"):
        left, right = _in_field(args[0], point, prime), _in_field(args[1], point, prime)
        if kind == "add":
            return (left + right) % prime
        if kind == "multiply":
            return left * right % prime
        return _quotient(left, right, prime)
    if kind == "power":
        if _symbols(args[1]):
            raise _NotRationalError
        exponent = _exact(args[1])
        if exponent.denominator != 1:
            raise _NotRationalError
        if abs(exponent) > _MAX_FIELD_EXPONENT:
            raise TooComplexError("exponent too large")
        base = _in_field(args[0], point, prime)
        if not base and exponent <= 0:
            raise _UndefinedError
        return pow(base, exponent.numerator, prime)
    if kind == "measure" and args[1] == "%":
        return _quotient(_in_field(args[0], point, prime), 100, prime)
    if kind == "factorial" and not _symbols(node):
        return _factorial(_exact(args[0])) % prime
    if kind == "call" and not _symbols(node):
        value = _exact(node)
        return _quotient(value.numerator, value.denominator, prime)
    raise _NotRationalError


def _quotient(above: int, below: int, prime: int) -> int:
    if not below % prime:
        raise _UndefinedError
    return above * pow(below, -1, prime) % prime


def _same_in_floats(answer: Node, gold: Node) -> bool:
    tolerance = _ROUNDED if _is_rounded(answer, gold) else _CLOSE
    constant = not _symbols(answer) and not _symbols(gold)
    if constant and not _is_rounded(answer, gold) and _is_rational(answer) != _is_rational(gold):
        # An irrational number is no fraction, however near.
        tolerance = 1e-14
    agreed = 0
    for point in range(1 if constant else 2 * _POINTS):
        terms: list[float] = [0.0]
        try:
            a, b = _in_floats(answer, point, terms), _in_floats(gold, point, terms)
        except (_UndefinedError, OverflowError, ZeroDivisionError, ValueError):
            continue
        if cmath.isnan(a) or cmath.isnan(b):
            continue
        if cmath.isinf(a) or cmath.isinf(b):
            if a != b:
                return False
            agreed += constant
            continue
        # Where large terms cancel, what is left is noise of this size.
        noise = 8e-15 * max(terms)
        size = tolerance * max(abs(a), abs(b))
        if noise > max(size, _MAX_NOISE) or abs(a - b) > max(size, noise):
            return False
        agreed += 1
    return agreed >= (1 if constant else 2)


def _is_rational(node: Node) -> bool:
    try:
        _exact(node)
    except (_NotRationalError, _UndefinedError, TooComplexError):
        return False
    return True


def _in_floats(node: Node, point: int, terms: list[float]) -> complex:
    """Return the value at a point; `terms` collects the sizes of what is added."""
    kind, args = node
    if kind == "number":
        return complex(float(args[0]))
    if kind == "symbol":
        return _float_symbol(args[0], point)
    if kind == "call":
        values = [_in_floats(arg, point, terms) for arg in args[1:]]
        if args[0] in _TRIGONOMETRIC:
            terms.append(1.0)
        return _call(args[0], values)
    if kind == "measure":
        if args[1] != "%":
            raise _UndefinedError
        return _in_floats(args[0], point, terms) / 100
    values = [_in_floats(arg, point, terms) for arg in args]
    if kind == "add":
        terms += abs(values[0]), abs(values[1])
        return values[0] + values[1]
    if kind == "negate":
        return -values[0]
    if kind == "multiply":
        return values[0] * values[1]
    if kind == "divide":
        return values[0] / values[1]
    if kind == "power":
        if values[1].imag == 0 and values[0].imag == 0 and values[0].real > 0:
            return complex(values[0].real ** values[1].real)
        return complex(values[0] ** values[1])
    if kind == "degrees":
        return values[0] * math.pi / 180
    if kind == "factorial":
        if values[0].imag or values[0].real < 0:
            raise _UndefinedError
        return complex(math.gamma(values[0].real + 1))
    raise _UndefinedError


def _float_symbol(name: str, point: int) -> complex:
    if name == "pi":
        return complex(math.pi)
    if name == "e":
        return complex(math.e)
    if name == "i":
        return 1j
    if name == "infinity":
        return complex(math.inf)
    seed = zlib.crc32(name.encode()) * 2654435761 + point * 0x9E3779B1
    size = 0.3 + 2.2 * ((seed >> 7) % 10007) / 10007
    # The first half of the points are positive: some functions have values only there.
    return complex(size if point < _POINTS else -size)


def _floor(z: complex) -> complex:
    return complex(math.floor(z.real + 1e-9))


def _ceil(z: complex) -> complex:
    return complex(math.ceil(z.real - 1e-9))


_FUNCTIONS: dict[str, Callable[..., complex]] = {
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "cot": lambda z: 1 / cmath.tan(z),
    "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z),
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "tanh": cmath.tanh,
    "ln": cmath.log,
    "log": cmath.log,
    "lg": lambda z: cmath.log(z) / math.log(10),
    "logbase": lambda base, z: cmath.log(z) / cmath.log(base),
    "exp": cmath.exp,
    "sqrt": cmath.sqrt,
    "abs": lambda z: complex(abs(z)),
    "floor": _floor,
    "ceil": _ceil,
    "max": lambda *z: max(z, key=lambda value: value.real),
    "min": lambda *z: min(z, key=lambda value: value.real),
}


def _call(name: str, args: list[complex]) -> complex:
    if name == "root":
        base, degree = args
        # An odd root of a negative number is the real one.
        if base.imag == 0 and base.real < 0 and degree.imag == 0 and degree.real % 2 == 1:
            return complex(-((-base.real) ** (1 / degree.real)))
        return complex(base ** (1 / degree))
    function = _FUNCTIONS.get(name)
    if function is None:
        raise _UndefinedError
    try:
        return function(*args)
    except TypeError:
        raise _UndefinedError from None


def _nodes(node: Node) -> list[Node]:
    """Return the nodes directly below; those in the rows of a matrix too."""
    parts: list[Any] = [arg for arg in node.args if isinstance(arg, tuple)]
    return [inner for part in parts for inner in ([part] if isinstance(part, Node) else part)]


def _symbols(node: Node) -> frozenset[str]:
    """Return the names of the symbols that have no fixed value."""
    if node.kind == "symbol":
        name = node.args[0]
        return frozenset() if name in ("pi", "e", "i", "infinity") else frozenset((name,))
    return frozenset().union(*map(_symbols, _nodes(node)))


def _substitute(node: Node, values: dict[str, Fraction]) -> Node:
    if node.kind == "symbol":
        value = values.get(node.args[0])
        return node if value is None else Node("number", (value, 0))
    return Node(
        node.kind,
        tuple(_substitute(arg, values) if isinstance(arg, Node) else arg for arg in node.args),
    )
