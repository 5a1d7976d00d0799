"""Runs of our own programs in a sandbox, with what they answer, test by test."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import marshal
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gem.blame import boundary
from gem.errors import ConfigurationError
from gem.sandbox import (
    AutoExecutor,
    BwrapExecutor,
    Executor,
    Limits,
    Result,
    SubprocessExecutor,
)

_INSIDE = Path(__file__).with_name("inside")
_ROOM = 4 << 20
"""Bytes of what a run may answer."""
_SLACK = 0.25
"""Share of a test's time that several in one run get more, so that one that began early has had all
of its own when the run ends."""


@dataclass(frozen=True)
class Answer:
    """What became of one task."""

    reply: Any = None
    """JSON data, as `inside/batch.py` got it from the program's side."""
    failure: str = ""
    """Why there is no reply: `error`, or a limit."""


class Runner:
    """One program of ours with the policy's in it, or alone, in a sandbox."""

    def __init__(self, sandbox: Executor, side: str, program: str, limits: Limits) -> None:
        """Store what is run, and how.

        Args:
            sandbox: Where it runs.
            side: A module of `inside` with a function `main`.
            program: What `main` is called with.
            limits: Limits of each task.
        """
        self._sandbox = sandbox
        # Others may have another version of Python.
        own = isinstance(sandbox, (AutoExecutor, BwrapExecutor, SubprocessExecutor))
        self._text = functools.partial(_text, portable=not own)
        self._side = side
        self._program = program
        self._limits = dataclasses.replace(limits, output_bytes=_ROOM)

    def answers(self, tasks: Sequence[Any]) -> Iterator[Answer]:
        """Give the answer to each task, in order; programs run when the next one is asked for.

        All tasks share a run, each in a process of its own. Those that a limit kept from their
        turn, or from their time, have a run to themselves.

        Raises:
            ConfigurationError: The executor cannot run our programs at all.
        """
        if not tasks:
            return
        wall_s = self._limits.wall_s
        several = len(tasks) > 1
        run = self._run(tasks, wall_s * (1 + _SLACK) if several else wall_s)
        for number, task in enumerate(tasks):
            if number in run.replies:
                seconds, reply = run.replies[number]
                late = several and seconds > wall_s
                yield Answer(failure="time limit") if late else Answer(reply)
            elif run.load_error is not None:
                yield Answer(failure=run.load_error)
            elif not several or run.had_its_time(number, wall_s):
                yield Answer(failure=run.failure)
            else:
                yield from self.answers([task])

    def _run(self, tasks: Sequence[Any], wall_s: float) -> _Run:
        limits = dataclasses.replace(self._limits, wall_s=wall_s)
        text = self._text(self._side, self._program)
        run = _Run(self._in_sandbox(text, json.dumps(list(tasks)), limits))
        if not run.began and run.result.limit_hit is None:
            result = self._in_sandbox(self._text("candidate", ""), "[]", limits)
            if not _Run(result).began:
                last = result.stderr.strip().rpartition("\n")[2]
                raise ConfigurationError(
                    f"executor {type(self._sandbox).__name__} cannot run tests that call the "
                    f"program ({last or 'no output'}); use executor='bwrap' or 'auto'"
                )
        return run

    def _in_sandbox(self, text: str, stdin: str, limits: Limits) -> Result:
        with boundary("sandbox"):
            return self._sandbox.run(text, stdin, limits)


class _Run:
    """What a run has written, line by line; the policy's program may have written any of it."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.began = False
        self.load_error: str | None = None
        self.replies: dict[int, tuple[float, Any]] = {}
        self._starts: dict[int, float] = {}
        for line in result.stdout.split("\n"):
            try:
                self._read(json.loads(line))
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
                # Cut at a limit, or forged.
                continue

    def _read(self, message: Any) -> None:
        kind, *rest = message
        if kind == "began":
            self.began = True
        elif kind == "load":
            self.load_error = raised(rest[0])
        elif kind == "task":
            number, start = rest
            self._starts.setdefault(number, float(start))
        elif isinstance(kind, int):
            seconds, reply = rest
            self.replies.setdefault(kind, (float(seconds), reply))

    def had_its_time(self, number: int, wall_s: float) -> bool:
        """Return whether a task that has no reply would not have one alone."""
        if number not in self._starts:
            return number == 0
        if self.result.limit_hit is None or number + 1 in self._starts:
            return True
        # Other limits may be met by what several have in common.
        return self.result.limit_hit == "time" and self._starts[number] <= _SLACK * wall_s

    @property
    def failure(self) -> str:
        return f"{self.result.limit_hit} limit" if self.result.limit_hit else "error"


def raised(result: Any) -> str:
    """Return the failure that an exception of a program is: `error (TYPE)` or `memory limit`."""
    names = result.get("x") if isinstance(result, dict) else None
    name = names[0] if isinstance(names, list) and names else None
    if name == "MemoryError":
        return "memory limit"
    return f"error ({name:.60})" if isinstance(name, str) and name.isidentifier() else "error"


def _text(side: str, program: str, portable: bool = False) -> str:
    """Return the program that runs one side.

    The policy's program is a literal in it, where executors see what it imports; they must not see
    the names of modules in ours. It is compiled here, which takes longer than to run it, unless
    `portable`: for another version of Python.
    """
    return f"PROGRAM = {program!r}\n{(_portable if portable else _compiled)(side)}"


@functools.cache
def _compiled(side: str) -> str:
    codes = [
        compile(_bare(ast.parse(source)), "gem", "exec", dont_inherit=True, optimize=2)
        for source in _sources(side)
    ]
    # Hexadecimal, as nothing has to be imported for it.
    text = marshal.dumps(list(map(_unlined, codes))).hex()
    return (
        "import marshal\n"
        "SCOPE = {'__name__': 'gem'}\n"
        f"for code in marshal.loads(bytes.fromhex({text!r})):\n"
        "    exec(code, SCOPE)\n"
        "SCOPE['main'](PROGRAM)\n"
    )


@functools.cache
def _portable(side: str) -> str:
    texts = [source.encode().hex() for source in _sources(side)]
    return (
        "SCOPE = {'__name__': 'gem'}\n"
        f"for text in {texts!r}:\n"
        "    exec(bytes.fromhex(text), SCOPE)\n"
        "SCOPE['main'](PROGRAM)\n"
    )


def _sources(side: str) -> list[str]:
    return [(_INSIDE / f"{name}.py").read_text("utf-8") for name in ("encoding", "batch", side)]


def _unlined(code: types.CodeType) -> types.CodeType:
    """Take the numbers of lines away, a quarter of the code."""
    constants = tuple(
        _unlined(part) if isinstance(part, types.CodeType) else part for part in code.co_consts
    )
    return code.replace(co_linetable=b"", co_consts=constants)


def _bare(tree: ast.Module) -> ast.Module:
    """Take the annotations of functions away, which would be made with each of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return tree
