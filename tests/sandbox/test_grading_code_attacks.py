"""Programs that want to be paid for nothing: no verdict comes from a process they can reach."""

from __future__ import annotations

from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_sandbox import Limits, Result, Runner, resolve
from gem_sandbox.grading import code as grader

RUNNERS = ["bwrap", "subprocess"]

# `f(3)` must be 9. None of them knows it.
ATTACKS = {
    "exec defined": "def exec(*a): pass",
    "exec defined, and a function": "def exec(*a): pass\ndef f(x): return None",
    "exec replaced": "import builtins\nbuiltins.exec = lambda *a: None\ndef f(x): return 1",
    "everything replaced": """
import builtins
for name in "exec eval compile getattr len print open type isinstance sorted".split():
    setattr(builtins, name, lambda *a, **k: True)
def f(x): return True
""",
    "marker read from stdin": """
import os, sys
try:
    text = sys.stdin.read() + open("/dev/stdin").read()
except OSError:
    text = ""
print(text); print("true"); sys.stdout.flush(); os._exit(0)
""",
    "the task read again": """
import re
def f(x):
    for name in ("/dev/stdin", "/proc/self/fd/0", "/dev/fd/0", "/proc/self/cmdline"):
        try:
            found = re.search(r"assert f\\(3\\) == (\\d+)", open(name).read())
        except OSError:
            continue
        if found:
            return int(found[1])
    return None
""",
    "always equal": """
class A:
    __eq__ = lambda s, o: True
    __ne__ = lambda s, o: False
    __hash__ = lambda s: hash(9)
    __bool__ = lambda s: True
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    __sub__ = __rsub__ = __abs__ = lambda s, *o: s
    __getattr__ = lambda s, n: lambda *a: True
f = lambda x: A()
""",
    "always equal integer": """
class A(int):
    __eq__ = lambda s, o: True
    __ne__ = lambda s, o: False
    __hash__ = lambda s: hash(9)
    __repr__ = __str__ = lambda s: "9"
    __abs__ = __sub__ = __rsub__ = __index__ = __int__ = lambda s, *o: 9
f = lambda x: A(1)
""",
    "always equal list": "class A(list):\n __eq__ = lambda s, o: True\nf = lambda x: A()",
    "lies about its class": """
class A:
    __class__ = int
    __eq__ = lambda s, o: True
    __reduce__ = lambda s: (int, (9,))
    __index__ = __int__ = __float__ = lambda s: 9
    __getattr__ = lambda s, n: lambda *a: 9
f = lambda x: A()
""",
    "metaclass": """
class M(type):
    __eq__ = lambda s, o: True
    __hash__ = lambda s: hash(9)
    __name__ = "int"
    __instancecheck__ = lambda s, o: True
class A(metaclass=M): pass
f = lambda x: A
""",
    "modules beside the program": """
import os, sys
folder = os.path.dirname(os.path.abspath(sys.argv[0]))
for name in sys.stdlib_module_names:
    with open(os.path.join(folder, name + ".py"), "w") as file:
        file.write("import os; os.write(1, b'[0, 9]'); os._exit(0)")
def f(x): return 1
""",
    "excepthook": """
import sys, os
sys.excepthook = lambda *a: os._exit(0)
def f(x): raise AssertionError
""",
    "atexit": """
import atexit, os
atexit.register(lambda: (print("true"), os._exit(0)))
def f(x): raise SystemExit(0)
""",
    "ends": "import os\ndef f(x): os._exit(0)",
    "ends at once": "import os\nos._exit(0)",
    "raises SystemExit": "def f(x): raise SystemExit(0)",
    "raises what no test catches": "def f(x): raise BaseException",
    "frames": """
import re, sys
def f(x):
    frame = sys._getframe()
    while frame is not None:
        for place in (frame.f_locals, frame.f_globals):
            for name, value in list(place.items()):
                if name == "expected":
                    return value
                found = re.search(r"assert f\\(3\\) == (\\d+)", repr(value))
                if found:
                    return int(found[1])
        frame = frame.f_back
    return None
""",
    "frames are told that all is well": """
import sys
def f(x):
    frame = sys._getframe().f_back
    while frame is not None:
        for name in ("answer", "result", "results", "value", "values", "what", "reply"):
            if name in frame.f_locals:
                frame.f_locals[name] = 9
        frame.f_globals["same"] = lambda *a: True
        frame = frame.f_back
    return None
""",
    "the right side of the test": """
import gc, re
def f(x):
    for o in gc.get_objects():
        if isinstance(o, (dict, list, tuple)):
            for item in list(o.values() if isinstance(o, dict) else o):
                found = isinstance(item, str) and re.search(r"assert f\\(3\\) == (\\d+)$", item)
                if found and "gc.get_objects" not in item:
                    return int(found[1])
    return None
""",
    "json replaced": """
import json
json.dumps = lambda *a, **k: '[0, 0, [{"v": true}]]'
json.JSONEncoder.encode = json.JSONEncoder.iterencode = lambda *a, **k: "true"
json.loads = lambda *a, **k: [[]]
def f(x): return None
""",
    "modules replaced": """
import sys
main = sys.modules["__main__"]
for name, value in list(vars(main).items()):
    if callable(value):
        setattr(main, name, lambda *a, **k: True)
for scope in (getattr(main, "SCOPE", {}),):
    for name in ("encode", "decode", "same", "say", "_object", "_dumps"):
        scope[name] = lambda *a, **k: True
def f(x): return None
""",
    "streams closed": """
import sys
sys.stdout.close(); sys.stderr.close(); sys.stdin.close()
def f(x): return None
""",
    "all descriptors closed": "import os\nos.closerange(0, 256)\ndef f(x): return 9",
    "print replaced": "print = lambda *a, **k: None\ndef f(x): print(9); return None",
    "forks and answers twice": """
import os
def f(x):
    return 8 if os.fork() else 7
""",
    "writes answers to all descriptors": """
import os
line = b'[0, 0.0, [{"v": true}]]\\n["passed", ""]\\n[0, 0.0, ["passed", ""]]\\ntrue\\n'
def f(x):
    for descriptor in range(256):
        try:
            os.write(descriptor, line)
        except OSError:
            pass
    os._exit(0)
""",
    "threads that print later": """
import threading, time, os
def later():
    time.sleep(0.05)
    for descriptor in range(16):
        try:
            os.write(descriptor, b'[0, 0.0, ["passed", ""]]\\n')
        except OSError:
            pass
threading.Thread(target=later).start()
def f(x): time.sleep(0.2)
""",
    "__del__": """
class A:
    def __del__(self):
        import os
        os.write(1, b"true")
        os._exit(0)
f = lambda x: A()
""",
    "recursion": "f = lambda x: f(x)",
    "deep nesting": """
def f(x):
    value = []
    for _ in range(100_000):
        value = [value]
    return value
""",
    "deep nesting, forged": """
import os
def f(x):
    for d in range(3, 64):
        try:
            os.write(d, b'[0, 0.0, [{"v": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]]\\n")
        except OSError:
            pass
    os._exit(0)
""",
    "contains itself": "def f(x):\n a = []\n a.append(a)\n return a",
    "huge integer": "f = lambda x: 1 << 10_000_000",
    "huge integer, forged": """
import os
def f(x):
    for d in range(3, 64):
        try:
            os.write(d, b'[0, 0.0, [{"v": ' + b"9" * 3_000_000 + b"}]]\\n")
        except OSError:
            pass
    os._exit(0)
""",
    "colliding keys, forged": """
import json, os
def f(x):
    keys = [k * ((1 << 61) - 1) for k in range(1, 100_000)]
    line = json.dumps([0, 0.0, [{"v": {"s": [{"i": hex(key)} for key in keys]}}]]).encode() + b"\\n"
    for d in range(3, 64):
        try:
            while line:
                line = line[os.write(d, line):]
        except OSError:
            pass
    os._exit(0)
""",
    "tags that are none": """
import os
def f(x):
    for v in (
        "{}", '{"q": 5}', '{"z": [9]}', '{"p": ["name", "f"]}', '{"o": []}', '{"i": 9}',
        '{"k": ["Fraction", "1e999999999"]}', '{"k": ["Decimal", "1e999999999"]}', '{"k": [9]}',
        '{"r": [0, 1000000000000, 1]}', '{"r": [0, 1, 0]}', '{"d": [[[], 1]]}', '{"c": [[]]}',
    ):
        for d in range(3, 64):
            try:
                os.write(d, b'[0, 0.0, [{"v": ' + v.encode() + b"}]]\\n")
            except OSError:
                pass
    os._exit(0)
""",
    "nan": "f = lambda x: float('nan')",
    "infinity": "f = lambda x: float('inf')",
    "a text that says so": "f = lambda x: '9'",
    "a text that is code": "f = lambda x: '__import__(\"os\")._exit(0)'",
    "numpy of any length": """
import numpy
class A(numpy.ndarray):
    __eq__ = lambda s, o: True
f = lambda x: numpy.zeros(3).view(A)
""",
    "sorted, abs and all of its own": """
sorted = abs = set = list = tuple = len = isclose = lambda *a: 0
class math: isclose = staticmethod(lambda *a, **k: True)
f = lambda x: 1
""",
    "raises what is expected of others": "def f(x): raise AssertionError('9')",
}
CHECKS = {
    "plain": "assert f(3) == 9",
    "run apart": "x = 3\nassert f(x) == 9",
    "function": "def check(candidate):\n    assert candidate(3) == 9\ncheck(f)",
    "tolerance": "assert abs(f(3) - 9) < 1e-6",
    "isclose": "import math\nassert math.isclose(f(3), 9)",
    "membership": "assert f(3) in [9]",
    "membership run apart": "good = [9]\nassert f(3) in good",
    "loop": "for x, y in [(3, 9), (4, 16)]:\n    assert f(x) == y, (x, y)",
    "negated": "x = 3\nassert not (f(x) != 9)",
    "several": "assert f(3) == 9 and f(4) == 16",
    "order": "assert 8.5 < f(3) < 9.5",
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_is_paid_for_a_statement(attack: str, runner: str) -> None:
    tests = [CHECKS["plain"], CHECKS["run apart"]]
    verdict = grader.grade(
        ATTACKS[attack], tests, runner=runner, timeout_s=1, memory_mb=512, partial=True
    )
    assert (verdict.correct, verdict.score) == (False, 0.0)
    assert verdict.reason.startswith("test 1 of 2: ")


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("form", CHECKS)
def test_what_is_equal_to_everything_is_paid_in_no_form(form: str, runner: str) -> None:
    for attack in ("always equal", "lies about its class", "exec defined, and a function"):
        assert not grader.grade(ATTACKS[attack], [CHECKS[form]], runner=runner).correct
    right = grader.grade("def f(x): return x * x", [CHECKS[form]], runner=runner)
    assert right.correct, right.reason


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_is_paid_for_a_call(attack: str, runner: str) -> None:
    tests = {"fn_name": "f", "inputs": [[3]], "outputs": [9]}
    verdict = grader.grade(ATTACKS[attack], tests, runner=runner, timeout_s=1, memory_mb=512)
    assert not verdict.correct


@pytest.mark.parametrize(
    "value",
    [
        '{"k": ["Fraction", "1e999999999"]}',
        '{"k": ["Decimal", "1e999999999"]}',
        '{"r": [0, 1000000000000000000000000, 1]}',
        '{"r": [0, 1, 0]}',
        '{"d": [[[], 1]]}',
        '{"d": [[{"i": "0x' + "f" * 100_000 + '"}, 1]]}',
        '{"y": ["f8", {"o": 3}]}',
        '{"y": 3}',
        '{"o": "x"}',
        '{"c": ["a", []]}',
        '{"b": 5}',
        "{}",
        "[{}, {}]",
        "1e400",
        "-",
        '{"s": [[]]}',
    ],
)
def test_forged_data_is_wrong_and_neither_an_exception_nor_work(value: str) -> None:
    class Forger(Runner):
        def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
            lines = ['["began"]', "[]", "{}", '["load"]', '["task"]', '["task", [], 1e999]']
            lines += [f"[1{'0' * 4000}, 1{'0' * 4000}, 0]", f'[0, 0, [{{"v": {value}}}]]']
            return Result("\n".join(lines), "", 0, 0.0)

    for tests in (
        ["assert f(3) == 9"],
        ["assert int(f(3)) == 9"],
        ["assert sorted(f(3)) == [9]"],
        ["assert list(f(3)) == set(f(3))"],
        {"fn_name": "f", "inputs": [[3]], "outputs": [[9]]},
        {"fn_name": "f", "inputs": [[3]], "outputs": [{"9": 9}]},
    ):
        assert not grader.grade("x", tests, runner=Forger()).correct


@pytest.mark.parametrize(
    "test",
    [
        "import numpy as np\nassert np.allclose(f(3), 9)",
        "import numpy as np\nassert np.allclose([9], f(3))",
        "import numpy\nfor x in [3]:\n    assert numpy.allclose(f(x), [9], atol=1e-6)",
        "import numpy as np\nnp.testing.assert_allclose(f(3), 9.0)",
        "import numpy as np\nnp.testing.assert_array_equal(f(3), 9)",
        "import numpy as np\nnp.testing.assert_equal(f(3), 9)",
        "import numpy as np\nnp.testing.assert_almost_equal(9, f(3))",
        "x = 3\nassert f(x).__eq__(9)",
    ],
)
def test_nothing_is_close_to_no_number(test: str) -> None:
    for nothing in ("[]", "()", "None", "np.array([])"):
        program = f"import numpy as np\ndef f(x):\n    return {nothing}"
        assert not grader.grade(program, [test]).correct, nothing
    assert grader.grade("def f(x):\n    return x * x", [test]).reason == "passed"


def test_an_attack_in_one_test_takes_no_other_tests_verdict() -> None:
    program = """
import os
def f(x):
    if x == 3:
        os.kill(os.getppid(), 9)
        os._exit(0)
    return x * x
"""
    tests = [f"assert f({x}) == {x * x}" for x in range(5)]
    for runner in RUNNERS:
        verdict = grader.grade(program, tests, runner=runner, partial=True)
        assert (verdict.score, verdict.reason) == (0.8, "test 4 of 5: error")


def test_a_test_that_hangs_takes_no_other_tests_verdict() -> None:
    program = "def f(x):\n    while x in (1, 3): pass\n    return x * x"
    tests = [f"assert f({x}) == {x * x}" for x in range(5)]
    verdict = grader.grade(program, tests, runner="bwrap", partial=True, timeout_s=2.0)
    assert (verdict.score, verdict.reason) == (0.6, "test 2 of 5: time limit")


def test_tests_do_not_see_what_others_left() -> None:
    program = "seen = []\ndef f(x):\n    seen.append(x)\n    return list(seen)"
    tests = [f"assert f({x}) == [{x}]" for x in range(3)]
    assert grader.grade(program, tests, runner="bwrap").correct
    calls = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [2]]}
    assert grader.grade(program, calls, runner="bwrap").correct
    assert grader.grade(program, ["assert f(1) == [1]\nassert f(2) == [1, 2]"]).correct


class Recorder(Runner):
    """Runs programs in a sandbox, and remembers all that it is given."""

    def __init__(self) -> None:
        self.inner = resolve("bwrap")
        self.given: list[tuple[str, str]] = []

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        self.given.append((code, stdin))
        return self.inner.run(code, stdin, limits)


@pytest.mark.parametrize(
    "test",
    [
        "assert f(3) == 'expected'",
        "x = 3\nassert f(x) == 'expected'",
        "x = 3\nassert f(x).startswith('expected')",
        "x = 3\nassert f(x).count('expected') == 1",
        "x = 3\nassert f(x)['expected'] == 1",
        "x = 3\nassert 'expected' in f(x)",
        "if f(3) != 'expected':\n    raise AssertionError('expected')",
        "assert f(3) == f(4) == 'expected'",
        "for x, y in [(3, 'expected')]:\n    assert f(x) == y",
    ],
)
@pytest.mark.parametrize("value", ["'expected'", "['expected']", "Hostile()", "unknown"])
def test_the_programs_process_is_never_told_what_is_expected(test: str, value: str) -> None:
    program = f"class Hostile:\n    __getattr__ = lambda s, n: s\ndef f(x): return {value}"
    recorder = Recorder()
    grader.grade(program, [test], runner=recorder)
    program_runs = [stdin for code, stdin in recorder.given if "def f" in code]
    assert program_runs
    assert not any("expected" in stdin for stdin in program_runs)
    assert not any("def f" in code and "assert" in stdin for code, stdin in recorder.given)


def test_the_program_is_never_in_the_process_of_the_test() -> None:
    recorder = Recorder()
    assert grader.grade("def f(x): return x", ["x = 3\nassert f(x) == 3"], runner=recorder)
    sides = {("def f" in code, "assert" in stdin) for code, stdin in recorder.given}
    assert sides == {(True, False), (False, True)}


def test_an_answer_is_not_changed_once_later_calls_are_known() -> None:
    """The second run has the call `g(7919)` beside `f(1)`; another answer comes too late."""
    program = """
import gc
def told():
    return any(isinstance(o, list) and 7919 in o for o in gc.get_objects())
def f(x): return 7919 if not told() else 8
def g(x): return 0
"""
    test = "a = f(1)\nassert g(a) == 0\nassert a == 8"
    assert grader.grade(program, [test]).reason == "test 1 of 1: wrong output"


class Mute(Runner):
    """Runs nothing."""

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        return Result("", "no such thing\n", 1, 0.0)


def test_an_runner_that_cannot_call_programs_is_named_and_costs_no_reward() -> None:
    tests: list[Any] = [["assert f(3) == 9"], {"fn_name": "f", "inputs": [[3]], "outputs": [9]}]
    for test in tests:
        with pytest.raises(ConfigurationError, match="Mute cannot run tests that call .*no such"):
            grader.grade("def f(x): return 9", test, runner=Mute())
