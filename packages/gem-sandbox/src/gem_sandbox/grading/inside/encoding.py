"""Encodes values and their types as JSON, to pass between program, test and grader.

None, booleans, text, floats, integers of 63 bits and lists are themselves; anything else is an
object with one key, its tag:

    i integer (hex)    c complex            b bytes (hex)     t tuple     s set     f frozenset
    d pairs of a dict  r range              g iterator        q deque     y [type, numpy array]
    k [Decimal or Fraction, text]           o [class, whether callable] of any other object

An instance of a subclass is written as its base type, whatever its methods say. Decoding makes
values of exactly these types, so that no method of the program reaches the test or the grader.

An exception is `{"x": names of its class and base classes, "m": message, "e": arguments, "d":
attributes, "p": names under which the program defines one of these classes}`. A value is
`{"v": ...}`. Both may have `"a"`, the arguments that the call changed; `"c"`, the containers of
earlier operations that it changed; `"is"`, the argument that the value is; `"h"`, which arguments
(None: the value) the program still holds; and `"l"`, if parts of these belong to one another.

An operation is `[kind, target, arguments, pairs of named arguments]`; kinds other than `call` are
in `inside/candidate.py`. Arguments have two more tags: p, with a target, and B, with the name of a
built-in function or type. A target is one of

    ["name", NAME]             what the program defines
    ["function", NAME]         the same, or a method of a new `Solution`
    ["new", NAME]              a new object of that class, made without arguments
    ["method", TARGET, NAME]   an attribute of another target
    ["result", NUMBER]         what an earlier operation of the test returned
"""

from __future__ import annotations

import math
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_ITERATED = 10_000
"""Most items taken from an iterator."""
_MAX_NODES = 1_000_000
_MAX_DEPTH = 100
_MAX_COLLISIONS = 64
_SMALL = 1 << 63
_MAX_EXACT = 1 << 53
# The text of a Decimal or Fraction, within bounds: 1e999999999 as an integer would fill memory.
_NUMBER = (
    r"-?([0-9]{1,2000}(/[0-9]{1,2000}|(\.[0-9]{1,2000})?(E[+-]?[0-9]{1,3})?)"
    r"|s?NaN[0-9]{0,30}|Infinity)"
)
_REL_TOL, _ABS_TOL = 1e-9, 1e-12


def encode(value: Any, other: Callable[[Any], Any]) -> Any:
    """Return a value as JSON data; `other` encodes values of all other types.

    Raises:
        ValueError: The value is nested too deeply, contains itself, or has too many items.
    """
    left = [_MAX_NODES]
    return _encoded(value, other, left, 0)


def _encoded(value: Any, other: Callable[[Any], Any], left: list[int], depth: int) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth > _MAX_DEPTH:
        raise ValueError("a value is too large or too deeply nested")

    def all_of(items: Any) -> list[Any]:
        return [_encoded(item, other, left, depth + 1) for item in items]

    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if -_SMALL < number < _SMALL else {"i": hex(number)}
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    if isinstance(value, list):
        return all_of(list.__iter__(value))
    if isinstance(value, dict):
        return {"d": [all_of(pair) for pair in dict.items(value)]}
    if isinstance(value, tuple):
        return {"t": all_of(tuple.__iter__(value))}
    if isinstance(value, (set, frozenset)):
        return {"s" if isinstance(value, set) else "f": all_of(value)}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"b": value.hex()}
    if kind is range:
        return {"r": all_of((value.start, value.stop, value.step))}
    module = kind.__module__
    if module == "numpy":
        import numpy

        if isinstance(value, numpy.generic):
            return _encoded(value.item(), other, left, depth + 1)
        if isinstance(value, numpy.ndarray):
            return {"y": [value.dtype.str, _encoded(value.tolist(), other, left, depth + 1)]}
    if module == "collections" and kind.__name__ == "deque":
        return {"q": all_of(value)}
    if kind.__name__ in ("Decimal", "Fraction") and module in ("decimal", "fractions"):
        return {"k": [kind.__name__, str(value)]}
    if _views(value):
        return {"g": all_of([item for _, item in zip(range(MAX_ITERATED), value, strict=False)])}
    return other(value)


def _views(value: Any) -> bool:
    """Return whether a value is an iterator or dictionary view of Python's own types."""
    kind = type(value)
    if kind.__module__ not in ("builtins", "itertools"):
        return False
    return hasattr(kind, "__next__") or kind.__name__ in ("dict_keys", "dict_values", "dict_items")


def decode(raw: Any, other: Callable[[str, Any], Any], arrays: bool = False) -> Any:
    """Decode JSON data into new objects.

    Args:
        raw: Result of `encode`; untrusted, since a program may have forged it.
        other: Decodes all other tags, `o` among them.
        arrays: Return numpy arrays as arrays, not as lists.

    Raises:
        ValueError, TypeError, ArithmeticError, RecursionError: `encode` never returns such data.
    """
    if isinstance(raw, list):
        return [decode(item, other, arrays) for item in raw]
    if not isinstance(raw, dict):
        return raw
    ((tag, payload),) = raw.items()
    if tag == "i":
        return int(payload, 16)
    if tag == "b":
        return bytes.fromhex(payload)
    if tag == "k":
        import decimal
        import fractions
        import re

        kind, text = payload
        if re.fullmatch(_NUMBER, text) is None:
            raise ValueError("no number, or one that is too large")
        return fractions.Fraction(text) if kind == "Fraction" else decimal.Decimal(text)
    if tag == "c":
        real, imag = payload
        return complex(real, imag)
    if tag == "d":
        pairs = [(decode(k, other, arrays), decode(v, other, arrays)) for k, v in payload]
        check_hashes([key for key, _ in pairs])
        return dict(pairs)
    if tag == "y":
        kind, nested = payload
        values = decode(nested, other)
        if not arrays:
            return values
        import numpy

        return numpy.array(values, dtype=kind)
    if tag not in _MADE:
        return other(tag, payload)
    items = [decode(item, other, arrays) for item in payload]
    if tag in ("s", "f"):
        check_hashes(items)
    return _MADE[tag](items)


def differs(value: Any, copy: Any) -> bool:
    """Return whether a container differs from a copy that was made of it by `encode` and `decode`.

    NaN differs from NaN, and arrays cannot be compared as a whole: then the encodings decide.
    """
    try:
        if value == copy:
            return False
    except Exception:
        pass
    try:
        return repr(encode(value, str)) != repr(encode(copy, str))
    except ValueError:
        return True


def _deque(items: list[Any]) -> Any:
    import collections

    return collections.deque(items)


_MADE: dict[Any, Callable[[list[Any]], Any]] = {
    **{"t": tuple, "s": set, "f": frozenset, "g": iter, "q": _deque},
    "r": lambda items: range(*items),
}


def check_hashes(items: list[Any]) -> None:
    """Refuse items with colliding hashes: to build a hash table of them takes quadratic time."""
    hashes = sorted(map(hash, items))
    if any(map(int.__eq__, hashes, hashes[_MAX_COLLISIONS:])):
        raise ValueError("many keys have the same hash")


def same(value: Any, expected: Any) -> bool:
    """Return whether two values are equal, floats in them within a relative 1e-9.

    Two floats: relative 1e-9, absolute 1e-12 near zero; NaN equals NaN. An integer and a float:
    absolute 1e-9; above 2**53, where floats are more than 1 apart, only `==` counts. Other types
    are compared by `==`.
    """
    kinds = type(value), type(expected)
    if float in kinds and set(kinds) <= {float, int}:
        if value == expected or (value != value and expected != expected):
            return True
        try:
            if kinds == (float, float):
                return bool(math.isclose(value, expected, rel_tol=_REL_TOL, abs_tol=_ABS_TOL))
            # The difference to a larger integer would be rounded.
            exact = max(abs(value), abs(expected)) <= _MAX_EXACT
            return exact and bool(abs(value - expected) <= _REL_TOL)
        except OverflowError:
            return False
    if kinds in ((list, list), (tuple, tuple)):
        return len(value) == len(expected) and all(map(same, value, expected))
    if kinds == (dict, dict):
        return len(value) == len(expected) and all(
            key in value and same(value[key], expected[key]) for key in expected
        )
    return bool(value == expected)


IMPORTED = frozenset(
    [
        *("abc", "array", "ast", "bisect", "cmath", "collections", "copy", "dataclasses", "enum"),
        *("datetime", "decimal", "fractions", "functools", "heapq", "itertools", "json", "math"),
        *("numbers", "numpy", "operator", "random", "re", "statistics", "string", "sys", "time"),
        *("textwrap", "types", "typing", "__future__"),
    ]
)
"""Packages that tests may import, besides the program and pytest."""
PROGRAM = frozenset(["candidate", "main", "program", "solution", "submission"])
"""Names under which tests import the program."""
PREAMBLE = {
    module: names.split()
    for module, names in {
        "": "bisect collections copy datetime decimal fractions functools heapq itertools json "
        "math operator random re statistics string sys typing",
        "typing": "Any Callable Deque DefaultDict Dict FrozenSet Generator Iterable Iterator List "
        "Literal Mapping NamedTuple Optional Sequence Set Tuple Type TypeVar Union",
        "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
        "itertools": "accumulate chain combinations combinations_with_replacement count cycle "
        "groupby islice pairwise permutations product repeat starmap takewhile zip_longest",
        "functools": "cache cmp_to_key lru_cache partial reduce",
        "heapq": "heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest",
        "bisect": "bisect_left bisect_right insort insort_left insort_right",
        "math": "ceil comb factorial floor gcd inf isclose isqrt lcm log log2 perm pi sqrt",
        "fractions": "Fraction",
        "decimal": "Decimal",
        "dataclasses": "dataclass field",
        "string": "ascii_lowercase ascii_uppercase digits",
    }.items()
}
"""Modules and names of modules that programs and tests may use without importing them."""


def preamble(wanted: set[str]) -> dict[str, Any]:
    """Return the preamble's names among `wanted`, with their values."""
    found: dict[str, Any] = {}
    for module, names in PREAMBLE.items():
        for name in wanted.intersection(names):
            __import__(module or name)
            source = sys.modules[module or name]
            if not module or hasattr(source, name):
                found[name] = getattr(source, name) if module else source
    if "np" in wanted:
        import numpy

        found["np"] = numpy
    return found
