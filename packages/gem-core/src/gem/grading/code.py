"""Programs: run against tests in a sandbox."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gem.blame import boundary
from gem.errors import DataError
from gem.grading.verdict import Verdict
from gem.sandbox import Executor, Limits, resolve

Tests: TypeAlias = "str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]"

_SHOWN = 200
# Both read their task from stdin and are run after the program, whose own output is cut off at the
# marker. The expected value of a call never enters the sandbox.
_CALL = """
import json as _json, sys as _sys
_task = _json.loads(_sys.stdin.read())
_function = globals().get(_task["function"])
if _function is None:
    _function = getattr(Solution(), _task["function"])
_value = _function(*_task["arguments"])
print(_task["marker"] + _json.dumps(_value, default=list))
"""
_CHECK = """
import json as _json, sys as _sys
_task = _json.loads(_sys.stdin.read())
exec(_task["check"], globals())
print(_task["marker"] + "true")
"""


@dataclass(frozen=True)
class _Test:
    """One test: what a run gets, and what must come back."""

    stdin: str
    expected: Any
    driver: str = ""
    """Appended to the program; empty for a test of stdin and stdout."""
    marker: str = ""
    """Precedes the value that the driver prints."""

    def passes(self, stdout: str) -> bool:
        if not self.driver:
            return _trimmed(stdout) == _trimmed(self.expected)
        _, found, value = stdout.rpartition(self.marker)
        try:
            return bool(found) and _same(json.loads(value), self.expected)
        except ValueError:
            return False


def grade(
    program: str | None,
    tests: Tests,
    *,
    executor: str | Executor | None = None,
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
            of a class `Solution`, and each output its value. Or a list of `{"input", "output"}`
            mappings, or of statements that must not raise (`"assert f(1) == 2"`). Or any of these
            as JSON.
        executor: Where programs run; see `gem.sandbox.resolve`.
        max_tests: Above this number, only the tests with the longest inputs are run.
        timeout_s: Wall-clock limit of each test.
        memory_mb: Address space of each test.
        partial: Run all tests and score the share that passes, instead of 1.0 or 0.0 at the first
            that does not.

    Returns:
        A verdict that is correct when all tests pass, with reason `passed`, `no program`, or
        `test I of N: ...` for the first test that does not pass: `wrong output`, `error`, or
        `time`, `memory` or `output limit`. Output is compared without trailing whitespace.

    Raises:
        DataError: The tests are not in one of the forms above.
        ConfigurationError: The executor is not allowed; see `gem.sandbox.resolve`.
    """
    began = time.perf_counter()
    # Resolved and parsed first: wrong tests or a wrong executor are no fault of the program.
    sandbox = resolve(executor)
    selected = _longest(_parsed(tests), max_tests)
    if not isinstance(program, str) or not program.strip():
        return Verdict(False, "no program", time.perf_counter() - began, 0.0)
    limits = Limits(wall_s=timeout_s, memory_mb=memory_mb)
    reason = ""
    passed = 0
    for number, test in enumerate(selected, 1):
        with boundary("sandbox"):
            result = sandbox.run(f"{program}\n{test.driver}", test.stdin, limits)
        if result.limit_hit is not None:
            failure = f"{result.limit_hit} limit"
        elif result.exit_code != 0:
            failure = "error"
        elif not test.passes(result.stdout):
            failure = "wrong output"
        else:
            passed += 1
            continue
        reason = reason or f"test {number} of {len(selected)}: {failure}"
        if not partial:
            break
    correct = passed == len(selected)
    score = passed / len(selected) if partial else float(correct)
    return Verdict(correct, reason or "passed", time.perf_counter() - began, score)


def _parsed(tests: Any) -> list[_Test]:
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except ValueError as error:
            raise DataError(f"tests are not JSON ({error}): {tests[:_SHOWN]!r}") from None
    if isinstance(tests, Mapping):
        inputs: Any = tests.get("inputs")
        outputs: Any = tests.get("outputs")
        if not _list(inputs) or not _list(outputs) or len(inputs) != len(outputs) or not inputs:
            raise DataError(
                "tests must have 'inputs' and 'outputs', lists of the same length of at least 1, "
                f"got {_short(tests)}"
            )
        name = tests.get("fn_name")
        if name is not None:
            return [_call(name, *pair) for pair in zip(inputs, outputs, strict=True)]
        return [_Test(*map(_text, pair)) for pair in zip(inputs, outputs, strict=True)]
    if not _list(tests) or not tests:
        raise DataError(f"tests must be a mapping or a non-empty list, got {_short(tests)}")
    return [_listed(test) for test in tests]


def _listed(test: Any) -> _Test:
    if isinstance(test, str):
        marker = secrets.token_hex(16)
        task = json.dumps({"check": test, "marker": marker})
        return _Test(task, True, _CHECK, marker)
    if isinstance(test, Mapping) and {"input", "output"} <= set(test):
        if test.get("fn_name") is not None:
            return _call(test["fn_name"], test["input"], test["output"])
        return _Test(_text(test["input"]), _text(test["output"]))
    raise DataError(
        "a test in a list must be a statement or a mapping with 'input' and 'output', "
        f"got {_short(test)}"
    )


def _call(name: Any, arguments: Any, expected: Any) -> _Test:
    if not isinstance(name, str) or not _list(arguments):
        raise DataError(
            "a call test must have a function name and a list of arguments, "
            f"got fn_name={name!r} and {_short(arguments)}"
        )
    marker = secrets.token_hex(16)
    try:
        task = json.dumps({"function": name, "arguments": list(arguments), "marker": marker})
        # Through JSON once, as the program's value is: tuples become lists, keys strings.
        return _Test(task, json.loads(json.dumps(expected)), _CALL, marker)
    except (TypeError, ValueError) as error:
        raise DataError(f"a call test must be JSON ({error}): {_short(arguments)}") from None


def _longest(tests: list[_Test], max_tests: int) -> list[_Test]:
    """Return at most `max_tests` tests, those with the longest inputs, in their old order."""
    if len(tests) <= max_tests:
        return tests
    longest = sorted(range(len(tests)), key=lambda i: -len(tests[i].stdin))[:max_tests]
    return [tests[i] for i in sorted(longest)]


def _text(value: Any) -> str:
    if _list(value):
        return "\n".join(map(str, value))
    return value if isinstance(value, str) else str(value)


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _same(value: Any, expected: Any) -> bool:
    # Data sets wrap a call's value in a list of one.
    if value == expected or (isinstance(expected, list) and [value] == expected):
        return True
    if isinstance(value, float) and isinstance(expected, (int, float)):
        return abs(value - expected) <= 1e-9 * max(1.0, abs(expected))
    return False


def _list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
