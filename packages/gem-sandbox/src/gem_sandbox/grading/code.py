"""Grades programs: the sandbox runs them, the grader compares; expected values stay outside.

`gem_sandbox.grading.programs` runs them, `gem_sandbox.grading.replay` decides tests that are
statements.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from gem.blame import boundary
from gem.errors import DataError
from gem.grading.verdict import Verdict
from gem.json_lines import parse
from gem.parameters import integer
from gem_sandbox import Limits, Runner, resolve
from gem_sandbox.grading.inside.encoding import encode, same
from gem_sandbox.grading.plain import ObjectError, judged, value_of
from gem_sandbox.grading.programs import Driver
from gem_sandbox.grading.replay import failures, results
from gem_sandbox.grading.statements import Statement

Tests: TypeAlias = "str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]"

_OUTPUT_BYTES = 8 << 20
_DECIMAL = re.compile(r"[+-]?(?=[\d.]*\d)(?=[^.e]*[.e])\d*\.?\d*(e[+-]?\d{1,4})?", re.I | re.A)
_TOLERANCE = 1e-9
_MAX_DIGITS = 400


@dataclass(frozen=True)
class _Printed:
    """A test of what a program prints."""

    stdin: str
    expected: str


@dataclass(frozen=True)
class _Call:
    """A test of what a function returns."""

    operation: list[Any]
    """In the format of `inside/candidate.py`."""
    expected: Any
    size: int


_Test: TypeAlias = "_Printed | _Call | Statement"


def grade(
    program: str | None,
    tests: Tests,
    *,
    runner: str | Runner | None = None,
    max_tests: int = 12,
    timeout_s: float = 10.0,
    memory_mb: int = 1024,
    partial: bool = False,
) -> Verdict:
    """Return whether a Python program passes its tests.

    Args:
        program: The policy's program; None when it gave none.
        tests: `{"inputs": [...], "outputs": [...]}`, where each input is what the program reads on
            stdin and each output what it must print (a list of lines is joined). With a further
            key `fn_name`, each input is the list of arguments of that function, or of that method
            of a class `Solution`, and each output its value, or, where all outputs of the problem
            are lists of one item, that item; a set never equals a list. Or a list of
            `{"input", "output"}` mappings, or of statements that must not raise
            (`"assert f(1) == 2"`). Or any of these as JSON.
        runner: Where programs run; see `gem_sandbox.resolve`.
        max_tests: At least 1. Above this number, only the tests with the longest inputs are run.
        timeout_s: Limit of each test's CPU time in seconds; see `gem_sandbox.Limits`.
        memory_mb: Address space of each test.
        partial: Run all tests and score the share that passes. Otherwise stop at the first test
            that fails, with score 0.0.

    Returns:
        A verdict that is correct when all tests pass, with reason `passed`, `no program`, or
        `test I of N: ...` for the first test that does not pass: `wrong output`; `error`, with the
        type of the exception where it is known; `time`, `memory` or `output limit`; or `refused`,
        with what the test needs that a program in another process cannot give. Floats are equal
        within a relative 1e-9. All calls of a run together return at most 4 MB. docs/code.md says
        what is compared, and how.

    Raises:
        DataError: The tests are not in one of the forms above, or no program can pass one of them:
            it fails before it calls the program, for instance, or needs a fixture of pytest.
        BusyMachineError: The machine gave the program too little CPU time, also when it ran alone.
        UnreachableError: The sandbox failed.
        ConfigurationError: The runner is not allowed (see `gem_sandbox.resolve`), or cannot run
            tests that call the program; or `max_tests` is below 1.
    """
    began = time.perf_counter()
    # First: wrong tests or a wrong runner must raise, whatever the program is.
    sandbox = resolve(runner)
    parsed = _parsed(tests)
    # None of the tests would be one that fails.
    selected = _longest(parsed, integer("max_tests", max_tests, 1, 10**6))
    if not isinstance(program, str) or not program.strip():
        return Verdict(False, "no program", time.perf_counter() - began, 0.0)
    limits = Limits(cpu_s=timeout_s, memory_mb=memory_mb)
    # Tests of the same kind share sandbox runs, which start when their first verdict is needed.
    driver = Driver(sandbox, "candidate", program, limits)
    # A data set wraps either all expected values in a list of one item, or none of them.
    wanted = [test.expected for test in parsed if isinstance(test, _Call)]
    wrapped = all(isinstance(value, list) and len(value) == 1 for value in wanted)
    called = _called([test for test in selected if isinstance(test, _Call)], driver, wrapped)
    statements = [test for test in selected if isinstance(test, Statement)]
    asserted = failures(statements, sandbox, program, limits)
    reason = ""
    passed = 0
    for number, test in enumerate(selected, 1):
        if isinstance(test, _Printed):
            failure = _printed(test, sandbox, program, limits)
        else:
            failure = next(called if isinstance(test, _Call) else asserted)
        if not failure:
            passed += 1
            continue
        reason = reason or f"test {number} of {len(selected)}: {failure}"
        if not partial:
            break
    correct = passed == len(selected)
    score = passed / len(selected) if partial else float(correct)
    return Verdict(correct, reason or "passed", time.perf_counter() - began, score)


def verify(tests: Tests) -> None:
    """Raise if tests are in no form that `grade` takes, or if no program can pass them.

    Runs nothing, and so does not find every test that no program can pass.

    Raises:
        DataError: The message names the test.
    """
    _parsed(tests)


def _printed(test: _Printed, sandbox: Runner, program: str, limits: Limits) -> str:
    # More than twice the expected output cannot be right; stderr is limited, too.
    room = max(_OUTPUT_BYTES, 2 * len(test.expected.encode("utf-8", "replace")))
    with boundary("sandbox"):
        result = sandbox.run(program, test.stdin, replace(limits, output_bytes=room))
    if result.limit_hit is not None:
        return f"{result.limit_hit} limit"
    if result.exit_code != 0:
        return "error"
    return "" if _same_text(result.stdout, test.expected) else "wrong output"


def _called(tests: Sequence[_Call], driver: Driver, wrapped: bool) -> Iterator[str]:
    answers = driver.answers([[test.operation] for test in tests])
    for test, answer in zip(tests, answers, strict=True):
        values, failure = results(answer, 1)
        rights = [test.expected, test.expected[0]] if wrapped else [test.expected]
        yield failure or _judged(values[0], rights)


def _judged(result: Any, rights: list[Any]) -> str:
    """Return why a result equals none of the values, or ''."""
    try:
        return judged(lambda: any(_matches(value_of(result), right) for right in rights))
    except ObjectError as error:
        return f"error ({error})"


def _matches(value: Any, expected: Any) -> bool:
    """Return whether a value equals JSON data: tuples count as lists, keys as text.

    A set never equals a list: that would order the set for the program.
    """
    if isinstance(expected, list):
        if isinstance(value, (tuple, bytes, range, deque)) or hasattr(value, "__next__"):
            value = list(itertools.islice(value, len(expected) + 1))
        if not isinstance(value, list) or len(value) != len(expected):
            return False
        return all(map(_matches, value, expected))
    if isinstance(expected, dict) and isinstance(value, dict):
        texts = {_key(key): item for key, item in value.items()}
        return texts.keys() == expected.keys() and all(
            _matches(texts[key], expected[key]) for key in expected
        )
    return same(value, expected)


def _key(key: Any) -> Any:
    """Return a dictionary key as JSON writes it."""
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    return repr(key) if isinstance(key, (int, float)) else key


def _parsed(tests: Any) -> list[_Test]:
    if isinstance(tests, str):
        try:
            tests = parse(tests, "the text")
        except DataError as error:
            raise DataError(f"tests are not JSON ({error}): {tests!r:.200}") from None
    if isinstance(tests, Mapping):
        inputs: Any = tests.get("inputs")
        outputs: Any = tests.get("outputs")
        if not _list(inputs) or not _list(outputs) or len(inputs) != len(outputs) or not inputs:
            raise DataError(
                "tests must have 'inputs' and 'outputs', lists of the same length of at least 1, "
                f"got {tests!r:.200}"
            )
        name = tests.get("fn_name")
        return [_case(name, *pair) for pair in zip(inputs, outputs, strict=True)]
    if not _list(tests) or not tests:
        raise DataError(f"tests must be a mapping or a non-empty list, got {tests!r:.200}")
    return [_listed(test) for test in tests]


def _listed(test: Any) -> _Test:
    if isinstance(test, str):
        return Statement(test)
    if isinstance(test, Mapping) and {"input", "output"} <= set(test):
        return _case(test.get("fn_name"), test["input"], test["output"])
    raise DataError(
        "a test in a list must be a statement or a mapping with 'input' and 'output', "
        f"got {test!r:.200}"
    )


def _case(name: Any, arguments: Any, expected: Any) -> _Printed | _Call:
    if name is None:
        return _Printed(_text(arguments), _text(expected))
    if not isinstance(name, str) or not _list(arguments):
        raise DataError(
            "a call test must have a function name and a list of arguments, "
            f"got fn_name={name!r} and {arguments!r:.200}"
        )
    try:
        given = json.loads(json.dumps(list(arguments)))
        operation = ["call", ["function", name], [encode(item, str) for item in given]]
        # Through JSON once: tuples become lists, keys strings.
        return _Call(operation, json.loads(json.dumps(expected)), len(json.dumps(given)))
    except (TypeError, ValueError) as error:
        raise DataError(f"a call test must be JSON ({error}): {arguments!r:.200}") from None


def _longest(tests: list[_Test], max_tests: int) -> list[_Test]:
    """Return the `max_tests` tests with the longest inputs, in their original order."""
    if len(tests) <= max_tests:
        return tests
    longest = sorted(range(len(tests)), key=lambda i: -_size(tests[i]))[:max_tests]
    return [tests[i] for i in sorted(longest)]


def _size(test: _Test) -> int:
    """Return the length of a test's input."""
    if isinstance(test, _Call):
        return test.size
    return len(test.stdin if isinstance(test, _Printed) else test.source)


def _text(value: Any) -> str:
    if _list(value):
        return "\n".join(map(str, value))
    return str(value)


def _same_text(text: str, expected: str) -> bool:
    """Return whether two outputs have the same words in each line, but for rounded decimals."""
    lines, wanted = _trimmed(text), _trimmed(expected)
    return len(lines) == len(wanted) and all(map(_same_line, lines, wanted))


def _same_line(line: str, wanted: str) -> bool:
    if line == wanted:
        return True
    words, others = line.split(), wanted.split()
    return len(words) == len(others) and all(map(_same_word, words, others))


def _same_word(word: str, wanted: str) -> bool:
    """Return whether two words are equal, or decimal numbers (both with a point or an exponent)
    that differ by no more than a relative 1e-9."""
    if word == wanted:
        return True
    if max(len(word), len(wanted)) > _MAX_DIGITS:
        return False
    if not (_DECIMAL.fullmatch(word) and _DECIMAL.fullmatch(wanted)):
        return False
    number, other = float(word), float(wanted)
    return math.isfinite(other) and math.isclose(number, other, rel_tol=_TOLERANCE)


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
