"""Right programs that look unusual, and every form of test that a program can be asked by."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gem.errors import DataError
from gem.grading import Verdict
from gem_sandbox import Limits, Result, Runner, resolve
from gem_sandbox.grading import code as grader
from gem_sandbox.grading.plain import NotPlainError, Plain
from gem_sandbox.grading.replay import MAX_ROUNDS
from gem_sandbox.grading.statements import Statement

SQUARE = "def f(x):\n    return x * x"
STACK = """
class Stack:
    def __init__(self, *items):
        self.items = list(items)
    def push(self, item):
        self.items.append(item)
        return self
    def pop(self):
        return self.items.pop()
    def is_empty(self):
        return not self.items
    def __len__(self):
        return len(self.items)
    def __contains__(self, item):
        return item in self.items
    def __iter__(self):
        return iter(self.items)
    def __str__(self):
        return f"Stack{self.items}"
    def __getitem__(self, key):
        return self.items[key]
    def __eq__(self, other):
        return True
"""


class Counter(Runner):
    """Counts the runs of a sandbox."""

    def __init__(self) -> None:
        self.inner = resolve("bwrap")
        self.runs = 0

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        self.runs += 1
        return self.inner.run(code, stdin, limits)


def grade(program: str, tests: Any, **options: Any) -> Verdict:
    return grader.grade(program, tests, **options)


def called(program: str, *pairs: tuple[list[Any], Any], name: str = "f") -> Verdict:
    inputs, outputs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return grade(program, {"fn_name": name, "inputs": inputs, "outputs": outputs})


def printed(program: str, given: str, expected: str) -> Verdict:
    return grade(program, {"inputs": [given], "outputs": [expected]})


@pytest.mark.parametrize(
    "end",
    [
        'if __name__ == "__main__":\n    print(f(int(input())))',
        'if __name__ == "__main__":\n    raise ValueError',
        "import sys\nsys.exit()",
        "import sys\nsys.exit(1)",
        "raise SystemExit",
        'print("=" * 2_000_000)',
        'import sys\nprint("=" * 2_000_000, file=sys.stderr)',
        "import sys\nsys.stdout.close()",
        "import os\nos.close(1)\nos.close(0)",
        "print('[0, 0.0, \"x\"]')",
        "import sys\nsys.stdin.read()",
        "import sys\nsys.setrecursionlimit(10**6)",
        "import json\ndel json.loads, json.dumps",
    ],
)
def test_what_stands_after_a_function_does_not_matter(end: str) -> None:
    program = f"{SQUARE}\n{end}\n"
    assert called(program, ([3], 9), ([4], 16)).reason == "passed"
    assert grade(program, ["assert f(3) == 9", "x = 4\nassert f(x) == 16"]).reason == "passed"


@pytest.mark.parametrize(
    "program",
    [
        "class Solution:\n def f(self, x: List[int]) -> Optional[int]:\n  return max(x)",
        "class Solution:\n def f(self, x: 'List[int]'):\n  return heapq.nlargest(1, x)[0]",
        "def f(x):\n  c: Dict[int, int] = defaultdict(int)\n  return reduce(max, deque(x))",
        "@lru_cache(None)\ndef g(a, b): return max(a, math.floor(b))\n"
        "def f(x): return functools.reduce(g, x, -inf)",
        "@dataclass\nclass P:\n  x: int\ndef f(x): return P(max(x)).x",
        "from __future__ import annotations\nimport dataclasses\n@dataclass\nclass P:\n"
        "  x: int\ndef f(x): return P(max(x)).x",
        "import numpy as np\ndef f(x): return np.array(x).max()",
        "def f(x): return np.array(x).max()",
        "def f(x):\n  bisect.insort(x, 0)\n  return sorted(x)[-1]",
    ],
)
def test_names_that_leetcode_imports_need_no_import(program: str) -> None:
    assert called(program, ([[1, 3, 2]], 3)).reason == "passed"
    solution = "Solution().f" if "Solution" in program else "f"
    assert grade(program, [f"assert {solution}([1, 3, 2]) == 3"]).reason == "passed"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("np.int64(3)", 3),
        ("np.float64(0.1) * 3", 0.3),
        ("np.bool_(True)", True),
        ("np.str_('a')", "a"),
        ("[np.int32(3), {'a': np.float32(0.5)}]", [3, {"a": 0.5}]),
        ("np.arange(4).reshape(2, 2)", [[0, 1], [2, 3]]),
        ("{1: 0.1 + 0.2}", {"1": 0.3}),
        ("[[0.1 + 0.2], (0.7 + 0.1,)]", [[0.3], [0.8]]),
        ("3.0", 3),
        ("3", 3.0),
        ("2.9999999999999996", 3),
        ("[3, 0.1 + 0.2]", [3, 0.3]),
        ("(i for i in range(3))", [0, 1, 2]),
        ("range(3)", [0, 1, 2]),
        ("{2: 1}.keys()", [2]),
        ("map(str, [1, 2])", ["1", "2"]),
        ("float('nan')", float("nan")),
        ("float('-inf')", float("-inf")),
        ("10**30", 10**30),
        ("None", None),
        ("'\\ud800'", "\ud800"),
        ("b'a'", [97]),
        ("collections.deque([1, 2])", [1, 2]),
        ("collections.Counter('aab')", {"a": 2, "b": 1}),
        ("collections.namedtuple('P', 'x y')(1, 2)", [1, 2]),
        ("{True: 1, None: 2, 1.5: 3}", {"true": 1, "null": 2, "1.5": 3}),
    ],
)
def test_values_are_compared_as_the_data_they_are(value: str, expected: Any) -> None:
    program = f"import numpy as np, collections\ndef f():\n    return {value}"
    assert called(program, ([], expected)).reason == "passed"
    assert called(program, ([], [expected])).reason == "passed"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.3001", 0.3),
        ("3.00001", 3),
        ("10**15 + 0.5", 10**15),
        ("10**18 + 1", 10**18),
        ("[10**18 + 1]", [10**18]),
        ("1e-10", 0.0),
        ("float('nan')", 0.0),
        ("float('inf')", 1e308),
        ("[1, 2]", [1, 2, 3]),
        ("{1, 2}", [1, 2, 2]),
        ("{3, 1, 2}", [1, 2, 3]),
        ("frozenset([1])", [1]),
        ("'3'", 3),
        ("3", "3"),
        ("None", 0),
        ("object()", [1]),
        ("1j", [1]),
        ("{1: 1}", {"1": 1, "2": 2}),
        ("(i for i in iter(int, 1))", [0, 0]),
    ],
)
def test_values_that_differ_are_not_paid(value: str, expected: Any) -> None:
    assert not called(f"def f():\n    return {value}", ([], expected)).correct


@pytest.mark.parametrize(
    ("said", "expected", "right"),
    [
        ("0.30000000000000004", "0.3", True),
        ("1.0 2.50", "1.000000 2.5", True),
        ("1e-3", "0.001", True),
        ("Case 1: 0.1000000000001", "Case 1: 0.1", True),
        ("0.3000001", "0.3", False),
        ("1234567.90", "1234567.89", False),
        ("3", "3.0", False),
        ("3.0", "3", False),
        ("1000000000001", "1000000000000", False),
        ("0.0", "0.1", False),
        ("nan", "0.1", False),
        ("inf", "1e999", False),
        ("1e999", "1e400", False),
        ("1e400", "1e400", True),
        ("0.0", "0.00000000053", False),
        ("0.00", "-0.0", True),
        ("1.0.0", "1.0", False),
        ("1.0 2.0", "1.0\n2.0", False),
        ("1_0.0", "10.0", False),
        ("9" * 1000 + ".0", "0.1", False),
    ],
)
def test_printed_decimals_may_be_rounded_and_integers_may_not(
    said: str, expected: str, right: bool
) -> None:
    assert printed(f"print({said!r})", "", expected).correct is right


def test_long_output_and_many_threads_are_no_error() -> None:
    lines = "\n".join(map(str, range(200_000)))
    assert len(lines) > 1 << 20
    assert printed("for i in range(200_000): print(i)", "", lines).correct
    noise = "import sys\nprint('x' * 2_000_000, file=sys.stderr)\nprint(open('/dev/stdin').read())"
    assert printed(noise, "a\n", "a").correct
    threads = """
import threading
e = threading.Event()
t = [threading.Thread(target=e.wait) for _ in range(40)]
for x in t: x.start()
e.set()
for x in t: x.join()
print(len(t))
"""
    assert printed(threads, "", "40").correct


@pytest.mark.parametrize(
    "test",
    [
        "assert f(3) == 9",
        "assert 9 == f(3)",
        "assert f(x=3) == 9, 'three squared'",
        "assert f(-3) == f(3) == 9 and not f(0)",
        "assert isinstance(f(3), int) and type(f(3)) == int and type(f(3)) is not str",
        "assert f(3) is not None",
        "assert f(0.1) == 0.01",
        "assert [f(1), f(2)] == [1, 4] and {f(1)} == {1} and (f(1),) != (2,)",
        "assert sorted([f(2), f(1)]) == list((1, 4)) == [f(1), f(2)][:2]",
        "assert abs(f(3) - 9) < 1e-6 and round(f(1.5), 1) == 2.2 and sum([f(1), 2 ** 3]) == 9",
        "assert str(f(3)) == '9' and len(str(f(10))) == 3 and f(3) % 5 == 4",
        "import math\nassert math.isclose(f(0.5), 0.25, rel_tol=1e-9)",
        "assert math.isclose(f(0.5), 0.25)",
        "META = {'by': 'x'}\ndef check(g):\n    'doc'\n"
        "    assert g(3) == 9\n    assert not g(0)\ncheck(f)",
    ],
)
def test_plain_statements_need_one_run(test: str) -> None:
    counter = Counter()
    assert grade(SQUARE, [test] * 3, runner=counter).reason == "passed"
    assert counter.runs == 1
    wrong = grade("def f(x): return None", [test], runner=counter)
    assert not wrong.correct or test == "assert f(3) is None"


@pytest.mark.parametrize(
    ("program", "test"),
    [
        (SQUARE, "x = 3\nassert f(x) == 9"),
        (SQUARE, "assert f(f(2)) == 16"),
        (SQUARE, "for i in range(5):\n    assert f(i) == i**2"),
        (SQUARE, "assert all(f(i) == i * i for i in range(5))"),
        (SQUARE, "assert [f(i) for i in range(3)] == [0, 1, 4]"),
        (SQUARE, "import random\nx = random.randint(1, 99)\nassert f(x) == x * x"),
        (SQUARE, "assert list(map(f, [1, 2])) == [1, 4]"),
        (SQUARE, "def good(x):\n    return f(x) == x * x\nassert good(3)"),
        (SQUARE, "class T:\n    def t(self):\n        assert f(3) == 9\nT().t()"),
        (SQUARE, "try:\n    f('a')\nexcept TypeError:\n    pass\nelse:\n    assert False"),
        (SQUARE, "import pytest\nwith pytest.raises(TypeError):\n    f('a')\nassert f(2) == 4"),
        (SQUARE, "from solution import f as g\ndef test_it():\n    assert g(3) == 9"),
        (SQUARE, "import solution\nassert solution.f(3) == 9"),
        (SQUARE, "assert Counter([f(1), f(-1)]) == Counter([1, 1])"),
        (SQUARE, "import numpy as np\nassert np.allclose([f(0.1)], [0.01])"),
        (SQUARE, "assert f(3) == 9 if f(2) == 4 else False"),
        ("def digits(n): return n", "def check(g):\n    assert g(3) == 3\ncheck(digits)"),
        ("def gcd(a, b): return 1", "for i in range(3):\n    assert gcd(i, 9) == 1"),
        ("def pow(a): return a", "def check(g):\n    assert g(3) == 3\ncheck(pow)"),
        ("class P:\n  def __init__(s, x): s.x = x\ndef f(ps): return sum(p.x for p in ps)",
         "assert f([P(1), P(2)]) == 3"),
        ("def enc(s): return s[::-1]\ndef dec(s): return s[::-1]",
         "import copy, random\nfor i in range(100):\n    s = str(random.random())\n"
         "    e = enc(s)\n    assert dec(copy.deepcopy(e)) == s and e != s"),
        ("def f(x): x.sort()", "x = [2, 1]\nassert f(x) is None\nassert x == [1, 2]"),
        ("def f(x): x['a'] = 1", "x = {}\nf(x)\nassert x == {'a': 1}"),
        ("def f(x): return (i for i in x)", "assert next(f([1])) == 1 and list(f([2])) == [2]"),
        ("def f(g, x): return g(x)", "assert f(len, [1, 2]) == 2 and f(int, '3') == 3"),
        ("import numpy as np\ndef f(n): return np.ones(n)", "assert f(3).sum() == 3.0"),
        ("import numpy as np\ndef f(a): return a * 2", "assert (f(np.ones(2)) == 2).all()"),
        ("def f(s): return s.upper()", "assert f('ab').startswith('A')"),
        ("def f():\n  n = 0\n  def g():\n    nonlocal n\n    n += 1\n    return n\n  return g",
         "g = f()\nassert g() == 1\nassert g() == 2"),
        ("def sum(a, b): return a * b", "assert sum(2, 3) == 6"),
        ("def gcd(a, b): return 1", "assert gcd(12, 18) == 1"),
        ("class E(ValueError): pass\ndef f(): raise E('no')",
         "try:\n    f()\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no'"),
        (STACK, "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert s.pop() == 1"),
        (STACK, "s = Stack(1, 2)\nassert len(s) == 2 and 1 in s and s.items == [1, 2]"),
        (STACK, "s = Stack(1)\nassert not s.is_empty() and str(s) == 'Stack[1]'"),
        (STACK, "assert len(Stack(1, 2)) == 2"),
        (STACK, "assert str(Stack()) == 'Stack[]' and sorted(Stack(2, 1)) == [1, 2]"),
        (SQUARE, "from solution import *\nfor x in (2, 3):\n    assert f(x) == x * x"),
        (STACK, "a, b = Stack(1), Stack(2)\nassert a[0] == 1 and b.pop() == 2"),
        (STACK, "s = Stack(1)\ns.items = [5]\nassert s.pop() == 5"),
    ],
)  # fmt: skip
def test_statements_that_compute_are_run_in_turns_with_the_program(program: str, test: str) -> None:
    assert grade(program, [test]).reason == "passed"
    empty = grade("def f(*a): return object()\nclass Stack: pass", [test])
    assert not empty.correct


@pytest.mark.parametrize(
    ("program", "test", "why"),
    [
        (STACK, "s = Stack(1)\nassert s == Stack(1)", "needs a comparison or arithmetic"),
        (STACK, "assert Stack(1) == Stack(1)", "needs a comparison or arithmetic"),
        ("def f(x): return object()", "assert f(3) == 9", "comparison"),
        ("def f(x): return [object()]", "assert f(3) == [9]", "objects inside of data"),
        (STACK, "s = Stack(1)\nassert s", "needs the bool"),
        (STACK, "s = Stack(1)\nassert s.push(1).pop() == 1", "has not made itself"),
        (STACK, "def f(): return Stack(1)\nassert f() in [Stack(2)]", "comparison"),
        ("def f(): return f", "x = 1\nassert f().startswith('a')", "has not made itself"),
        ("def f(): return [object()]", "x = f()\nassert x", "objects inside of data"),
        (
            SQUARE,
            "x = 1.0\nfor _ in range(99):\n    x = f(x + 1) % 7",
            f"more than {MAX_ROUNDS} rounds",
        ),
        (SQUARE, "for i in range(20_000):\n    f(i)", "more than 10000 calls"),
        (
            "class E(Exception):\n  @property\n  def code(self): return 3\ndef f(x): raise E",
            "try:\n    f(3)\nexcept Exception as e:\n    assert e.code == 3",
            "the attribute 'code' of the program's exception",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused_and_says_why(program: str, test: str, why: str) -> None:
    verdict = grade(program, [test])
    assert not verdict.correct
    assert verdict.reason.startswith("test 1 of 1: refused: ")
    assert why in verdict.reason


@pytest.mark.parametrize("test", ["x = f(3)\nassert eval(x) == 9", "x = f(3)\nexec(x)"])
def test_no_text_of_the_program_is_run_where_the_test_is(test: str) -> None:
    program = "def f(x): return '__import__(\"sys\").exit(0)'\ndef eval(x): return 9\nexec = eval"
    verdict = grade(program, [test])
    assert not verdict.correct


def test_a_statement_that_is_no_python_is_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="not a Python statement"):
        grade(SQUARE, ["assert f(3 == 9"])
    with pytest.raises(DataError, match="asserts a tuple"):
        grade(SQUARE, ["assert (f(3) == 9, 'm')"])


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("assert 1 == 1", "calls nothing of the program"),
        ("def test():\n    pass", "calls nothing of the program"),
        ("def check(candidate):\n    assert candidate(3) == 9", "calls nothing"),
        ("class TestF:\n    def test_f(self):\n        assert f(3) == 9", "calls nothing"),
        ("import os\nassert f(3) == 9", "imports 'os'"),
        ("def test_f():\n    import sympy\n    assert f(3) == 9", "imports 'sympy'"),
        ("from unittest import TestCase\nassert f(3) == 9", "imports 'unittest'"),
        ("def test_f(capsys):\n    assert f(3) == 9", "needs the fixture 'capsys'"),
        ("def test_f(n, *, x=1, y):\n    assert f(3) == 9", "needs the fixture 'n'"),
        ("import pytest\nx = pytest.fixture(f)", "uses pytest.fixture"),
        ("import pytest as p\n@p.mark.slow\ndef test():\n    assert f(3) == 9", "pytest.mark"),
        ("from pytest import *\nassert f(3) == 9", r"uses pytest\.\*"),
        ("from pytest import warns\nassert f(3) == 9", r"uses pytest\.warns"),
        ("import pytest\nwith pytest.raises(E, mach='x'):\n    f(3)", "an argument 'mach'"),
        ("import pytest\nwith pytest.raises(E, match='('):\n    f(3)", "not a regular"),
        ("from pytest import raises as r\nwith r():\n    f(3)", "without an exception"),
        ("try:\n    f(3)\nexcept* ValueError:\n    pass", r"except\*|not a Python"),
    ],
)
def test_a_test_whose_text_shows_that_no_program_passes_it_is_an_error_of_the_data(
    test: str, why: str
) -> None:
    with pytest.raises(DataError, match=why):
        grader.verify([test])
    # Also where there is no program to be tested.
    with pytest.raises(DataError, match=why):
        grader.grade(None, [test])


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("assert f(lambda x: x * x) == 9", "argument of type 'function'"),
        ("x = 1\nassert x == 2\nassert f(3) == 9", "fails before it calls the program"),
        ("x = {}\ny = x['a']\nassert f(3) == 9", r"before it calls the program \(KeyError"),
        ("x = __import__('os')\nassert f(3) == 9", "imports 'os'"),
        ("import pytest\nx = getattr(pytest, 'mark')\nf(x)", r"uses pytest\.mark"),
        ("import pytest\nwith pytest.raises(3):\n    f(3)", "no exception class"),
        ("import pytest\nk = {'macht': 'x'}\nwith pytest.raises(E, **k):\n    f(3)", "'macht'"),
        ("import pytest\nx = pytest.approx([[1]])\nassert f(3) == x", "no nested"),
        ("import pytest\nx = pytest.approx({1})\nassert f(3) == x", "ordered"),
        ("import pytest\nassert f(3) < pytest.approx(9)", "other than =="),
        ("import pytest\nassert pytest.approx(f(3))", "whether a pytest.approx is true"),
        ("assert f == f", "needs a comparison"),
    ],
)
def test_a_test_that_fails_whatever_the_program_answers_is_an_error_of_the_data(
    test: str, why: str
) -> None:
    for program in (SQUARE, "def f(x): return None"):
        with pytest.raises(DataError, match=why):
            grade(program, [test])


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(x): return 8", "wrong output"),
        ("def f(x): return 1 / 0", "error (ZeroDivisionError)"),
        ("def g(x): return 9", "error (NameError)"),
        ("def f(x) return 9", "error (SyntaxError)"),
        ("import nothing_of_the_kind", "error (ModuleNotFoundError)"),
        ("import os\nos._exit(0)", "error"),
        ("while True: pass", "time limit"),
        ("x = bytearray(1 << 34)", "memory limit"),
        ("def f(x): return bytearray(1 << 34)", "memory limit"),
        ("def f(x): return 'x' * (20 << 20)", "output limit"),
    ],
)
def test_the_reason_says_what_was_wrong(program: str, reason: str) -> None:
    limits = {"timeout_s": 1.0 if reason == "time limit" else 10.0}
    verdict = grade(program, ["assert f(3) == 9"], **limits)
    assert verdict.reason == f"test 1 of 1: {reason}"
    call = grade(program, {"fn_name": "f", "inputs": [[3]], "outputs": [9]}, **limits)
    assert call.reason == f"test 1 of 1: {reason}"


def test_an_object_is_no_value_of_a_call() -> None:
    verdict = called("def f(x):\n    return object()", ([3], 9))
    why = "returns an object of class object, which is no data"
    assert verdict.reason == f"test 1 of 1: error ({why})"


def test_rounds_of_a_test_have_a_time_limit_together() -> None:
    program = "import time\ndef f(x):\n    time.sleep(0.7)\n    return x"
    test = "x = 0\nfor _ in range(20):\n    x = f(x) + 1"
    verdict = grade(program, [test], timeout_s=1.0)
    assert verdict.reason == "test 1 of 1: time limit"


def test_tests_of_one_kind_share_a_run() -> None:
    counter = Counter()
    calls = {
        "fn_name": "f",
        "inputs": [[i] for i in range(12)],
        "outputs": [i * i for i in range(12)],
    }
    assert grade(SQUARE, calls, runner=counter).correct
    assert counter.runs == 1
    assert grade(SQUARE, [f"assert f({i}) == {i * i}" for i in range(12)], runner=counter).correct
    assert counter.runs == 2
    # Run in turns: the tests, the program, the tests.
    tests = [f"x = {i}\nassert f(x) == {i * i}" for i in range(12)]
    assert grade(SQUARE, tests, runner=counter).correct
    assert counter.runs == 5


def test_results_that_are_arguments_need_no_more_runs() -> None:
    counter = Counter()
    test = "x = 2\nfor _ in range(5):\n    x = f(x)\nassert x == 2 ** 32"
    assert grade(SQUARE, [test], runner=counter).reason == "passed"
    assert counter.runs == 3


def test_a_program_that_hangs_at_its_second_test_is_run_once() -> None:
    counter = Counter()
    program = "def f(x):\n    while x: pass\n    return 0"
    calls = {"fn_name": "f", "inputs": [[0], [1]], "outputs": [0, 1]}
    verdict = grade(program, calls, runner=counter, timeout_s=2.0)
    assert (verdict.reason, counter.runs) == ("test 2 of 2: time limit", 1)


def test_a_test_that_began_late_has_its_time_alone() -> None:
    counter = Counter()
    program = (
        "import time\ndef f(x):\n    began = time.process_time()\n"
        "    while time.process_time() - began < x: pass\n    return x"
    )
    calls = {"fn_name": "f", "inputs": [[0.7], [0.7]], "outputs": [0.7, 0.7]}
    assert grade(program, calls, runner=counter, timeout_s=1.0).reason == "passed"
    assert counter.runs == 2


def test_tests_that_sleep_have_their_time_each() -> None:
    program = "import time\ndef f(x):\n    time.sleep(x)\n    return x"
    calls = {"fn_name": "f", "inputs": [[1.0]] * 4, "outputs": [1.0] * 4}
    assert grade(program, calls, timeout_s=0.8).reason == "passed"


def test_a_test_over_its_time_fails_also_where_the_run_has_more() -> None:
    program = (
        "import time\ndef f(x):\n    began = time.process_time()\n"
        "    while time.process_time() - began < x: pass\n    return x"
    )
    calls = {"fn_name": "f", "inputs": [[1.1], [0]], "outputs": [1.1, 0]}
    verdict = grade(program, calls, timeout_s=1.0, partial=True)
    assert (verdict.reason, verdict.score) == ("test 1 of 2: time limit", 0.5)


def test_an_runner_with_another_version_of_python_gets_the_source() -> None:
    tests = ["assert f(3) == 9", "x = 4\nassert f(x) == 16"]
    texts = []

    class Another(Counter):
        def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
            texts.append(code)
            return super().run(code, stdin, limits)

    assert grade(SQUARE, tests, runner=Another()).reason == "passed"
    assert not any("marshal" in text for text in texts)
    assert grade(SQUARE, tests, runner="bwrap").reason == "passed"


@pytest.mark.parametrize(
    "test",
    [
        "assert f(3) == 'a' * 10**9",
        "assert f(3) == 10 ** 10 ** 10",
        "assert f(3) in list(range(10**12))",
        "assert sorted(range(10**12)) == f(3)",
        "assert f(3) == 1 << 10**12",
        "assert f(3) == round(1, -10**12)",
        "assert " + "-" * 50_000 + "f(3)",
        "assert f(3) == " + "[" * 60 + "]" * 60,
    ],
)
def test_evaluating_a_test_here_is_bounded(test: str) -> None:
    try:
        plain = Plain(Statement(test))
    except (NotPlainError, DataError):
        return
    assert plain.failure([{"v": 9}])


def test_json_of_tests_has_the_same_verdict() -> None:
    assert grade(SQUARE, json.dumps(["assert f(3) == 9"])).correct
