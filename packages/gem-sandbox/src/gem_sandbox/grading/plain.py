"""Evaluates plain tests in the grader's own process.

A plain test, such as `assert sorted(f(3)) == [1, 2]`, consists of operations that are known to be
harmless. `Plain` interprets its syntax tree and never executes its code. The program's process
gets the calls only, never the expected values. `gem_sandbox.grading.replay` runs all other tests
in a sandbox.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from gem_sandbox.grading.inside.encoding import check_hashes, decode, encode, same
from gem_sandbox.grading.programs import raised
from gem_sandbox.grading.statements import Statement

_BUILTINS = frozenset(dir(builtins))
_MAX_BITS = 100_000
_MAX_LENGTH = 1_000_000
_MAX_DIGITS = 4_000


class NotPlainError(Exception):
    """A test uses more than `Plain` can evaluate."""


class NeedsSandboxError(Exception):
    """A test must run in a sandbox, because of a value that the program returned."""


class NotDataError(Exception):
    """A program returned a value of a type that graders do not compare."""


class ObjectError(NotDataError, NeedsSandboxError):
    """A program returned an object; a test may do more with it than compare it."""


class CallFailedError(Exception):
    """A call of the program raised."""


_OWN = (int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range, type(None))
"""Types whose arithmetic is bounded: that of numbers, or an error."""


def _bounded_types(*values: Any) -> None:
    """Leave values of other types, whose operations may be expensive, to a sandbox."""
    if not all(isinstance(value, _OWN) for value in values):
        raise NeedsSandboxError("arithmetic of what is no number")


def _times(left: Any, right: Any) -> Any:
    for items, times in ((left, right), (right, left)):
        if isinstance(items, (str, bytes, list, tuple)):
            if not isinstance(times, int):
                raise TypeError(f"a sequence is not repeated {type(times).__name__} times")
            if times > 0 and _contained(items, _MAX_LENGTH // times) * times > _MAX_LENGTH:
                raise ValueError("a sequence is too long")
            return items * times
    _bounded_types(left, right)
    _bounded(left, right)
    return left * right


def _contained(value: Any, limit: int) -> int:
    """Count characters and items at any depth, up to `limit`: later operations may visit each."""
    count, left = 0, [value]
    while left and count <= limit:
        part = left.pop()
        if isinstance(part, (str, bytes)):
            count += len(part)
        elif isinstance(part, (list, tuple, set, frozenset, dict)):
            count += len(part)
            if count <= limit:
                left.extend(part)
                left.extend(part.values() if isinstance(part, dict) else ())
    return count


def _bounded(*values: Any) -> None:
    if any(isinstance(value, int) and value.bit_length() > _MAX_BITS for value in values):
        raise OverflowError("an integer is too large")


def _power(base: Any, exponent: Any) -> Any:
    integers = isinstance(base, int) and isinstance(exponent, int)
    if integers and base.bit_length() * abs(exponent) > _MAX_BITS:
        raise OverflowError("an integer is too large")
    _bounded_types(base, exponent)
    return base**exponent


def _plus(left: Any, right: Any) -> Any:
    _bounded_types(left, right)
    return left + right


def _numbers(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        _bounded_types(left, right)
        if isinstance(left, (str, bytes)):
            # The text that `%` makes may be of any length.
            raise NeedsSandboxError("arithmetic of a text")
        _bounded(left, right)
        return operation(left, right)

    return apply


def _short(items: Any) -> Any:
    if isinstance(items, range) and len(items) > _MAX_LENGTH:
        raise ValueError("a range is too long")
    return items


def _hashed(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def make(*items: Any) -> Any:
        if not items:
            return kind(())
        (values,) = items
        values = values if isinstance(values, (set, frozenset, dict)) else list(_short(values))
        if isinstance(values, list):
            check_hashes(values)
        return kind(values)

    return make


def _text(value: Any = "", *more: Any, **named: Any) -> str:
    if more or named:
        raise NeedsSandboxError("more arguments than one")
    _bounded(value)
    return str(value)


def _parsed(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def parse(value: Any = 0, *more: Any, **named: Any) -> Any:
        if more or named:
            raise NeedsSandboxError("more arguments than one")
        if isinstance(value, (str, bytes)) and len(value) > _MAX_DIGITS:
            raise ValueError("a number has too many digits")
        return kind(value)

    return parse


def _sum(items: Any, start: Any = 0) -> Any:
    values = list(_short(items))
    if not all(isinstance(value, (int, float, complex)) for value in (start, *values)):
        # Each addition copies a sequence, or makes a fraction longer: the work is not bounded.
        raise NeedsSandboxError("a sum of what is no number")
    return sum(values, start)


def _rounded(number: Any, ndigits: Any = None) -> Any:
    _bounded(number)
    if isinstance(ndigits, int) and abs(ndigits) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return round(number, ndigits)


def _over(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values, **named: function(*map(_short, values), **named)


_KINDS = {
    kind.__name__: kind
    for kind in (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f.__name__: _over(f) for f in (all, any, len, list, max, min, sorted, tuple)},
    **{f.__name__: f for f in (abs, bool, isinstance, range, type)},
    "sum": _sum,
    "round": _rounded,
    "set": _hashed(set),
    "frozenset": _hashed(frozenset),
    "str": _text,
    "int": _parsed(int),
    "float": _parsed(float),
}
_MATH = {"isclose": math.isclose, "pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: _plus,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: _times,
    ast.Div: _numbers(operator.truediv),
    ast.FloorDiv: _numbers(operator.floordiv),
    ast.Mod: _numbers(operator.mod),
    ast.Pow: _power,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARED: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: same,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in _short(items),
    ast.NotIn: lambda item, items: item not in _short(items),
}
_SEQUENCES: dict[type, Callable[[Any], Any]] = {ast.List: list, ast.Tuple: tuple, ast.Set: set}

_Evaluated: TypeAlias = "Callable[[list[Any]], Any]"
"""An expression as a function of the results of the operations."""


class Plain:
    """A test whose assertions call the program with constant arguments only."""

    def __init__(self, statement: Statement) -> None:
        """Collect the calls, in the order in which they are made.

        Raises:
            NotPlainError: The test is not plain; it may still be valid.
        """
        self.operations: list[Any] = []
        """Operations for the program; see `inside/candidate.py`."""
        self._asserted: list[_Evaluated] = []
        self._program = dict.fromkeys(statement.names, "") | {n: n for n in statement.names}
        self._math = "math" in statement.preamble
        self._functions: dict[str, ast.FunctionDef] = {}
        try:
            self._statements(statement.tree.body, top=True)
        except RecursionError:
            raise NotPlainError("nested too deeply") from None
        if not self.operations:
            raise NotPlainError("no call")

    def _statements(self, body: list[ast.stmt], top: bool) -> None:
        for node in body:
            if isinstance(node, ast.Assert):
                self._asserted.append(self._evaluated(node.test))
            elif isinstance(node, ast.Import) and [a.name for a in node.names] == ["math"] and top:
                self._math = node.names[0].asname is None
            elif isinstance(node, ast.Assign) and top:
                # Metadata of the test. The name stays unknown: a test that uses it is not plain.
                self._bind(*node.targets)
                self._constant(node.value)
            elif isinstance(node, ast.FunctionDef) and top:
                self._bind(ast.Name(node.name))
                self._functions[node.name] = node
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and top:
                self._check(node.value)
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) and (
                not isinstance(node, ast.Pass)
            ):
                raise NotPlainError(type(node).__name__)

    def _bind(self, *targets: ast.expr) -> None:
        for target in targets:
            name = target.id if isinstance(target, ast.Name) else ""
            if not name or name in self._program or name in _BUILTINS or name == "math":
                raise NotPlainError("an assignment")

    def _check(self, node: ast.Call) -> None:
        """Collect a checking function, such as `check(candidate)`, called with the program's."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        function = self._functions.pop(name, None)
        given = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if function is None or not isinstance(given, ast.Name) or given.id not in self._program:
            raise NotPlainError("a call")
        rest = function.args
        names = [argument.arg for argument in rest.args]
        others = (rest.posonlyargs, rest.vararg, rest.kwonlyargs, rest.kwarg, rest.defaults)
        if len(names) != 1 or any(others) or function.decorator_list or names[0] in _BUILTINS:
            raise NotPlainError("a function")
        outer = self._program
        self._program = {**outer, names[0]: outer[given.id]}
        self._statements(function.body, top=False)
        self._program = outer

    def _evaluated(self, node: ast.expr, constant: bool = False) -> _Evaluated:
        """Return an expression as a function; record its calls of the program, if not constant."""

        def all_of(nodes: Iterable[ast.expr]) -> list[_Evaluated]:
            return [self._evaluated(part, constant) for part in nodes]

        if isinstance(node, ast.Call):
            return self._call(node, constant)
        if isinstance(node, (ast.Constant, ast.Name, ast.Attribute)):
            value = self._leaf(node)
            return lambda results: value
        if isinstance(node, ast.Compare):
            return self._compared(node, all_of([node.left, *node.comparators]))
        if isinstance(node, ast.Dict) and None not in node.keys:
            keys, values = all_of(filter(None, node.keys)), all_of(node.values)
            return lambda results: {
                key(results): item(results) for key, item in zip(keys, values, strict=True)
            }
        if isinstance(node, ast.BoolOp):
            return _decided(all_of(node.values), isinstance(node.op, ast.Or))
        if type(node) in _SEQUENCES:
            items, kind = all_of(node.elts), _SEQUENCES[type(node)]  # type: ignore[attr-defined]
            return lambda results: kind([item(results) for item in items])
        operation: Callable[..., Any]
        if isinstance(node, ast.UnaryOp):
            operation, operands = _UNARY[type(node.op)], [node.operand]
        elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            operation, operands = _BINARY[type(node.op)], [node.left, node.right]
        elif isinstance(node, ast.Subscript):
            operation, operands = operator.getitem, [node.value, node.slice]
        elif isinstance(node, ast.Slice):
            bounds = (node.lower, node.upper, node.step)
            operation, operands = slice, [bound or ast.Constant(None) for bound in bounds]
        else:
            raise NotPlainError(type(node).__name__)
        parts = all_of(operands)
        return lambda results: operation(*[part(results) for part in parts])

    def _leaf(self, node: ast.Constant | ast.Name | ast.Attribute) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in self._program or node.id not in _KINDS:
                raise NotPlainError(f"the name {node.id}")
            return _KINDS[node.id]
        if not self._of_math(node) or node.attr == "isclose":
            raise NotPlainError("an attribute")
        return _MATH[node.attr]

    def _compared(self, node: ast.Compare, parts: list[_Evaluated]) -> _Evaluated:
        first, *others = parts
        steps = []
        for kind, right, part in zip(node.ops, node.comparators, others, strict=True):
            if isinstance(kind, (ast.Is, ast.IsNot)) and not (
                isinstance(right, ast.Name)
                or (isinstance(right, ast.Constant) and right.value in (None, True, False))
            ):
                raise NotPlainError("is")
            steps.append((_COMPARED[type(kind)], part))

        def compare(results: list[Any]) -> bool:
            left = first(results)
            for holds, part in steps:
                right = part(results)
                if not holds(left, right):
                    return False
                left = right
            return True

        return compare

    def _call(self, node: ast.Call, constant: bool) -> _Evaluated:
        function = self._own(node.func)
        if function is None:
            place = None if constant else self._operation(node)
            if place is None:
                raise NotPlainError("a call")
            return lambda results: value_of(results[place])
        if any(keyword.arg is None for keyword in node.keywords):
            raise NotPlainError("a call")
        if any(k.arg == "key" and getattr(k.value, "id", "") != "str" for k in node.keywords):
            # The work of other functions is not bounded.
            raise NotPlainError("a key")
        parts = [self._evaluated(argument, constant) for argument in node.args]
        named = {str(k.arg): self._evaluated(k.value, constant) for k in node.keywords}

        def call(results: list[Any]) -> Any:
            keywords = {name: part(results) for name, part in named.items()}
            return function(*[part(results) for part in parts], **keywords)

        return call

    def _own(self, called: ast.expr) -> Callable[..., Any] | None:
        """Return the built-in or math function, evaluated here, that an expression names."""
        if isinstance(called, ast.Attribute) and self._of_math(called):
            found = _MATH[called.attr]
            return found if callable(found) else None
        if isinstance(called, ast.Name) and called.id not in self._program:
            return _FUNCTIONS.get(called.id)
        return None

    def _of_math(self, node: ast.Attribute) -> bool:
        of = node.value
        return self._math and isinstance(of, ast.Name) and of.id == "math" and node.attr in _MATH

    def _operation(self, node: ast.Call) -> int | None:
        """Record a call of the program with constant arguments; return its place, if it is one."""
        called = node.func
        if isinstance(called, ast.Name) and called.id in self._program:
            target: list[Any] = ["name", self._program[called.id]]
        elif (
            # The only class whose methods are called like functions.
            isinstance(called, ast.Attribute)
            and "Solution" in self._program
            and ast.unparse(called.value) == "Solution()"
        ):
            target = ["method", ["new", "Solution"], called.attr]
        else:
            return None
        if any(keyword.arg is None for keyword in node.keywords):
            raise NotPlainError("**")
        arguments = [self._constant(argument) for argument in node.args]
        named = [[str(k.arg), self._constant(k.value)] for k in node.keywords]
        self.operations.append(["call", target, arguments, named])
        return len(self.operations) - 1

    def _constant(self, node: ast.expr) -> Any:
        value = self._evaluated(node, constant=True)
        try:
            return encode(value([]), _not_plain)
        except NotPlainError:
            raise
        except Exception as error:
            raise NotPlainError(f"an argument: {type(error).__name__}") from None

    def failure(self, results: list[Any]) -> str:
        """Return why the test does not pass, given the results of its operations, or ''.

        Raises:
            NeedsSandboxError: The test uses objects of the program, or sums other than numbers.
        """
        return judged(lambda: all(test(results) for test in self._asserted))


def judged(holds: Callable[[], bool]) -> str:
    """Return why a comparison with the program's values fails, or ''.

    Raises:
        NeedsSandboxError: `holds` raises it.
    """
    try:
        return "" if holds() else "wrong output"
    except NeedsSandboxError:
        raise
    except NotDataError as error:
        return f"error ({error})"
    except CallFailedError as error:
        return str(error)
    except Exception as error:
        # The test would raise this in a sandbox, too: Python refuses to print very long integers,
        # for instance, and to compare very deep lists.
        return f"error ({type(error).__name__})"


def _decided(parts: list[_Evaluated], either: bool) -> _Evaluated:
    """Return `or` of the parts (`either`), or `and`."""

    def decide(results: list[Any]) -> Any:
        for part in parts:
            result = part(results)
            if bool(result) == either:
                break
        return result

    return decide


def _not_plain(value: Any) -> Any:
    raise NotPlainError(f"an argument of type {type(value).__name__}")


def _not_data(tag: str, payload: Any) -> Any:
    kind = payload[0] if tag == "o" and isinstance(payload, list) and payload else "?"
    name = kind if isinstance(kind, str) and kind.isidentifier() else "?"
    raise ObjectError(f"returns an object of class {name:.60}, which is no data")


def value_of(result: Any) -> Any:
    """Decode the value of a call of the program into new objects of Python's own types.

    Raises:
        CallFailedError: The call raised; the message is the failure of the test.
        NotDataError: The value cannot be compared.
    """
    if not isinstance(result, dict) or "v" not in result:
        raise CallFailedError(raised(result))
    try:
        return decode(result["v"], _not_data)
    except NotDataError:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError):
        raise NotDataError("returns no data that can be read") from None
