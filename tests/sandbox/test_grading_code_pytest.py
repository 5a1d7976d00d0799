"""Tests that use pytest, and plain assertions: judged as pytest and Python judge them."""

from __future__ import annotations

import collections
import decimal
import fractions
import functools
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gem_sandbox.grading.inside
from gem.errors import DataError
from gem_sandbox import Limits, resolve
from gem_sandbox.grading.inside.encoding import encode
from gem_sandbox.grading.plain import NeedsSandboxError, NotPlainError, Plain
from gem_sandbox.grading.replay import failures
from gem_sandbox.grading.statements import Statement

LIMITS = Limits(cpu_s=60.0, memory_mb=1024)


def verdicts(program: str, tests: Sequence[str]) -> Iterator[str]:
    """Why each test does not pass; '' if it does."""
    return failures([Statement(test) for test in tests], resolve("bwrap"), program, LIMITS)


def python(program: str, test: str) -> bool:
    """Whether a test passes where program and test are one program, with the real pytest."""
    scope: dict[str, Any] = {"__name__": "program"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(program, scope)
            before = set(scope)
            exec(test, scope)
            for name in [name for name in scope if name.startswith("test") and name not in before]:
                scope[name]()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return False
    return True


RAISING = """
import decimal, fractions
class Bad(ValueError):
    def __init__(self, n):
        super().__init__(f"bad {n}", n)
        self.n = n
class Worse(Bad):
    pass
class Quiet(Exception):
    def __str__(self):
        return "said"
Other = KeyError
def f(n):
    if n == 0: return 1
    if n == 1: raise ValueError("x is 1")
    if n == 2: raise KeyError("two")
    if n == 3: raise Bad(3)
    if n == 4: raise Worse(4)
    if n == 5: raise Quiet(5, 6)
    if n == 6:
        error = ValueError("x is 6")
        getattr(error, "add_note", print)("and a note")
        raise error
    if n == 7: raise AssertionError("no")
    if n == 8: raise ValueError
    if n == 9: raise ZeroDivisionError("division by 0.5 (zero)")
    if n == 10: return b"\\xff".decode()
    if n == 11: return decimal.Decimal("sNaN")
    if n == 12: raise LookupError(decimal.Decimal("sNaN"))
"""
RAISES = [
    "with pytest.raises(ValueError): f({n})",
    "with pytest.raises(ValueError, match='x'): f({n})",
    "with pytest.raises(ValueError, match='^x is 6$'): f({n})",
    "with pytest.raises(ValueError, match='note'): f({n})",
    "with pytest.raises(ValueError, match=''): f({n})",
    "with pytest.raises(ValueError, match=re.compile('X IS', re.I)): f({n})",
    "with pytest.raises(Exception, match=re.escape('0.5 (zero)')): f({n})",
    "with pytest.raises((KeyError, Bad)): f({n})",
    "with pytest.raises((KeyError, Nobody)): f({n})",
    "with pytest.raises((KeyError, ValueError), match='two|x'): f({n})",
    "with pytest.raises(Worse): f({n})",
    "with pytest.raises(Quiet, match='said'): f({n})",
    "with pytest.raises(Other): f({n})",
    "with pytest.raises(Exception): f({n})",
    "with pytest.raises(match='x|two'): f({n})",
    "with pytest.raises(ValueError, check=lambda e: e.args[1:]): f({n})",
    "with pytest.raises(check=lambda e: isinstance(e, Bad)): f({n})",
    "with pytest.raises(expected_exception=LookupError, match=None): f({n})",
    "with raises(ValueError, match='x'): f({n})",
    "with r(UnicodeDecodeError) as info: f({n})\nassert info.value.start == 0",
    "with pytest.raises(ValueError) as info: f({n})\nassert info.type is ValueError",
    "with pytest.raises(ValueError) as info: f({n})\nassert info.typename == 'Worse'",
    "with pytest.raises(Exception) as info: f({n})\nassert str(info.value) == 'said'",
    "with pytest.raises(Exception) as info: f({n})\nassert 'x is' in str(info)",
    "with pytest.raises(Exception) as info: f({n})\nassert info.match('x|bad')",
    "with pytest.raises(Exception) as info: f({n})\nassert info.errisinstance((KeyError, Bad))",
    "with pytest.raises(ValueError) as info:\n    f({n})\n    assert info.value",
    "with pytest.raises(Bad) as info: f({n})\nassert info.value.n == 3",
    "with pytest.raises(Exception) as info: f({n})\nassert info.value.args == (5, 6)",
    "with pytest.raises(ValueError):\n    f({n})\n    f(1)",
    "with pytest.raises(AssertionError):\n    assert f({n}) == 2",
    "with pytest.raises(KeyError):\n    with pytest.raises(ValueError):\n        f({n})",
    "pytest.raises(ValueError, f, {n})",
    "pytest.raises(ValueError, f, n={n})",
    "assert pytest.raises(ValueError, f, {n}).match('x')",
    "info = raises((KeyError, ValueError), lambda: f({n}))\nassert isinstance(info.value, Bad)",
    "try:\n    f({n})\nexcept Bad as e:\n    assert e.n == 4\nelse:\n    assert False",
    "try:\n    f({n})\nexcept (KeyError, Bad):\n    pass\nelse:\n    assert False",
    "try:\n    f({n})\nexcept ((KeyError,), Nobody):\n    pass",
    "try:\n    f({n})\nexcept Exception as e:\n    assert type(e) is ValueError",
    "try:\n    f({n})\n    pytest.fail()\nexcept Exception as e:\n    assert 'Bad' in str(type(e))",
    "try:\n    f({n})\n    ok = False\nexcept:\n    ok = True\nassert ok",
    "try:\n    f({n})\n    pytest.fail()\nexcept pytest.fail.Exception:\n    pass",
    "x = 0\ntry:\n    with raises(ValueError): f({n})\nexcept Exception:\n    x = 1\nassert x",
    "def test_it():\n    with pytest.raises(ValueError, match='x'):\n        f({n})",
    "for n in ({n}, 1):\n    with pytest.raises(ValueError): f(n)",
]  # fmt: skip


def test_exceptions_are_judged_as_pytest_judges_them() -> None:
    head = "import pytest, re\nfrom pytest import raises, raises as r\n"
    rows = [[head + test.replace("{n}", str(n)) for n in range(13)] for test in RAISES]
    right = {test: python(RAISING, test) for row in rows for test in row}
    # Every fourth pair of a test and an exception, and for each test the first one that passes.
    firsts = [next(filter(right.get, row)) for row in rows if any(map(right.get, row))]
    assert len(firsts) == len(RAISES) - 2
    tests = sorted({*list(right)[::4], *firsts})
    expected = [right[test] for test in tests]
    assert 30 < sum(expected) < len(tests) - 30
    found = list(verdicts(RAISING, tests))
    wrong = [
        (test, why) for test, why, right in zip(tests, found, expected, strict=True)
        if (why == "") is not right
    ]  # fmt: skip
    assert wrong == []


VALUES = [
    *("0.3", "0.1 + 0.2", "0.3000002", "0.31", "3", "True", "1", "1.0", "None", "'a'", "b'a'"),
    *("float('nan')", "float('inf')", "-float('inf')", "1e-13", "0", "1j", "1j + 1e-9", "10**400"),
    *("[0.1 + 0.2, 1]", "(0.3, 1)", "[0.3]", "[0.3, None]", "[[0.3], 1]", "[]", "{}", "'ab'"),
    *("{'a': 0.1 + 0.2}", "{'b': 0.3}", "{'a': 0.3, 'b': 1}", "{0.3}", "range(2)", "[0, 1]"),
    *("decimal.Decimal('0.3')", "decimal.Decimal('0.3000001')", "decimal.Decimal('NaN')"),
    *("fractions.Fraction(3, 10)", "fractions.Fraction(1, 3)", "[float('nan')]"),
    *("np.array([0.1 + 0.2, 1.0])", "np.array([[0.3]])", "np.float64(0.1) * 3"),
    *("np.array(0.3)", "np.array([])", "np.array([0.3, 0.3])"),
]
TOLERANCES = [
    *("", ", rel=1e-3", ", abs=0.02", ", rel=0.5, abs=0.01", ", nan_ok=True", ", 0.1, 0.001"),
    *(", rel=-1", ", abs=-1", ", rel=float('nan')", ", abs=1", ", rel=None, abs=None", ", rel=0"),
    ", abs=decimal.Decimal('0.01')",
]
NAMES = {"decimal": decimal, "fractions": fractions, "np": numpy}


@functools.cache
def checker() -> dict[str, Any]:
    """The modules of the sandbox that runs tests, loaded as it loads them."""
    scope: dict[str, Any] = {"__name__": "gem"}
    folder = Path(gem_sandbox.grading.inside.__file__).parent
    for name in ("encoding", "batch", "stand_in", "checker"):
        exec((folder / f"{name}.py").read_text("utf-8"), scope)
    return scope


def approx(*arguments: Any, **named: Any) -> Any:
    """The sandbox's `pytest.approx`, in a round in which the program's values are known."""
    inside = checker()
    return inside["stand_in"](inside["_Known"](answered=[None])).approx(*arguments, **named)


def holds(comparison: str, approx: Any, **names: Any) -> bool:
    """Whether a comparison is true; one that raises is not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return bool(eval(comparison, {**NAMES, **names, "approx": approx}))
        except Exception:
            return False


COMPARED = ["value == approx({})", "approx({}) == value", "value != approx({})"]


def test_numbers_are_close_if_they_are_for_pytest() -> None:
    held = 0
    pairs = itertools.product(VALUES, VALUES, COMPARED)
    for number, (value, wanted, form) in enumerate(pairs):
        comparison = form.format(wanted + TOLERANCES[number * 7 % len(TOLERANCES)])
        real = eval(value, NAMES)
        # As it reaches a test from the program's process.
        inside = checker()
        data = inside["decode"](inside["encode"](real, None), None, arrays=True)
        right = holds(comparison, pytest.approx, value=real)
        assert holds(comparison, approx, value=data) is right, (value, comparison)
        held += right
    assert held > 1000


NUMBERS = st.one_of(
    st.floats(width=16), st.integers(-3, 3), st.decimals(-2, 2, places=2), st.fractions(-2, 2),
    st.complex_numbers(max_magnitude=2), st.booleans(), st.sampled_from(["a", None]),
)  # fmt: skip
COLLECTIONS = st.one_of(
    NUMBERS, st.lists(NUMBERS, max_size=3), st.dictionaries(st.integers(0, 1), NUMBERS)
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "rel": st.one_of(st.none(), st.floats(-0.1, 1)),
        "abs": st.one_of(st.none(), st.floats(-0.1, 1), st.just(decimal.Decimal("0.1"))),
        "nan_ok": st.booleans(),
    },
)


@given(COLLECTIONS, COLLECTIONS, st.booleans(), st.floats(0.99, 1.01), OPTIONS)
@settings(max_examples=250)
def test_any_two_values_are_close_if_they_are_for_pytest(
    value: Any, wanted: Any, near: bool, factor: float, options: dict[str, Any]
) -> None:
    if near:
        # Two unrelated values are hardly ever close.
        value = _scaled(wanted, factor)
    for comparison in COMPARED:
        text = comparison.format("wanted, **options")
        names = {"value": value, "wanted": wanted, "options": options}
        assert holds(text, approx, **names) is holds(text, pytest.approx, **names)


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_scaled(item, factor) for item in value]
    if isinstance(value, dict):
        return {key: _scaled(item, factor) for key, item in value.items()}
    return value * factor if type(value) in (int, float, complex) else value


def test_approx_in_a_test_is_approx() -> None:
    program = "import numpy as np\ndef f(x): return x / 10\ndef g(): return [0.1 + 0.2, 3]\n"
    program += "def h(): return np.array([0.1 + 0.2, 3])"
    right = [
        "import pytest\nassert f(3) == pytest.approx(0.3)",
        "from pytest import approx\nassert approx(0.3) == f(3) and f(4) != approx(0.3)",
        "assert g() == pytest.approx([0.3, 3])",
        "import pytest\nassert pytest.approx(f(3)) == 0.3",
        "import pytest\nassert [f(3), 3] == pytest.approx([f(3), 3])",
        "import pytest\nassert {'a': f(3)} == pytest.approx({'a': 0.29}, abs=0.1)",
        "import numpy as np, pytest\nassert h() == pytest.approx(np.array([0.3, 3]))",
        "import pytest\nx = pytest.approx(0.3)\nfor n in (3, 3.0):\n    assert f(n) == x",
    ]
    assert list(verdicts(program, right)) == [""] * len(right)
    wrong = list(verdicts(program.replace("/ 10", "/ 11").replace("0.2", "0.3"), right))
    assert set(wrong) <= {"wrong output", ""} and wrong.count("") == 2


@pytest.mark.parametrize("expected", ["[[0.3], 1]", "{0.3}", "'a', rel=0.1", "1, abs='x'"])
def test_what_approx_does_not_take_is_an_error_of_the_data(expected: str) -> None:
    names = "from pytest import approx\n"
    assert not python(names, f"approx({expected})")
    with pytest.raises(DataError, match="no program can pass"):
        list(verdicts("def f(): return 0.3", [f"{names}assert f() == approx({expected})"]))


ATOMS = ["f(0)", "f(1)", "f(2)", "3", "'a'", "[1, 2]", "(1,)", "{1, 2}", "{'a': 1}", "2.5", "None"]
FORMS = [
    *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} // {1}", "{0} % {1}", "{0} ** {1}"),
    *("'%.1f' % {0}", "'%s' % {0}", "'%s' % ({0},)", "b'%d' % {0}", "{0} & {1}", "{0} | {1}"),
    *("{0}[0]", "{0}[{1}]", "{0}[1:]", "-{0}", "not {0}", "~{0}", "({0}, {1})", "[{0}]"),
    *("{0} if {1} else 3", "{0} and {1}", "{0} or {1}", "{{{0}}}", "{{{0}: {1}}}", "f'{{{0}}}'"),
    *("len({0})", "abs({0})", "sum({0})", "sum({0}, {1})", "sum({0}, start={1})", "sorted({0})"),
    *("sorted({0}, reverse=True)", "list({0})", "set({0})", "tuple({0})", "max({0})", "min({0})"),
    *("max({0}, default=3)", "round({0}, 1)", "round({0}, ndigits=1)", "round(number={0})"),
    *("int({0})", "int({0}, 16)", "int('11', {0})", "float({0})", "str({0})", "str({0}, 'ascii')"),
    *("bool({0})", "frozenset({0})", "any({0})", "all({0})", "range({0})", "isinstance({0}, int)"),
    *("type({0}) == int", "{0} in {1}", "{0} not in {1}", "{0} is None", "{0} < {1}", "{0} >= {1}"),
    *("math.isclose({0}, {1})", "{0} == {1}", "{0} != {1}", "sorted({0}, key=str)", "bytes({0})"),
]
RETURNED = [
    *("3", "-2", "True", "2.5", "'a'", "'12'", "b'3'", "None", "[1, 2]", "[]", "(1, 2)", "{1: 2}"),
    *("{'a': 3}", "{1, 2}", "1j", "range(3)", "Fraction(1, 2)", "Decimal('2.5')", "deque([1, 2])"),
    *(
        "frozenset([1])",
        "'ff'",
        "[[1], [2]]",
        "(i for i in (1, 2))",
        "'%s'",
        "2**70",
    ),
]


@given(st.data())
@settings(max_examples=150)
def test_a_plain_test_is_judged_as_python_judges_it(data: st.DataObject) -> None:
    returned = [data.draw(st.sampled_from(RETURNED)) for _ in range(3)]

    def expression(depth: int) -> str:
        if depth == 0:
            return str(data.draw(st.sampled_from(ATOMS)))
        parts = [expression(depth - 1), expression(0)]
        return "(" + str(data.draw(st.sampled_from(FORMS))).format(*parts) + ")"

    tested = expression(data.draw(st.integers(1, 2)))
    assume("f(" in tested)
    # The text of an iterator, and `is` of it, depend on where it lies in memory.
    returned = [each if "str(" not in tested or "for" not in each else "[]" for each in returned]
    scope = {"Fraction": fractions.Fraction, "Decimal": decimal.Decimal, "math": math}
    scope.update(deque=collections.deque)

    def f(place: int) -> Any:
        return eval(returned[place], scope)

    try:
        truth = eval(tested, {**scope, "f": f})
        written = repr(truth)
        test = f"assert {tested} == {written}" if eval(written, {}) == truth else ""
    except NameError:
        # A name that the test does not import would be the program's.
        test = ""
    except Exception:
        test = f"assert {tested} == 3"
        assert not python("", test)
    for source in filter(None, (test, f"assert {tested}", f"assert not {tested}")):
        try:
            plain = Plain(Statement(source))
            values = [{"v": encode(f(call[2][0]), None)} for call in plain.operations]
            failure = plain.failure(values)
        except (NotPlainError, NeedsSandboxError, DataError):
            continue
        try:
            exec(source, {**scope, "f": f})
            right = True
        except Exception:
            right = False
        assert (failure == "") is right, (source, returned, failure)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.floats(), st.sampled_from("vxacd")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["v", "a", "c", "h", "is", "l", "m", "t", "k"]), inner),
    ),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=300)
def test_no_forged_answer_raises_what_a_test_could_take_for_an_exception_of_the_program(
    forged: Any,
) -> None:
    inside = checker()
    operation = ["call", ["name", "f"], [[1], {"d": []}], []]
    known = inside["_Known"]([[operation, forged]])
    argument = [1]
    try:
        inside["_Name"](known, ["name", "f"], "f")(argument, {})
    except inside["_SIGNALS"]:
        return
    assert isinstance(forged, dict)
    assert "v" in forged


@pytest.mark.parametrize(
    "forged",
    [
        {"x": ["ValueError"], "m": 3},
        {"x": "ValueError", "m": ""},
        {"x": [], "m": ""},
        {"x": ["ValueError"], "m": "", "d": {"d": [["__class__", 3], ["args", 4]]}},
        {"x": ["E\0", "ValueError"], "m": ""},
        {"x": ["SystemExit", "BaseException"], "m": ""},
        {"x": ["ExceptionGroup", "Exception"], "m": "", "e": ["", []]},
        {"x": ["ValueError"], "m": "", "p": 3},
        {"x": ["ValueError"], "m": "", "a": [[0, 1], [5, 1]]},
    ],
)
def test_a_forged_exception_is_one_that_a_program_could_raise_or_an_error(forged: Any) -> None:
    inside = checker()
    known = inside["_Known"]([[["call", ["name", "f"], [], []], forged]])
    with pytest.raises((Exception, *inside["_SIGNALS"])) as info:
        inside["_Name"](known, ["name", "f"], "f")()
    allowed = (ValueError, inside["ProgramError"], *inside["_SIGNALS"])
    assert isinstance(info.value, allowed)
    assert not isinstance(info.value, UnicodeError)
