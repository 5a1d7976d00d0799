"""Tests that are statements, run in turns with the program, each in a sandbox of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from gem.grading.plain import NeedsSandboxError, NotPlainError, Plain
from gem.grading.programs import Answer, Runner
from gem.grading.statements import Statement
from gem.sandbox import Executor, Limits

MAX_ROUNDS = 32
"""Turns of a test and the program: calls whose arguments depend on the calls before them."""


def failures(
    statements: Sequence[Statement], sandbox: Executor, program: str, limits: Limits
) -> Iterator[str]:
    """Give for each test why it does not pass, or ''; runs happen when the next one is asked for.

    The program's process gets calls and returns data; a test, or an expected value, never enters
    it. All plain tests share a run of the program. Any other one runs without the program, in a
    sandbox, up to where it needs a result that is not known; then the program is run with all
    operations up to there, and so on until none is new.
    """
    plain: dict[int, Plain] = {}
    for place, statement in enumerate(statements):
        try:
            plain[place] = Plain(statement)
        except NotPlainError:
            continue
    runner = Runner(sandbox, "candidate", program, limits)
    answers = runner.answers([test.operations for test in plain.values()])
    others = [statement for place, statement in enumerate(statements) if place not in plain]
    replayed = _replayed(others, sandbox, runner, limits) if others else iter(())
    for place in range(len(statements)):
        if place in plain:
            operations = plain[place].operations
            found, failure = results(next(answers), len(operations))
            try:
                yield failure or plain[place].failure(found)
            except NeedsSandboxError:
                yield next(_replayed([statements[place]], sandbox, runner, limits))
        else:
            yield next(replayed)


def results(answer: Answer, count: int) -> tuple[list[Any], str]:
    """Return the results of this many operations, or why there are none."""
    reply = answer.reply
    if answer.failure:
        return [], answer.failure
    if not isinstance(reply, list) or len(reply) != count:
        return [], "error"
    return reply, ""


def _replayed(
    statements: Sequence[Statement], sandbox: Executor, runner: Runner, limits: Limits
) -> Iterator[str]:
    # An executor looks at what a program imports to choose an interpreter that has the module.
    modules = (
        "numpy"
        if any("np" in test.preamble or "numpy" in test.source for test in statements)
        else ""
    )
    checker = Runner(sandbox, "checker", modules, limits)
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
    # The rounds of a test have a limit together, too: that of all tests alone, twice.
    until = time.monotonic() + 2 * len(tasks) * limits.wall_s
    late = False
    for _ in range(MAX_ROUNDS):
        open_ = [place for place in range(len(tasks)) if place not in failures]
        late = time.monotonic() > until
        if late or not open_:
            break
        more: dict[int, list[Any]] = {}
        for place, answer in zip(open_, checker.answers([tasks[p] for p in open_]), strict=True):
            outcome, failure = results(answer, 2)
            if not failure and outcome[0] == "more":
                more[place] = list(outcome[1])
            else:
                failures[place] = failure or _failure(*outcome)
        asked = runner.answers(list(more.values()))
        for (place, operations), answer in zip(more.items(), asked, strict=True):
            found, failure = results(answer, len(operations))
            if failure:
                failures[place] = failure
            tasks[place]["answered"] = _merged(tasks[place]["answered"], operations, found)
    left = "time limit" if late else f"refused: it takes more than {MAX_ROUNDS} rounds of calls"
    for place in range(len(tasks)):
        yield failures.get(place, left)


def _merged(answered: list[Any], operations: list[Any], found: list[Any]) -> list[Any]:
    """Return all operations with results; the first answer to one stands.

    The program gave it before it could know what is asked for later.
    """
    kept = 0
    for (operation, _), now in zip(answered, operations, strict=False):
        if operation != now:
            break
        kept += 1
    return answered[:kept] + [list(pair) for pair in zip(operations, found, strict=False)][kept:]


def _failure(what: str, details: str) -> str:
    """Return why a test does not pass, from the outcome that `inside/checker.py` gives."""
    if what == "passed":
        return ""
    if what == "failed":
        return "wrong output"
    return f"refused: {details}" if what == "refused" else f"error ({details})"
