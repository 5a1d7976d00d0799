"""Decides tests that are statements: test and program run in turns, in separate sandboxes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from gem.errors import DataError
from gem_sandbox import Limits, Runner
from gem_sandbox.grading.plain import NeedsSandboxError, NotPlainError, Plain
from gem_sandbox.grading.programs import Answer, Driver
from gem_sandbox.grading.statements import Statement

MAX_ROUNDS = 32
"""Most turns of a test and the program; each turn is for calls that depend on earlier results."""


def failures(
    statements: Sequence[Statement], sandbox: Runner, program: str, limits: Limits
) -> Iterator[str]:
    """Yield for each test why it does not pass, or ''; the sandbox runs lazily.

    The program's process gets calls and returns data; tests and expected values never enter it.
    All plain tests share one run of the program (`gem_sandbox.grading.plain`). Any other test runs
    in a sandbox without the program until it needs an unknown result. The program then runs with
    all operations so far, and the test runs again with the results, until it asks for nothing new.

    Raises:
        DataError: No program can pass a test.
    """
    plain: dict[int, Plain] = {}
    for place, statement in enumerate(statements):
        with contextlib.suppress(NotPlainError):
            plain[place] = Plain(statement)
    driver = Driver(sandbox, "candidate", program, limits)
    answers = driver.answers([test.operations for test in plain.values()])
    others = [statement for place, statement in enumerate(statements) if place not in plain]
    replayed = _replayed(others, sandbox, driver, limits)
    for place in range(len(statements)):
        if place in plain:
            operations = plain[place].operations
            found, failure = results(next(answers), len(operations))
            try:
                yield failure or plain[place].failure(found)
            except NeedsSandboxError:
                yield next(_replayed([statements[place]], sandbox, driver, limits))
        else:
            yield next(replayed)


def results(answer: Answer, count: int) -> tuple[list[Any], str]:
    """Return the results of `count` operations, and '' or why there are none."""
    reply = answer.reply
    if answer.failure:
        return [], answer.failure
    if not isinstance(reply, list) or len(reply) != count:
        return [], "error"
    return reply, ""


def _replayed(
    statements: Sequence[Statement], sandbox: Runner, driver: Driver, limits: Limits
) -> Iterator[str]:
    # The runner chooses an interpreter that has the modules named in the program.
    numpy = any("np" in test.preamble or "numpy" in test.source for test in statements)
    checker = Driver(sandbox, "checker", "numpy" if numpy else "", limits)
    tasks: list[dict[str, Any]] = [
        {
            "source": test.source,
            "names": sorted(test.names),
            "preamble": sorted(test.preamble),
            "answered": [],
        }
        for test in statements
    ]
    failures: dict[int, str] = {}
    # All rounds together may use twice the summed CPU time of the tests.
    most_s, late = driver.used_s + 2 * len(tasks) * limits.cpu_s, False
    for _ in range(MAX_ROUNDS):
        open_ = [place for place in range(len(tasks)) if place not in failures]
        late = driver.used_s + checker.used_s > most_s
        if late or not open_:
            break
        more: dict[int, list[Any]] = {}
        for place, answer in zip(open_, checker.answers([tasks[p] for p in open_]), strict=True):
            outcome, failure = results(answer, 2)
            if not failure and outcome[0] == "unusable":
                source = statements[place].source
                raise DataError(f"no program can pass a test: {outcome[1]}: {source!r:.200}")
            if not failure and outcome[0] == "more":
                more[place] = list(outcome[1])
            else:
                failures[place] = failure or _failure(*outcome)
        asked = driver.answers(list(more.values()))
        for (place, operations), answer in zip(more.items(), asked, strict=True):
            found, failure = results(answer, len(operations))
            if failure:
                failures[place] = failure
            tasks[place]["answered"] = _merged(tasks[place]["answered"], operations, found)
    left = "time limit" if late else f"refused: it takes more than {MAX_ROUNDS} rounds of calls"
    for place in range(len(tasks)):
        yield failures.get(place, left)


def _merged(answered: list[Any], operations: list[Any], found: list[Any]) -> list[Any]:
    """Return all operations with their results; keep the first answer to each operation.

    The program gave that one before it could know the later operations.
    """
    both = zip(answered, operations, strict=False)
    kept = [old for old, _ in itertools.takewhile(lambda pair: pair[0][0] == pair[1], both)]
    return kept + [list(pair) for pair in zip(operations, found, strict=False)][len(kept) :]


def _failure(what: str, details: str) -> str:
    """Return why a test does not pass, from the outcome that `inside/checker.py` returned."""
    failures = {"passed": "", "failed": "wrong output", "refused": f"refused: {details}"}
    return failures.get(what, f"error ({details})")
