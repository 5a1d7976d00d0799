"""Several tasks in one run, each in a process of its own, their answers on the real stdout."""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

leave = os._exit
_write, _now, _dumps = os.write, time.perf_counter, json.dumps
_fork, _waitpid = os.fork, os.waitpid
_began = _now()


def begin() -> tuple[Any, int]:
    """Read what stdin has and take the streams away; return the one and where answers go.

    What is printed from here on is lost, and stdin is at its end.
    """
    task = json.loads(sys.stdin.read())
    answers = os.dup(1)
    for mode, targets in ((os.O_RDONLY, (0,)), (os.O_WRONLY, (1, 2))):
        nothing = os.open(os.devnull, mode)
        for target in targets:
            os.dup2(nothing, target)
        os.close(nothing)
    say(answers, ["began"])
    return task, answers


def say(answers: int, message: Any) -> None:
    """Write a line."""
    line = memoryview(_dumps(message).encode() + b"\n")
    while line:
        line = line[_write(answers, line) :]


def work(tasks: list[Any], answers: int, solve: Callable[[Any], Any]) -> None:
    """Solve tasks one after the other, each in a fork, and end the process.

    Answers are `[number, seconds since the beginning of that task, answer]`; `["task", number,
    seconds since the beginning of the run]` goes before each. The last one needs no fork.
    """
    for number, task in enumerate(tasks):
        began = _now() if number else _began
        say(answers, ["task", number, _now() - _began])
        last = number + 1 == len(tasks)
        child = 0 if last else _fork()
        if child == 0:
            answer = solve(task)
            say(answers, [number, _now() - began, answer])
            leave(0)
        _waitpid(child, 0)
    leave(0)


def feed(tasks: list[Any], answers: int, solve: Callable[[Any, bool, list[Any]], None]) -> None:
    """Do the same for tasks that another process solves, up to where that has ended.

    `solve(task, whether it is the last, answer)` extends the answer as far as there is one.
    """
    for number, task in enumerate(tasks):
        began = _now() if number else _began
        say(answers, ["task", number, _now() - _began])
        answer: list[Any] = []
        ended = False
        try:
            solve(task, number + 1 == len(tasks), answer)
        except (EOFError, OSError, ValueError):
            # The other process is gone, or writes what is no message.
            ended = True
        say(answers, [number, _now() - began, answer])
        if ended:
            break
    leave(0)
