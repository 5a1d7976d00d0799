"""Tests that an empty, endless or rounded answer must not pass, and work that the grader must not
do for a program."""

from __future__ import annotations

from typing import Any

import pytest

from gem_sandbox.grading import code as grader
from gem_sandbox.grading.plain import NeedsSandboxError, NotPlainError, Plain
from gem_sandbox.grading.statements import Statement

SQUARE = "def f(x):\n    return x * x"


def reason(program: str, *tests: str, **options: Any) -> str:
    return grader.grade(program, list(tests), timeout_s=5.0, **options).reason


@pytest.mark.parametrize(
    ("test", "value"),
    [
        ("assert sum(f(3), []) == [1, 2]", [[1]] * 300_000),
        ("assert sum(f(3), ()) == (1, 2)", [[1]] * 300_000),
        (
            "assert sum(f(3)) == 1",
            [{"k": ["Fraction", f"1/{n}"]} for n in range(10**9, 10**9 + 99)],
        ),
        ("assert sum(f(3), f(4)) == [1]", [[1]] * 300_000),
        ("assert sorted(f(3), key=set) == [1]", [[1]] * 300_000),
    ],
)
def test_sums_of_what_is_no_number_are_not_made_in_the_grader(test: str, value: Any) -> None:
    with pytest.raises((NotPlainError, NeedsSandboxError)):
        plain = Plain(Statement(test))
        plain.failure([{"v": value}] * 2)


@pytest.mark.parametrize(
    ("test", "value"),
    [
        ("assert sorted(f(1) * 1000) == 9", [[1] * 1000] * 900),
        ("assert min(1000 * f(1)) == 9", [[1] * 1000] * 900),
        ("assert [f(1)] * 1000 == 9", [[1] * 1000] * 900),
        ("assert f(1) * 1000 == 9", ["x" * 10_000]),
        ("assert (f(1) * 1000) // 7 == 9", {"i": hex(1 << 200_000)}),
        ("assert f(1) // f(1) == 9", {"i": hex(1 << 200_000)}),
        ("assert f(1) % f(1) == 9", {"i": hex(1 << 200_000)}),
        ("assert round(f(1), -4000) == 9", {"i": hex(1 << 200_000)}),
    ],
)
def test_work_is_bounded_by_what_a_value_contains(test: str, value: Any) -> None:
    assert Plain(Statement(test)).failure([{"v": value}] * 2) in (
        "error (ValueError)",
        "error (OverflowError)",
    )


def test_a_sum_of_lists_or_fractions_is_judged_where_the_test_is_run() -> None:
    program = (
        "from fractions import Fraction\nf = lambda x: [[1], [2]]\ng = lambda: [Fraction(1, 2)] * 2"
    )
    assert reason(program, "assert sum(f(3), []) == [1, 2]", "assert sum(g()) == 1") == "passed"
    assert reason(program, "assert sum(f(3), []) == [1, 3]").endswith("wrong output")


@pytest.mark.parametrize("test", ["assert f(1) == 10**18 + 1", "x = 1\nassert f(x) == 10**18 + 1"])
def test_a_large_integer_is_no_rounded_float(test: str) -> None:
    assert reason("def f(x): return 1e18", test) == "test 1 of 1: wrong output"
    assert reason("def f(x): return 10.0**18", test.replace(" + 1", "")) == "passed"
    call = {"fn_name": "f", "inputs": [[1]], "outputs": [10**18 + 1]}
    assert not grader.grade("def f(x): return 1e18", call).correct
    assert not grader.grade("def f(x): return 10**18 + 1", {**call, "outputs": [1e18]}).correct


@pytest.mark.parametrize(
    "test",
    [
        "assert all(map(lambda x: f(x) == x * x, range(5)))",
        "assert all(map(f, [1, 2]))",
        "for y in map(f, [1, 2]):\n    assert y == 1 or y == 4",
        "assert not list(filter(lambda x: f(x) != x * x, range(5)))",
        "assert all(map(lambda x: next(iter([f(x)])) == x * x, range(5)))",
    ],
)
def test_a_program_does_not_end_a_loop_of_the_test(test: str) -> None:
    for raised in ("StopIteration", "type('S', (StopIteration,), {})"):
        assert reason(f"def f(x): raise {raised}", test).startswith("test 1 of 1: error (")
    assert reason(SQUARE, test) == "passed"


def test_an_iterator_of_the_program_that_is_empty_does_not_end_a_loop_of_the_test() -> None:
    test = "assert all(map(lambda x: next(f(x)) == x, range(5)))"
    assert reason("def f(x): return iter([])", test) == "test 1 of 1: error (RuntimeError)"
    assert reason("def f(x): yield x", test) == "passed"


ITERATOR = """
class N:
    def __init__(self): self.left = 1
    def __next__(self):
        if not self.left: raise StopIteration
        self.left -= 1
        return 7
def f(): raise KeyError('gone')
def g(b): return b.decode()
def h(): raise type('E', (LookupError,), {'__str__': lambda s: 'said'})(1, [2])
"""


@pytest.mark.parametrize(
    "test",
    [
        "n = N()\nassert n.__next__() == 7\n"
        "try:\n    n.__next__()\n    assert False\nexcept StopIteration:\n    pass",
        "try:\n    f()\n    assert 0\nexcept KeyError as e:\n    assert str(e) == \"'gone'\"",
        "try:\n    f()\n    assert 0\nexcept KeyError as e:\n    assert e.args == ('gone',)",
        "try:\n    g(b'\\xff')\n    assert 0\nexcept ValueError as e:\n    assert e.start == 0",
        "import pytest\nwith pytest.raises(UnicodeDecodeError):\n    g(b'\\xff')",
        "try:\n    h()\n    assert 0\nexcept LookupError as e:\n    assert str(e) == 'said'",
    ],
)
def test_exceptions_of_the_program_are_what_they_were(test: str) -> None:
    assert reason(ITERATOR, test) == "passed"
