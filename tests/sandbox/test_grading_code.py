"""Programs against tests: forms of tests, limits, partial credit, what a program cannot fake."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
from typing import Any

import pytest
from processes import settles

from gem.errors import ConfigurationError, DataError
from gem.grading import Verdict
from gem_sandbox import Limits, Result, Runner, SubprocessRunner, resolve
from gem_sandbox.grading import code as grader

DOUBLE = "print(int(input()) * 2)"
METHOD = "class Solution:\n def add(self, a, b):\n  print(5)\n  return a + b"
ADD = "def add(a, b):\n    return a + b"


class Recorder(Runner):
    """Answers every run with the same result and remembers what it was asked."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.runs: list[tuple[str, Limits]] = []

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        self.runs.append((stdin, limits))
        return self.result


def grade(program: str | None, tests: Any, **options: Any) -> Verdict:
    return grader.grade(program, tests, **{"runner": "subprocess", **options})


def stdio(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"inputs": [pair[0] for pair in pairs], "outputs": [pair[1] for pair in pairs]}


def test_a_program_that_prints_what_is_expected_passes() -> None:
    verdict = grade(DOUBLE, stdio(("1", "2"), ("-3\n", "-6\n")))
    assert (verdict.correct, verdict.reason, verdict.score) == (True, "passed", 1.0)
    assert verdict.seconds > 0


def test_one_wrong_output_fails_the_whole_and_is_named() -> None:
    verdict = grade(DOUBLE, stdio(("1", "2"), ("2", "5"), ("3", "6")))
    assert (verdict.correct, verdict.reason, verdict.score) == (
        False,
        "test 2 of 3: wrong output",
        0.0,
    )


def test_partial_credit_is_the_share_of_passed_tests() -> None:
    verdict = grade(DOUBLE, stdio(("1", "2"), ("2", "5"), ("3", "6"), ("x", "")), partial=True)
    assert (verdict.correct, verdict.score) == (False, 0.5)
    assert verdict.reason == "test 2 of 4: wrong output"


def test_an_error_fails_even_when_the_output_is_right() -> None:
    assert grade("print(2); raise SystemExit(1)", stdio(("", "2"))).reason == "test 1 of 1: error"
    assert grade("print(2", stdio(("", "2"))).reason == "test 1 of 1: error"


def test_words_of_a_program_are_not_held_against_it() -> None:
    program = "import sys\n# os.system, subprocess\nprint(input())\nsys.exit(0)"
    assert grade(program, stdio(("a", "a"))).correct


def test_lines_may_be_given_as_a_list_and_trailing_whitespace_does_not_count() -> None:
    program = "print(input() + input(), '  ')\nprint(1)\nprint()"
    assert grade(program, stdio((["a", "b"], ["ab", "1"]))).correct
    assert not grade(program, stdio((["a", "b"], ["ab 1"]))).correct


def test_tests_may_be_json() -> None:
    assert grade(DOUBLE, json.dumps(stdio(("1", "2")))).correct


@pytest.mark.parametrize("program", [ADD, METHOD])
def test_functions_and_methods_are_called(program: str) -> None:
    tests = {"fn_name": "add", "inputs": [[1, 2], ["a", "b"], [[1], [2]]]}
    assert grade(program, {**tests, "outputs": [3, "ab", [1, 2]]}).correct
    # The values of calls may be wrapped in lists of one: all of them, or none.
    assert grade(program, {**tests, "outputs": [[3], ["ab"], [[1, 2]]]}).correct
    assert not grade(program, {**tests, "outputs": [3, ["ab"], [1, 2]]}).correct
    assert not grade(program, {**tests, "outputs": [3, "ab", [2, 1]]}).correct


def test_values_are_compared_as_json_and_floats_with_tolerance() -> None:
    tests = {"fn_name": "f", "inputs": [[]], "outputs": [[[1, 2], {"1": 0.3}]]}
    assert not grade("def f():\n    return (1, 2), {1: 0.4}", tests).correct
    assert grade("def f():\n    return (1, 2), {1: 0.3}", tests).correct
    tests = {"fn_name": "f", "inputs": [[]], "outputs": [0.3]}
    assert grade("def f():\n    return 0.1 + 0.2", tests).correct


def test_a_list_of_statements_or_of_mappings_works() -> None:
    assert grade(ADD, ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]).correct
    assert grade(ADD, ["assert add(1, 2) == 4"]).reason == "test 1 of 1: wrong output"
    assert grade(DOUBLE, [{"input": "1", "output": "2"}]).correct
    assert grade(ADD, [{"fn_name": "add", "input": [1, 2], "output": 3}]).correct


@pytest.mark.parametrize("program", ["import sys; sys.exit(0)", "import os; os._exit(0)", "x = 1"])
def test_a_program_that_ends_early_does_not_pass(program: str) -> None:
    assert not grade(program, ["assert add(1, 2) == 3"]).correct
    assert not grade(program, {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}).correct
    assert not grade(program, stdio(("1", "2"))).correct


@pytest.mark.parametrize(
    ("program", "limit"),
    [
        ("while True: pass", "time"),
        ("import time; time.sleep(1000)", "time"),
        ("x = bytearray(1 << 32)", "memory"),
        ("while True: print('x' * 100000)", "output"),
    ],
)
def test_limits_end_a_program_and_are_named(program: str, limit: str) -> None:
    verdict = grade(program, stdio(("", "")), timeout_s=0.5 if limit == "time" else 20)
    assert verdict[:2] == (False, f"test 1 of 1: {limit} limit")


def test_above_the_maximum_the_longest_inputs_are_run() -> None:
    tests = stdio(*(("x" * length, "") for length in (1, 5, 2, 4, 3)))
    recorder = Recorder(Result("", "", 0, 0.0))
    assert grade("pass", tests, runner=recorder, max_tests=3, timeout_s=7.0).correct
    assert [stdin for stdin, _ in recorder.runs] == ["xxxxx", "xxxx", "xxx"]
    assert {limits.cpu_s for _, limits in recorder.runs} == {7.0}


@pytest.mark.parametrize("max_tests", [0, -1])
def test_no_program_passes_because_no_test_is_run(max_tests: int) -> None:
    tests = {"inputs": ["", ""], "outputs": ["1", "2"]}
    with pytest.raises(ConfigurationError, match="max_tests must be an integer from 1"):
        grade("pass", tests, runner="subprocess", max_tests=max_tests)


def test_no_program_is_wrong_without_a_run() -> None:
    recorder = Recorder(Result("", "", 0, 0.0))
    for program in (None, "", " \n"):
        assert grade(program, stdio(("", "")), runner=recorder)[:2] == (False, "no program")
    assert recorder.runs == []


def test_any_text_is_run_as_a_program() -> None:
    for program in ("\0", "\ud800", "é", "x" * 100_000):
        assert grade(program, stdio(("", "\ud800"))).reason.startswith("test 1 of 1: ")


@pytest.mark.parametrize(
    "tests",
    [
        None,
        5,
        "not json",
        {},
        [],
        [5],
        {"inputs": ["1"]},
        {"inputs": ["1"], "outputs": []},
        {"inputs": [], "outputs": []},
        {"inputs": "1", "outputs": "2"},
        {"fn_name": "f", "inputs": ["1"], "outputs": [1]},
        {"fn_name": 5, "inputs": [[1]], "outputs": [1]},
        {"fn_name": "f", "inputs": [[object()]], "outputs": [1]},
    ],
)
def test_tests_that_are_none_are_named_whatever_the_program(tests: Any) -> None:
    with pytest.raises(DataError, match="test"):
        grade(None, tests)


def test_without_an_isolating_runner_nothing_runs_unless_asked_for_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match="runner='subprocess'.*unsafe"):
        grader.grade(DOUBLE, stdio(("1", "2")))
    with pytest.raises(ConfigurationError, match="unknown runner 'none'; known: 'bwrap'"):
        resolve("none")
    assert isinstance(resolve("subprocess"), SubprocessRunner)
    assert SubprocessRunner.isolates == frozenset()


def test_a_program_has_a_folder_of_its_own_and_none_of_the_users_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEM_TEST_SECRET", "secret")
    program = """
import os
print(os.getcwd(), os.environ.get("GEM_TEST_SECRET"), os.path.exists("x"))
open("x", "w")
"""
    results = [SubprocessRunner().run(program) for _ in range(2)]
    folders = {result.stdout.split()[0] for result in results}
    assert len(folders) == 2
    assert all(result.stdout.split()[1:] == ["None", "False"] for result in results)


def test_what_a_program_started_ends_with_it() -> None:
    program = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid)
"""
    result = SubprocessRunner().run(program)
    assert (result.exit_code, result.limit_hit) == (0, None)

    def ended() -> bool:
        command = ["ps", "-o", "stat=", "-p", result.stdout.strip()]
        return subprocess.run(command, capture_output=True).stdout.strip()[:1] in (b"", b"Z")

    assert settles(ended)


def test_a_failing_program_is_a_result() -> None:
    result = SubprocessRunner().run("import sys; print('out'); sys.exit('err')")
    assert (result.stdout, result.stderr, result.exit_code, result.limit_hit) == (
        "out\n",
        "err\n",
        1,
        None,
    )
    assert SubprocessRunner().run("import os; os.abort()").exit_code < 0


def test_output_is_cut_at_its_limit() -> None:
    result = SubprocessRunner().run("print('x' * 5000)", limits=Limits(output_bytes=1000))
    assert result.stdout == "x" * 1000
    assert result.limit_hit == "output"


WRITES = (
    "import os\n"
    "with open('data', 'wb') as file:\n"
    "    for _ in range({mb}):\n"
    "        file.write(bytes(1 << 20))\n"
    "print(os.path.getsize('data'))"
)


@pytest.mark.parametrize("runner", ["bwrap", "subprocess"])
def test_a_file_may_be_as_large_as_the_limit_of_the_disk(runner: str) -> None:
    limits = Limits(disk_mb=8, output_bytes=1000)
    written = resolve(runner).run(WRITES.format(mb=7), limits=limits)
    assert (written.stdout, written.limit_hit) == (f"{7 << 20}\n", None)
    too_large = resolve(runner).run(WRITES.format(mb=9), limits=limits)
    assert too_large.exit_code == 1
    assert "OSError" in too_large.stderr


def test_a_limit_of_processes_needs_a_runner_that_has_one() -> None:
    with pytest.raises(ConfigurationError, match="processes=4: the runner 'subprocess' cannot"):
        SubprocessRunner().run("print(1)", limits=Limits(processes=4))


def test_limits_must_be_positive_and_runners_can_be_pickled() -> None:
    with pytest.raises(ConfigurationError, match="cpu_s must be a number of seconds above 0"):
        Limits(cpu_s=0)
    assert isinstance(pickle.loads(pickle.dumps(SubprocessRunner())), SubprocessRunner)


def test_a_program_can_be_awaited() -> None:
    assert asyncio.run(SubprocessRunner().arun("print(input())", "a")).stdout == "a\n"
