"""What a program knows when it answers: of its test, the operations so far, and no more."""

from __future__ import annotations

import pytest

from gem_sandbox.grading import code as grader

RUNNERS = ["bwrap", "subprocess"]
FIND = """
import gc, os, sys
def known():
    found = []
    frame = sys._getframe()
    while frame:
        found += [repr(v) for v in frame.f_locals.values() if isinstance(v, (list, tuple, bytes))]
        frame = frame.f_back
    found += [repr(o) for o in gc.get_objects() if isinstance(o, (list, tuple, dict))]
    for pid in {os.getpid(), os.getppid(), 1}:
        for path in ("fd/0", "environ", "cmdline", "mem"):
            try:
                with open(f"/proc/{pid}/{path}", "rb") as file:
                    found.append(repr(file.read(1 << 20)))
            except (OSError, OverflowError, ValueError):
                pass
    return "".join(found)
"""
CODEC = (
    FIND
    + """
def encode(s):
    found = known()
    secret = "hzxqqx"[::-1 if s else 1]
    return secret if secret in found else "?"
decode = encode
"""
)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    "tests",
    [
        ["assert encode('attack') == 'xqqxzh'", "assert decode('xqqxzh') == 'attack'"],
        [
            "def check():\n    x = 'attack'\n    assert encode(x) == 'xqqxzh'\n"
            "    assert decode('xqqxzh') == x\ncheck()"
        ],
        ["assert encode('attack') == 'xqqxzh' and decode('xqqxzh') == 'xqqxzh'"],
        ["assert decode('xqqxzh') == 'xqqxzh'", "assert encode('attack') == 'xqqxzh'"],
    ],
)
def test_arguments_of_later_calls_and_of_other_tests_are_not_there(
    tests: list[str], runner: str
) -> None:
    verdict = grader.grade(CODEC, tests, runner=runner, partial=True)
    right_without = 1 if tests[0].startswith("assert decode") else 0
    assert verdict.score <= right_without / len(tests), verdict


def test_the_argument_of_the_next_test_is_no_answer() -> None:
    program = """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        for ops in frame.f_locals.get("tasks") or ():
            for op in ops:
                if op[2][0] > x:
                    return op[2][0]
        frame = frame.f_back
"""
    tests = ["assert f(2) == 3", "assert f(3) == 5", "assert f(5) == 7"]
    assert grader.grade(program, tests, partial=True).score == 0.0


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_program_that_answers_for_others_or_not_at_all_is_not_paid(runner: str) -> None:
    for body in (
        "os.write(d, (0).to_bytes(8, 'big') * 9)",
        "os.write(d, (1 << 60).to_bytes(8, 'big'))",
        "os.write(d, (2).to_bytes(8, 'big') + b'{}')",
        "os.write(d, (3).to_bytes(8, 'big') + b'not')",
        "os.close(d)",
    ):
        program = f"""
import os
def f(x):
    for d in range(3, 64):
        try:
            {body}
        except OSError:
            pass
"""
        verdict = grader.grade(
            program, ["assert f(1) == 1", "assert f(2) == 4"], runner=runner, timeout_s=2.0
        )
        assert not verdict.correct


def test_a_call_sees_what_the_calls_before_it_left() -> None:
    program = "seen = []\ndef f(x):\n    seen.append(x)\n    return list(seen)"
    tests = ["assert f(1) == [1] and f(2) == [1, 2]"] * 3
    assert grader.grade(program, tests).correct
