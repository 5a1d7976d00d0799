"""Decides whether two expressions have the same value.

Rational numbers are compared as fractions. Rational functions are compared at points of two finite
fields, where different polynomials agree with probability below 1e-13. All other expressions are
compared in floating point at a few fixed points.
"""

from __future__ import annotations

import cmath
import math
import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from gem_math.tree import Node, TooComplexError, Work, nodes, size, symbols, unsigned

# Mersenne primes: 2**61 - 1 and 2**89 - 1.
_PRIMES = (2**61 - 1, 2**89 - 1)
_POINTS = 4
_MAX_BITS = 1 << 13
_MAX_FIELD_EXPONENT = 1 << 64
_MAX_FACTORIAL = 1000
_MAX_LOWER = 40
# Decimals with at least this many digits are taken to be rounded: floats of a data set.
_ROUNDED_DIGITS = 12
_ROUNDED = 1e-11
_CLOSE = 1e-10
_MAX_NOISE = 1e-12
_TRIGONOMETRIC = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})


class _NotRationalError(Exception):
    """The value is not a rational function with integer exponents."""


class _UndefinedError(Exception):
    """The expression has no value at this point."""


def same_value(answer: Node, gold: Node, work: Work) -> bool:
    """Return whether two expressions have the same value for all values of their symbols.

    Raises:
        TooComplexError: An exact value would be too large, or `work` is spent.
    """
    if answer.kind == gold.kind == "number" and not is_rounded(answer, gold):
        return bool(answer.args[0] == gold.args[0])
    if _is_integer(gold) and is_rounded(answer):
        # An integer gold has no rounding, so the digits must be exact.
        return _exact(answer, work) == _exact(gold, work)
    # The cost of one evaluation, and of collecting the symbols.
    cost = size(answer) + size(gold)
    work.spend(cost)
    names = symbols(answer) | symbols(gold)
    if not names and is_rounded(answer, gold):
        return _same_in_floats(answer, gold, work, cost)
    if not names:
        try:
            return _exact(answer, work) == _exact(gold, work)
        except (_NotRationalError, TooComplexError, OverflowError):
            pass
        except _UndefinedError:
            return False
    try:
        return _same_in_fields(answer, gold, work, cost)
    except _NotRationalError:
        return _same_in_floats(answer, gold, work, cost)


def rational(node: Node, work: Work) -> Fraction | None:
    """Return the value if it is a rational number that can be computed exactly, else None.

    Raises:
        TooComplexError: `work` is spent.
    """
    work.spend(1)
    try:
        return _exact(node, work)
    except (_NotRationalError, _UndefinedError, OverflowError):
        return None
    except TooComplexError:
        work.spend(0)
        return None


def is_integer(node: Node, work: Work) -> bool:
    """Return whether an expression is the same integer for all values of its symbols.

    Raises:
        TooComplexError: `work` is spent.
    """
    work.spend(_POINTS * size(node))
    found: set[int] = set()
    for index in range(_POINTS):
        try:
            value = _in_floats(node, _Point(index), [])
        except (_UndefinedError, OverflowError, ZeroDivisionError, ValueError):
            continue
        if not cmath.isfinite(value) or abs(value - round(value.real)) > _CLOSE:
            return False
        found.add(round(value.real))
    return len(found) == 1


def is_rounded(*numbers: Node) -> bool:
    """Return whether any node is a decimal with at least `_ROUNDED_DIGITS` digits."""
    inner = map(unsigned, numbers)
    return any(each.kind == "number" and each.args[1] >= _ROUNDED_DIGITS for each in inner)


def _is_integer(node: Node) -> bool:
    inner = unsigned(node)
    return inner.kind == "number" and not inner.args[1] and inner.args[0].denominator == 1


def _exact(node: Node, work: Work) -> Fraction:
    """Return the exact value of a tree without symbols."""
    kind, args = node
    if kind == "number":
        value: Fraction = args[0]
    elif kind == "negate":
        value = -_exact(args[0], work)
    elif kind == "add":
        value = _exact(args[0], work) + _exact(args[1], work)
    elif kind == "multiply":
        value = _exact(args[0], work) * _exact(args[1], work)
    elif kind == "divide":
        below = _exact(args[1], work)
        if not below:
            raise _UndefinedError
        value = _exact(args[0], work) / below
    elif kind == "power":
        value = _exact_power(_exact(args[0], work), _exact(args[1], work))
    elif kind == "factorial":
        value = Fraction(_factorial(_exact(args[0], work), work))
    elif kind == "measure" and args[1] == "%":
        value = _exact(args[0], work) / 100
    elif kind == "call":
        value = _exact_call(args[0], [_exact(arg, work) for arg in args[1:]])
    else:
        raise _NotRationalError
    bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    work.spend(bits >> 8)
    if bits > _MAX_BITS:
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
    # Powers of 0, 1 and -1 are small whatever the exponent is.
    return base**n if bits > 1 or not n else base ** (2 - n % 2)


def _exact_root(base: Fraction, degree: int) -> Fraction:
    """Return the root of a base of 0 or more if it is rational, else raise `_NotRationalError`."""
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
    """Return the largest integer whose power does not exceed the number, by Newton's method."""
    root = 1 << (number.bit_length() // degree + 1)
    while True:
        smaller = ((degree - 1) * root + number // root ** (degree - 1)) // degree
        if smaller >= root:
            return root
        root = smaller


def _factorial(value: Fraction, work: Work) -> int:
    if value.denominator != 1 or value < 0:
        raise _UndefinedError
    if value > _MAX_FACTORIAL:
        raise TooComplexError("factorial too large")
    work.spend(value.numerator >> 4)
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
    if name in ("floor", "ceil"):
        return Fraction(getattr(math, name)(args[0]))
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
        if min(integers[1], integers[0] - integers[1]) * integers[0].bit_length() > _MAX_BITS:
            raise TooComplexError("binomial coefficient too large")
        return Fraction(math.comb(*integers))
    raise _NotRationalError


def _same_in_fields(answer: Node, gold: Node, work: Work, cost: int) -> bool:
    agreed = 0
    for point in range(_POINTS):
        for prime in _PRIMES:
            work.spend(cost)
            a, b = (_if_defined(node, point, prime, work) for node in (answer, gold))
            if a != b:
                return False
            agreed += a is not None
    return agreed > 0


def _if_defined(node: Node, point: int, prime: int, work: Work) -> int | None:
    try:
        return _in_field(node, point, prime, work)
    except _UndefinedError:
        return None


def _in_field(node: Node, point: int, prime: int, work: Work) -> int:
    """Return the value modulo a prime; the point determines the values of symbols, pi and e."""
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
        return -_in_field(args[0], point, prime, work) % prime
    if kind in ("add", "multiply", "divide"):
        left = _in_field(args[0], point, prime, work)
        right = _in_field(args[1], point, prime, work)
        if kind == "add":
            return (left + right) % prime
        if kind == "multiply":
            return left * right % prime
        return _quotient(left, right, prime)
    if kind == "power":
        if symbols(args[1]):
            raise _NotRationalError
        exponent = _exact(args[1], work)
        if exponent.denominator != 1:
            raise _NotRationalError
        if abs(exponent) > _MAX_FIELD_EXPONENT:
            raise TooComplexError("exponent too large")
        work.spend(abs(exponent.numerator).bit_length() >> 2)
        base = _in_field(args[0], point, prime, work)
        if not base and exponent <= 0:
            raise _UndefinedError
        return pow(base, exponent.numerator, prime)
    if kind == "measure" and args[1] == "%":
        return _quotient(_in_field(args[0], point, prime, work), 100, prime)
    if kind == "factorial" and not symbols(node):
        return _factorial(_exact(args[0], work), work) % prime
    if kind == "call" and not symbols(node):
        value = _exact(node, work)
        return _quotient(value.numerator, value.denominator, prime)
    if kind == "call" and args[0] == "binom" and not symbols(args[2]):
        return _binomial_in_field(args[1], _exact(args[2], work), point, prime, work)
    raise _NotRationalError


def _binomial_in_field(upper: Node, lower: Fraction, point: int, prime: int, work: Work) -> int:
    """Return n(n-1)...(n-k+1)/k! modulo a prime."""
    if lower.denominator != 1 or not 0 <= lower <= _MAX_LOWER:
        raise _NotRationalError
    value, n = 1, _in_field(upper, point, prime, work)
    for i in range(lower.numerator):
        value = value * (n - i) % prime
    return _quotient(value, math.factorial(lower.numerator), prime)


def _quotient(above: int, below: int, prime: int) -> int:
    if not below % prime:
        raise _UndefinedError
    return above * pow(below, -1, prime) % prime


def _same_in_floats(answer: Node, gold: Node, work: Work, cost: int) -> bool:
    constant = not symbols(answer) and not symbols(gold)
    tolerance = _CLOSE
    if is_rounded(answer, gold):
        tolerance = _ROUNDED
    elif constant and (rational(answer, work) is None) != (rational(gold, work) is None):
        # One is rational and one irrational: they differ, however close they are.
        tolerance = 1e-14
    # Outside the domain of the gold, where it has no real value, two expressions may differ.
    real = not constant and not _has_imaginary(gold)
    positive = frozenset() if constant else _positive(answer, gold)
    agreed = inside = 0
    differs = False
    for index in range(1 if constant else 2 * _POINTS):
        point = _Point(index, positive)
        terms: list[float] = [0.0]
        work.spend(cost)
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
        # Rounding error that remains where large terms cancel.
        noise = 8e-15 * max(terms)
        size = tolerance * max(abs(a), abs(b))
        outside = real and abs(b.imag) > max(_MAX_NOISE, _MAX_NOISE * abs(b))
        if noise > max(size, _MAX_NOISE) or abs(a - b) > max(size, noise):
            if not outside:
                return False
            differs = True
            continue
        agreed += 1
        inside += not outside
    if differs:
        return inside >= 2
    return agreed >= (1 if constant else 2)


class _Point(NamedTuple):
    """Where expressions are compared."""

    number: int
    positive: frozenset[str] = frozenset()
    """Symbols whose values are positive at all points."""


def _has_imaginary(node: Node) -> bool:
    return node == _IMAGINARY or any(map(_has_imaginary, nodes(node)))


_IMAGINARY = Node("symbol", ("i",))


def _positive(answer: Node, gold: Node) -> frozenset[str]:
    """Return the symbols that are positive because the gold has a root or a logarithm of them.

    As in sqrt(k/m): a product of powers, in which the symbol's exponent is odd. None where a
    modulus tells the signs apart.
    """
    found: set[str] = set()
    waiting = [gold, answer]
    while waiting:
        node = waiting.pop()
        if node.kind == "call" and node.args[0] == "abs":
            return frozenset()
        waiting += nodes(node)
    waiting = [gold]
    while waiting:
        node = waiting.pop()
        waiting += nodes(node)
        powers = _powers(node.args[-1]) if _is_positive_only(node) else None
        found.update(name for name, power in (powers or {}).items() if power % 2)
    return frozenset(found)


def _is_positive_only(node: Node) -> bool:
    return node.kind == "call" and node.args[0] in ("sqrt", "ln", "log", "lg", "logbase")


def _powers(node: Node) -> dict[str, int] | None:
    """Return the exponents of the symbols in a product of powers; None for any other node."""
    kind, args = node
    if kind == "number":
        return {} if args[0] > 0 else None
    if kind == "symbol":
        return {str(args[0]): 1}
    if kind == "power" and args[1].kind == "number" and args[1].args[0].denominator == 1:
        inner = _powers(args[0])
        return inner and {name: power * int(args[1].args[0]) for name, power in inner.items()}
    if kind not in ("multiply", "divide"):
        return None
    left, right = map(_powers, args)
    if left is None or right is None:
        return None
    sign = 1 if kind == "multiply" else -1
    return {
        name: left.get(name, 0) + sign * right.get(name, 0) for name in left.keys() | right.keys()
    }


def _in_floats(node: Node, point: _Point, terms: list[float]) -> complex:
    """Return the value at a point; `terms` collects the absolute values of all summands."""
    kind, args = node
    if kind == "number":
        return complex(float(args[0]))
    if kind == "symbol":
        return _float_symbol(args[0], point)
    if kind == "call":
        values = [_in_floats(arg, point, terms) + 0 for arg in args[1:]]
        if args[0] in _TRIGONOMETRIC:
            terms.append(1.0)
        return _call(args[0], values)
    if kind == "measure":
        if args[1] != "%":
            raise _UndefinedError
        return _in_floats(args[0], point, terms) / 100
    # Adding 0 removes a negative zero, which would select the other branch of a root.
    values = [_in_floats(arg, point, terms) + 0 for arg in args]
    if kind == "add":
        terms += abs(values[0]), abs(values[1])
        return values[0] + values[1]
    if kind == "negate":
        return 0 - values[0]
    if kind == "multiply":
        return values[0] * values[1]
    if kind == "divide":
        return values[0] / values[1]
    if kind == "power":
        if values[1].imag == 0 and values[0].imag == 0 and values[0].real > 0:
            return complex(values[0].real ** values[1].real)
        if values[0].imag == 0 and values[0].real < 0:
            return _power_of_negative(node, values[0].real, values[1])
        return complex(values[0] ** values[1])
    if kind == "degrees":
        return values[0] * math.pi / 180
    if kind == "factorial":
        if values[0].imag or (values[0].real < 0 and not symbols(node)):
            raise _UndefinedError
        return complex(math.gamma(values[0].real + 1))
    raise _UndefinedError


def _power_of_negative(node: Node, base: float, exponent: complex) -> complex:
    """Return the power of a negative base; with variables, odd roots are real (x^(1/3))."""
    if symbols(node.args[0]):
        fraction = rational(node.args[1], Work())
        if fraction is not None and fraction.denominator % 2 and fraction.denominator > 1:
            size = (-base) ** float(fraction)
            return complex(-size if fraction.numerator % 2 else size)
    return complex(base**exponent)


_CONSTANTS = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j, "infinity": complex(math.inf)}


def _float_symbol(name: str, point: _Point) -> complex:
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    seed = zlib.crc32(name.encode()) * 2654435761 + point.number * 0x9E3779B1
    size = 0.3 + 2.2 * ((seed >> 7) % 10007) / 10007
    # The first half of the points is positive: some functions are defined only there.
    return complex(size if point.number < _POINTS or name in point.positive else -size)


def _arccot(z: complex) -> complex:
    """Return the inverse cotangent of a positive number; of others there are two conventions."""
    if z.imag or z.real < 0:
        raise _UndefinedError
    return cmath.pi / 2 - cmath.atan(z)


def _binomial(n: complex, k: complex) -> complex:
    if n.imag or k.imag:
        raise _UndefinedError
    top, lower, rest = (math.gamma(x + 1) for x in (n.real, k.real, n.real - k.real))
    return complex(top / lower / rest)


_FUNCTIONS: dict[str, Callable[..., complex]] = {
    **{name: getattr(cmath, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "cot": lambda z: 1 / cmath.tan(z),
    "sec": lambda z: 1 / cmath.cos(z),
    "csc": lambda z: 1 / cmath.sin(z),
    "coth": lambda z: 1 / cmath.tanh(z),
    "sech": lambda z: 1 / cmath.cosh(z),
    "csch": lambda z: 1 / cmath.sinh(z),
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "arccot": _arccot,
    "arcsec": lambda z: cmath.acos(1 / z),
    "arccsc": lambda z: cmath.asin(1 / z),
    "arcsinh": cmath.asinh,
    "arccosh": cmath.acosh,
    "arctanh": cmath.atanh,
    "arccoth": lambda z: cmath.atanh(1 / z),
    "arcsech": lambda z: cmath.acosh(1 / z),
    "arccsch": lambda z: cmath.asinh(1 / z),
    "binom": _binomial,
    "ln": cmath.log,
    "log": cmath.log,
    "lg": lambda z: cmath.log(z) / math.log(10),
    "logbase": lambda base, z: cmath.log(z) / cmath.log(base),
    "exp": cmath.exp,
    "sqrt": cmath.sqrt,
    "abs": lambda z: complex(abs(z)),
    "floor": lambda z: complex(math.floor(z.real + 1e-9)),
    "ceil": lambda z: complex(math.ceil(z.real - 1e-9)),
    "max": lambda *z: max(z, key=lambda value: value.real),
    "min": lambda *z: min(z, key=lambda value: value.real),
}


def _call(name: str, args: list[complex]) -> complex:
    if name == "root":
        base, degree = args
        # An odd root of a negative number is the real root.
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
