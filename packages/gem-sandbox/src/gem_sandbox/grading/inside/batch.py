"""Runs several tasks in one sandbox run, each in its own process; writes answers to stdout."""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

leave = os._exit
_write, _dumps = os.write, json.dumps
_fork, _waitpid = os.fork, os.waitpid
_times, _now = os.times, time.perf_counter
_began = _now()


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


def used() -> float:
    """Return the CPU time of this process and of the children that it waited for, in seconds."""
    return sum(_times()[:4])


def work(tasks: list[Any], answers: int, solve: Callable[[Any], Any]) -> None:
    """Solve tasks one after the other, each in a fork; exit at the end.

    The last task needs no fork.
    """
    for task, last, reply, spent in _begun(tasks, answers, used):
        child = 0 if last else _fork()
        if child == 0:
            answer = solve(task)
            # A fork begins with none of its parent's time.
            reply(answer, used() - spent if last else used())
            leave(0)
        _waitpid(child, 0)
    leave(0)


def feed(
    tasks: list[Any],
    answers: int,
    solve: Callable[[Any, bool, list[Any]], None],
    used: Callable[[], float],
) -> None:
    """Do as `work` for tasks that another process solves; stop when that process has ended.

    `solve(task, is_last, answer)` appends to the list `answer` what the process returned. `used()`
    is the CPU time of that process and its children.
    """
    for task, last, reply, spent in _begun(tasks, answers, used):
        answer: list[Any] = []
        try:
            solve(task, last, answer)
        except (EOFError, OSError, ValueError):
            # The other process died, or wrote something that is not a message.
            last = True
        reply(answer, used() - spent)
        if last:
            break
    leave(0)


def _begun(
    tasks: list[Any], answers: int, used: Callable[[], float]
) -> Iterator[tuple[Any, bool, Callable[[Any, float], None], float]]:
    """Yield each task, whether it is the last, what writes its answer, and the CPU time so far.

    Before each task, writes `["task", number, seconds of CPU time so far, of wall time]`; with the
    answer, `[number, seconds of CPU time, answer]`.
    """
    for number, task in enumerate(tasks):
        spent = used()
        say(answers, ["task", number, spent, _now() - _began])
        # The caller uses the function before the next task changes the number.
        yield (
            task,
            number + 1 == len(tasks),
            lambda answer, seconds: say(answers, [number, seconds, answer]),  # noqa: B023
            spent if number else 0.0,
        )
