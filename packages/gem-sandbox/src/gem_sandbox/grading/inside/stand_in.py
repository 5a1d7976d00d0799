"""What tests may use of pytest, with pytest's own meaning; anything else of it is refused.

Tests run where the program is not, so its classes are names here (`_Name` in `checker`): whether an
exception of the program is an instance of one is what the program's process said of it.
"""

from __future__ import annotations

import re
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gem_sandbox.grading.inside.checker import (
        _SIGNALS,
        _Known,
        _Name,
        _need,
        _Object,
        _Pending,
        _Refused,
        _Unusable,
    )

OFFERED = frozenset(["approx", "fail", "raises"])
"""Names of pytest that tests may use."""
_ABS, _REL = 1e-12, 1e-6


class Failed(BaseException):
    """A test failed by its own word, or because nothing was raised.

    As in pytest, `except Exception` does not catch it.
    """


def stand_in(known: _Known) -> types.ModuleType:
    """Return the module that `import pytest` gives to a test."""

    def missing(name: str) -> Any:
        raise _Refused(f"it uses pytest.{name}")

    def raises(
        expected_exception: Any = None, func: Any = None, *arguments: Any, **named: Any
    ) -> Any:
        if func is None and not arguments:
            unknown = sorted(set(named) - {"match", "check"})
            if unknown:
                raise known.misuse(TypeError(f"pytest.raises has no argument {unknown[0]!r}"))
            return _Raises(known, expected_exception, **named)
        if not callable(func):
            raise known.misuse(TypeError("the second argument of pytest.raises is not a function"))
        with _Raises(known, expected_exception) as info:
            func(*arguments, **named)
        return info

    def fail(reason: str = "", pytrace: bool = True) -> None:
        raise Failed(reason)

    def approx(expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> Any:
        return _approx(known, expected, rel, abs, nan_ok)

    raises.Exception = fail.Exception = Failed  # type: ignore[attr-defined]
    module = types.ModuleType("pytest")
    vars(module).update(__getattr__=missing, raises=raises, fail=fail, approx=approx)
    return module


class _Raises:
    """`pytest.raises`."""

    def __init__(self, known: _Known, expected: Any, match: Any = None, check: Any = None) -> None:
        self._known, self._check = known, check
        self._match = match
        if isinstance(match, str):
            try:
                self._match = re.compile(match)
            except re.error as error:
                raise known.misuse(Failed(f"match is not a regular expression: {error}")) from None
        kinds = expected if isinstance(expected, tuple) else (expected,)
        self._kinds = () if expected is None else kinds
        if not self._kinds and match is None and check is None:
            raise known.misuse(ValueError("pytest.raises needs an exception, match or check"))
        for kind in self._kinds:
            if isinstance(kind, _Pending):
                _need()
            if isinstance(kind, _Object):
                raise _Refused(f"it expects an exception that is {kind._what}")
            if isinstance(kind, _Name):
                known.require(kind)
            elif not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise known.misuse(TypeError(f"pytest.raises of {kind!r:.60}, no exception class"))

    def __enter__(self) -> _Info:
        self._info = _Info(self._known)
        return self._info

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, _SIGNALS):
            return False
        if self._known.pending:
            # Nothing is decided yet: go on to find more calls.
            self._info._fill(None, unknown=True)
            return error is None or isinstance(error, Exception)
        if error is None:
            raise Failed("nothing was raised")
        if self._kinds and not self._known.is_of(error, self._kinds):
            return False
        if self._match is not None and re.search(self._match, _text(error)) is None:
            raise AssertionError("the message does not match") from None
        if self._check is not None and not self._check(error):
            raise AssertionError("check does not hold") from None
        self._info._fill(error)
        return True


def _text(error: BaseException) -> str:
    """Return an exception's message and notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


class _Info:
    """What a `with pytest.raises(...)` gives, and `pytest.raises` of a function returns."""

    def __init__(self, known: _Known) -> None:
        self._known = known
        self._fill(None)

    def _fill(self, error: BaseException | None, unknown: bool = False) -> None:
        self._error, self._unknown = error, unknown

    @property
    def value(self) -> BaseException:
        """The exception."""
        if self._unknown:
            _need()
        if self._error is None:
            raise AssertionError("the exception is known after the with block only")
        return self._error

    @property
    def type(self) -> type[BaseException]:
        """Its class."""
        return type(self.value)

    @property
    def typename(self) -> str:
        """The name of its class."""
        return type(self.value).__name__

    def match(self, regexp: Any) -> bool:
        """Return True; raise AssertionError if the message does not match."""
        if re.search(regexp, _text(self.value)) is None:
            raise AssertionError("the message does not match")
        return True

    def errisinstance(self, exc: Any) -> bool:
        """Return whether the exception is an instance of a class, or of one of several."""
        return self._known.is_of(self.value, exc if isinstance(exc, tuple) else (exc,))

    def __repr__(self) -> str:
        if self._error is None and not self._unknown:
            return "<ExceptionInfo for raises contextmanager>"
        return f"<ExceptionInfo {self.value!r} tblen=1>"

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        raise _Refused(f"it uses {name!r} of the exception info of pytest.raises")


def _approx(known: _Known, expected: Any, rel: Any, absolute: Any, nan_ok: Any) -> Any:
    """Return what `pytest.approx` returns; a `_Pending` for an unknown value."""
    import collections.abc
    import datetime

    if any(isinstance(value, _Pending) for value in (expected, rel, absolute)):
        return _Pending()
    if isinstance(expected, _Name):
        raise _Refused(f"it compares {expected._what} with pytest.approx")
    if isinstance(expected, (datetime.datetime, datetime.timedelta)):
        raise _Refused("it uses pytest.approx of a time")
    if isinstance(expected, collections.abc.Mapping):
        made: _Approx = _Mapping(expected, rel, absolute, nan_ok)
        items = list(expected.values())
    elif _is_array(expected):
        made, items = _Array(expected, rel, absolute, nan_ok), []
    elif _indexed(expected):
        made = _Sequence(expected, rel, absolute, nan_ok)
        items = list(expected)
    elif isinstance(expected, collections.abc.Collection) and not _leaf(expected):
        raise known.misuse(TypeError("pytest.approx takes ordered collections only"))
    else:
        try:
            return _Scalar(expected, rel, absolute, nan_ok)
        except TypeError as error:
            raise known.misuse(error) from None
    for item in items:
        if isinstance(item, _Name):
            raise _Refused(f"it compares {item._what} with pytest.approx")
        if (
            not isinstance(item, _Pending)
            and isinstance(item, collections.abc.Collection)
            and (not _leaf(item))
        ):
            raise known.misuse(TypeError("pytest.approx takes no nested collections"))
    return made


def _leaf(value: Any) -> bool:
    return isinstance(value, (str, bytes, bytearray))


def _indexed(value: Any) -> bool:
    if isinstance(value, (str, bytes, _Name)):
        return False
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _numpy() -> Any:
    """Return numpy if the test has imported it."""
    return sys.modules.get("numpy")


def _is_array(value: Any) -> bool:
    numpy = _numpy()
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_bool(value: Any) -> bool:
    numpy = _numpy()
    return isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_))


def _is_number(value: Any) -> bool:
    import decimal
    import numbers

    return isinstance(value, (numbers.Complex, decimal.Decimal))


def _is_nan(value: Any) -> bool:
    import decimal
    import math

    return value.is_nan() if isinstance(value, decimal.Decimal) else math.isnan(value)


def _is_infinite(value: Any) -> bool:
    import decimal
    import math

    return value.is_infinite() if isinstance(value, decimal.Decimal) else math.isinf(value)


class _Approx:
    """An expected value with a tolerance."""

    # NumPy leaves comparisons to this class.
    __array_ufunc__ = None
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, rel: Any, absolute: Any, nan_ok: Any) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, absolute, nan_ok

    def __eq__(self, actual: Any) -> Any:
        if isinstance(actual, _Pending):
            return _Pending()
        if isinstance(actual, _Name):
            raise _Refused(f"it compares {actual._what} with pytest.approx")
        return self._equals(actual)

    def _equals(self, actual: Any) -> Any:
        raise NotImplementedError

    def _pair(self, actual: Any, expected: Any) -> Any:
        return _Scalar(expected, self.rel, self.abs, self.nan_ok) == actual

    def __bool__(self) -> bool:
        raise _Unusable("it asks whether a pytest.approx is true")

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        raise _Refused(f"it uses {name!r} of pytest.approx")


def _no_operation(self: Any, *_: Any) -> Any:
    raise _Unusable("it uses pytest.approx in an operation other than == and !=")


for _operation in ("lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "neg"):
    setattr(_Approx, f"__{_operation}__", _no_operation)


class _Mapping(_Approx):
    def _equals(self, actual: Any) -> Any:
        if not hasattr(actual, "keys") or set(actual.keys()) != set(self.expected.keys()):
            return False
        return all(self._pair(actual[key], self.expected[key]) for key in self.expected)


class _Sequence(_Approx):
    def _equals(self, actual: Any) -> Any:
        try:
            if len(actual) != len(self.expected):
                return False
        except TypeError:
            return False
        return all(map(self._pair, actual, self.expected))


class _Array(_Approx):
    def _equals(self, actual: Any) -> Any:
        numpy = _numpy()
        expected = self.expected.ravel().tolist()
        if numpy.isscalar(actual):
            return all(self._pair(actual, item) for item in expected)
        actual = numpy.asarray(actual)
        if actual.shape != self.expected.shape:
            return False
        return all(map(self._pair, actual.ravel().tolist(), expected))


class _Scalar(_Approx):
    def __init__(self, expected: Any, rel: Any, absolute: Any, nan_ok: Any) -> None:
        import decimal

        for tolerance in (rel, absolute):
            if tolerance is not None and not isinstance(tolerance, (int, float, decimal.Decimal)):
                raise TypeError(f"a tolerance is a number, not {type(tolerance).__name__}")
        if rel is not None and not hasattr(expected, "__abs__"):
            raise TypeError(f"no relative tolerance for {type(expected).__name__}")
        if isinstance(expected, decimal.Decimal):
            rel, absolute = (
                decimal.Decimal.from_float(value) if isinstance(value, (int, float)) else value
                for value in (rel, absolute)
            )
        super().__init__(expected, rel, absolute, nan_ok)

    @property
    def tolerance(self) -> Any:
        """The larger of both tolerances."""
        import decimal

        exact: Callable[[float], Any] = (
            (lambda value: decimal.Decimal(str(value)))
            if isinstance(self.expected, decimal.Decimal)
            else float
        )
        absolute = exact(_ABS) if self.abs is None else self.abs
        if _is_nan(absolute) or absolute < 0:
            raise ValueError(f"the absolute tolerance cannot be {absolute}")
        if self.rel is None and self.abs is not None:
            return absolute
        relative = (exact(_REL) if self.rel is None else self.rel) * abs(self.expected)
        if _is_nan(relative) or relative < 0:
            raise ValueError(f"the relative tolerance cannot be {relative}")
        return max(relative, absolute)

    def _equals(self, actual: Any) -> Any:
        expected = self.expected
        if _is_array(actual):
            return all(self == item for item in actual.flat)
        if _is_bool(expected) and not _is_bool(actual):
            return False
        equal = actual == expected
        if equal:
            return True
        numbers = _is_number(expected) and _is_number(actual)
        if _is_bool(expected) or not numbers:
            return False
        if _is_nan(abs(expected)):
            return bool(self.nan_ok) and _is_nan(abs(actual))
        if _is_infinite(abs(expected)):
            return False
        return abs(expected - actual) <= self.tolerance
