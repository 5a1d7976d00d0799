"""Runs several tasks in one sandbox run, each in its own process; writes answers to stdout."""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

leave = os._exit
_write, _dumps = os.write, json.dumps
_fork, _waitpid = os.fork, os.waitpid


def begin() -> tuple[Any, int]:
    """Read stdin, replace the streams by /dev/null; return the input and a descriptor for answers.

    From here on, prints are lost and stdin is empty.
    """
    task = json.loads(sys.stdin.read())
    answers = os.dup(1)
    silence()
    say(answers, ["began"])
    return task, answers


def silence() -> None:
    """Replace the streams by /dev/null."""
    for mode, targets in ((os.O_RDONLY, (0,)), (os.O_WRONLY, (1, 2))):
        nothing = os.open(os.devnull, mode)
        for target in targets:
            os.dup2(nothing, target)
        os.close(nothing)


def say(answers: int, message: Any) -> None:
    """Write a message as one line of JSON."""
    line = memoryview(_dumps(message).encode() + b"\n")
    while line:
        line = line[_write(answers, line) :]


def work(tasks: list[Any], answers: int, solve: Callable[[Any], Any]) -> None:
    """Solve tasks one after the other, each in a fork; exit at the end.

    The last task needs no fork.
    """
    for task, last, reply in _begun(tasks, answers):
        child = 0 if last else _fork()
        if child == 0:
            reply(solve(task))
            leave(0)
        _waitpid(child, 0)
    leave(0)


def feed(tasks: list[Any], answers: int, solve: Callable[[Any, bool, list[Any]], None]) -> None:
    """Do as `work` for tasks that another process solves; stop when that process has ended.

    `solve(task, is_last, answer)` appends to the list `answer` what the process returned.
    """
    for task, last, reply in _begun(tasks, answers):
        answer: list[Any] = []
        try:
            solve(task, last, answer)
        except (EOFError, OSError, ValueError):
            # The other process died, or wrote something that is not a message.
            last = True
        reply(answer)
        if last:
            break
    leave(0)


def _begun(tasks: list[Any], answers: int) -> Iterator[tuple[Any, bool, Callable[[Any], None]]]:
    """Yield each task, whether it is the last, and the function that writes its answer.

    Before each task, writes `["task", number]`; with the answer, `[number, answer]`.
    """
    for number, task in enumerate(tasks):
        say(answers, ["task", number])
        # The caller uses the function before the next task changes these names.
        yield (
            task,
            number + 1 == len(tasks),
            lambda answer: say(answers, [number, answer]),  # noqa: B023
        )
