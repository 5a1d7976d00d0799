"""Evaluates plain tests in the grader's own process.

A plain test, such as `assert sorted(f(3)) == [1, 2]`, consists of operations that are known to be
harmless. `Plain` interprets its syntax tree and never executes its code. The program's process
gets the calls only, never the expected values. `gem.grading.replay` runs all other tests in a
sandbox.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

from gem.grading.inside.encoding import check_hashes, decode, encode, same
from gem.grading.programs import raised
from gem.grading.statements import Statement

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


def _number(value: Any) -> Any:
    if not isinstance(value, (int, float, complex)):
        raise TypeError(f"not a number: {type(value).__name__}")
    return value


def _times(left: Any, right: Any) -> Any:
    for items, times in ((left, right), (right, left)):
        if isinstance(items, (str, bytes, list, tuple)):
            if not isinstance(times, int):
                raise TypeError("a sequence is repeated by an integer")
            if times > 0 and _contained(items, _MAX_LENGTH // times) * times > _MAX_LENGTH:
                raise ValueError("a sequence is too long")
            return items * times
    _bounded(left, right)
    return _number(left) * _number(right)


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
    return _number(base) ** _number(exponent)


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, (str, bytes, list, tuple)):
        return left + right
    return _number(left) + _number(right)


def _numbers(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        _bounded(left, right)
        return operation(_number(left), _number(right))

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


def _text(value: Any = "") -> str:
    _bounded(value)
    return str(value)


def _parsed(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def parse(value: Any = 0) -> Any:
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


def _rounded(value: Any, digits: Any = None) -> Any:
    _bounded(value)
    if isinstance(digits, int) and abs(digits) > _MAX_DIGITS:
        raise ValueError("too many digits")
    return round(value, digits)


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
_PARTS = (
    *(ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Slice),
    *(ast.BoolOp, ast.UnaryOp, ast.Subscript),
)


class Plain:
    """A test whose assertions call the program with constant arguments only."""

    def __init__(self, statement: Statement) -> None:
        """Collect the calls, in the order in which they are made.

        Raises:
            NotPlainError: The test is not plain; it may still be valid.
        """
        self.operations: list[Any] = []
        """Operations for the program; see `inside/candidate.py`."""
        self._asserted: list[ast.expr] = []
        self._calls: dict[int, int] = {}
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
                self._scan(node.test)
                self._asserted.append(node.test)
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

    def _scan(self, node: ast.expr, constant: bool = False) -> None:
        """Check that an expression can be evaluated; record its calls of the program."""
        if isinstance(node, ast.Call):
            if not self._own(node) and not constant and self._operation(node):
                return
            if not self._own(node):
                raise NotPlainError("a call")
            if any(keyword.arg is None for keyword in node.keywords):
                raise NotPlainError("a call")
            if any(k.arg == "key" and getattr(k.value, "id", "") != "str" for k in node.keywords):
                # The work of other functions is not bounded.
                raise NotPlainError("a key")
            for child in (*node.args, *(k.value for k in node.keywords)):
                self._scan(child, constant)
            return
        if isinstance(node, ast.Name):
            if node.id in self._program or node.id not in _KINDS:
                raise NotPlainError(f"the name {node.id}")
            return
        if isinstance(node, ast.Attribute):
            if not self._of_math(node) or node.attr == "isclose":
                raise NotPlainError("an attribute")
            return
        if isinstance(node, ast.Compare):
            for kind, right in zip(node.ops, node.comparators, strict=True):
                if isinstance(kind, (ast.Is, ast.IsNot)) and not (
                    isinstance(right, ast.Name)
                    or (isinstance(right, ast.Constant) and right.value in (None, True, False))
                ):
                    raise NotPlainError("is")
        elif isinstance(node, ast.BinOp):
            if type(node.op) not in _BINARY:
                raise NotPlainError("an operator")
        elif not isinstance(node, _PARTS) or (isinstance(node, ast.Dict) and None in node.keys):
            raise NotPlainError(type(node).__name__)
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                self._scan(part, constant)

    def _own(self, node: ast.Call) -> bool:
        """Return whether a call is to a built-in or math function that `Plain` evaluates."""
        if isinstance(node.func, ast.Attribute):
            return self._of_math(node.func) and callable(_MATH[node.func.attr])
        return (
            isinstance(node.func, ast.Name)
            and node.func.id in _FUNCTIONS
            and node.func.id not in self._program
        )

    def _of_math(self, node: ast.Attribute) -> bool:
        of = node.value
        return self._math and isinstance(of, ast.Name) and of.id == "math" and node.attr in _MATH

    def _operation(self, node: ast.Call) -> bool:
        """Record a call of the program with constant arguments; return whether it is one."""
        called = node.func
        if isinstance(called, ast.Name) and called.id in self._program:
            target: list[Any] = ["name", self._program[called.id]]
        elif (
            # `Solution().name(...)`: the only class whose methods are called like functions.
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Call)
            and isinstance(called.value.func, ast.Name)
            and called.value.func.id == "Solution"
            and "Solution" in self._program
            and not called.value.args
            and not called.value.keywords
        ):
            target = ["method", ["new", "Solution"], called.attr]
        else:
            return False
        if any(keyword.arg is None for keyword in node.keywords):
            raise NotPlainError("**")
        arguments = [self._constant(argument) for argument in node.args]
        named = [[str(k.arg), self._constant(k.value)] for k in node.keywords]
        self._calls[id(node)] = len(self.operations)
        self.operations.append(["call", target, arguments, named])
        return True

    def _constant(self, node: ast.expr) -> Any:
        self._scan(node, constant=True)
        try:
            return encode(self._value(node, []), _not_plain)
        except NotPlainError:
            raise
        except Exception as error:
            raise NotPlainError(f"an argument: {type(error).__name__}") from None

    def failure(self, results: list[Any]) -> str:
        """Return why the test does not pass, given the results of its operations, or ''.

        Raises:
            NeedsSandboxError: The test uses objects of the program, or sums other than numbers.
        """
        try:
            for test in self._asserted:
                if not self._value(test, results):
                    return "wrong output"
        except NeedsSandboxError:
            raise
        except NotDataError as error:
            return f"error ({error})"
        except CallFailedError as error:
            return str(error)
        except Exception as error:
            # The test would raise this in a sandbox, too.
            return f"error ({type(error).__name__})"
        return ""

    def _value(self, node: ast.expr | None, results: list[Any]) -> Any:
        def value(part: ast.expr | None) -> Any:
            return self._value(part, results)

        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Call):
            if id(node) in self._calls:
                return value_of(results[self._calls[id(node)]])
            function = (
                _MATH[node.func.attr]
                if isinstance(node.func, ast.Attribute)
                else _FUNCTIONS[getattr(node.func, "id", "")]
            )
            named = {str(keyword.arg): value(keyword.value) for keyword in node.keywords}
            return function(*map(value, node.args), **named)  # type: ignore[operator]
        if isinstance(node, ast.Name):
            return _KINDS[node.id]
        if isinstance(node, ast.Attribute):
            return _MATH[node.attr]
        if isinstance(node, ast.Compare):
            left = value(node.left)
            for kind, part in zip(node.ops, node.comparators, strict=True):
                right = value(part)
                if not _COMPARED[type(kind)](left, right):
                    return False
                left = right
            return True
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                result = value(part)
                if bool(result) == isinstance(node.op, ast.Or):
                    break
            return result
        if isinstance(node, ast.UnaryOp):
            return _UNARY[type(node.op)](value(node.operand))
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Subscript):
            return value(node.value)[value(node.slice)]
        if isinstance(node, ast.Slice):
            return slice(*(value(p) if p else None for p in (node.lower, node.upper, node.step)))
        if isinstance(node, ast.Dict):
            return dict(zip(map(value, node.keys), map(value, node.values), strict=True))
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            parts = [value(part) for part in node.elts]
            return {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)](parts)
        raise NotPlainError(type(node).__name__)


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
