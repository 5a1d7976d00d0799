"""Runs the programs of `gem_sandbox.grading.inside` in a sandbox; returns one `Answer` per task."""

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
from gem_sandbox import BwrapRunner, Limits, Result, Runner, SubprocessRunner

_INSIDE = Path(__file__).with_name("inside")
_ROOM = 4 << 20
"""Most bytes of output of one run."""
_SLACK = 0.25
"""Extra time of a run that tasks share, as a share of the limit of one task. A task that began
within it has had all of its own time when the run ends, and need not run again."""


@dataclass(frozen=True)
class Answer:
    """The outcome of one task."""

    reply: Any = None
    """JSON data that `inside/batch.py` wrote."""
    failure: str = ""
    """Why there is no reply: `error`, or the limit that was hit."""


class Driver:
    """Runs one module of `inside` in a sandbox, with the policy's program or without."""

    def __init__(self, sandbox: Runner, side: str, program: str, limits: Limits) -> None:
        """Store the parameters; nothing runs yet.

        Args:
            sandbox: Runner.
            side: A module of `inside` with a function `main`.
            program: Argument of `main`.
            limits: Limits of each task.
        """
        self._sandbox = sandbox
        # Other runners may run another version of Python, which cannot load our bytecode.
        own = isinstance(sandbox, (BwrapRunner, SubprocessRunner))
        self._portable = not own
        self._side = side
        self._program = program
        self._limits = dataclasses.replace(limits, output_bytes=_ROOM)
        self.used_s = 0.0
        """CPU time of all runs so far; wall time where the runner does not measure it."""

    def answers(self, tasks: Sequence[Any]) -> Iterator[Answer]:
        """Yield the answer to each task, in order; the sandbox runs lazily.

        Tasks share a run, each in its own process; the run has the limits of one task, and some
        more time. Where a limit ends the run, or the program does, the tasks that were kept from
        starting or from their full time share another run, in which the first of them has all of
        its time.

        Raises:
            ConfigurationError: The runner cannot run the programs of `inside` at all.
        """
        left = list(tasks)
        cpu_s, own_s = self._limits.cpu_s, self._limits.own_s
        while left:
            run = self._run(left)
            for number in range(len(left)):
                if number in run.replies:
                    seconds, reply = run.replies[number]
                    yield Answer(failure="time limit") if seconds > cpu_s else Answer(reply)
                elif run.load_error is not None:
                    yield Answer(failure=run.load_error)
                elif run.had_its_time(number, _SLACK * cpu_s, _SLACK * own_s):
                    yield Answer(failure=run.failure)
                else:
                    left = left[number:]
                    break
            else:
                return

    def _run(self, tasks: Sequence[Any]) -> _Run:
        limits = self._limits
        if len(tasks) > 1:
            limits = dataclasses.replace(limits, cpu_s=(1 + _SLACK) * limits.cpu_s)
        given = json.dumps(list(tasks))
        run = _Run(self._in_sandbox(self._side, self._program, given, limits))
        if not run.began and run.result.limit_hit is None:
            result = self._in_sandbox("candidate", "", "[]", limits)
            if not _Run(result).began:
                last = result.stderr.strip().rpartition("\n")[2]
                raise ConfigurationError(
                    f"runner {type(self._sandbox).__name__} cannot run tests that call the "
                    f"program ({last or 'no output'}); use runner='bwrap'"
                )
        return run

    def _in_sandbox(self, side: str, program: str, stdin: str, limits: Limits) -> Result:
        # The policy's program is a literal, so that runners see its imports.
        text = f"PROGRAM = {program!r}\n{_loader(side, self._portable)}"
        with boundary("sandbox"):
            result = self._sandbox.run(text, stdin, limits)
        self.used_s += result.seconds if result.cpu_s is None else result.cpu_s
        return result


class _Run:
    """The parsed output of a run. Untrusted: the policy's program may have written any line."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.began = False
        self.load_error: str | None = None
        self.replies: dict[int, tuple[float, Any]] = {}
        self._starts: dict[int, tuple[float, float]] = {}
        for line in result.stdout.split("\n"):
            try:
                self._read(json.loads(line))
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
                # A line cut off at the output limit, or forged by the policy's program.
                continue

    def _read(self, message: Any) -> None:
        kind, *rest = message
        if kind == "began":
            self.began = True
        elif kind == "load":
            self.load_error = raised(rest[0])
        elif kind == "task":
            number, used_s, passed_s = rest
            self._starts.setdefault(number, (float(used_s), float(passed_s)))
        elif isinstance(kind, int):
            seconds, reply = rest
            self.replies.setdefault(kind, (float(seconds), reply))

    def had_its_time(self, number: int, cpu_s: float, wall_s: float) -> bool:
        """Return whether a task without a reply would get none in a run of its own either.

        Args:
            number: The task.
            cpu_s: CPU time that the run has beyond the limit of a task.
            wall_s: The same of own time. What passed until the task began was not more.
        """
        if number == 0:
            return True
        if number not in self._starts:
            return False
        if self.result.limit_hit is None or number + 1 in self._starts:
            return True
        # Several tasks together may have hit any other limit.
        used_s, passed_s = self._starts[number]
        return self.result.limit_hit == "time" and used_s <= cpu_s and passed_s <= wall_s

    @property
    def failure(self) -> str:
        return f"{self.result.limit_hit} limit" if self.result.limit_hit else "error"


def raised(result: Any) -> str:
    """Return the failure for a program's exception: `error (TYPE)` or `memory limit`."""
    names = result.get("x") if isinstance(result, dict) else None
    name = names[0] if isinstance(names, list) and names else None
    if name == "MemoryError":
        return "memory limit"
    return f"error ({name:.60})" if isinstance(name, str) and name.isidentifier() else "error"


@functools.cache
def _loader(side: str, portable: bool) -> str:
    """Return the source that loads our modules of one side and calls its `main` with `PROGRAM`.

    The modules are hex-encoded, so that runners do not see their imports; decoding needs none.
    They are compiled here, once, because that takes longer than running them; `portable` sends
    source, for another version of Python.
    """
    names = ["encoding", "batch", *(["stand_in"] if side == "checker" else []), side]
    texts = [(_INSIDE / f"{name}.py").read_text("utf-8") for name in names]
    if portable:
        parts = [text.encode() for text in texts]
    else:
        compiled = functools.partial(compile, filename="gem", mode="exec", dont_inherit=True)
        codes = [compiled(_bare(ast.parse(text)), optimize=2) for text in texts]
        parts = [marshal.dumps(_unlined(code)) for code in codes]
    return (
        f"{'' if portable else 'import marshal'}\n"
        "SCOPE = {'__name__': 'gem'}\n"
        f"for part in map(bytes.fromhex, {[part.hex() for part in parts]}):\n"
        f"    exec({'part' if portable else 'marshal.loads(part)'}, SCOPE)\n"
        "SCOPE['main'](PROGRAM)\n"
    )


def _unlined(code: types.CodeType) -> types.CodeType:
    """Remove line numbers, a quarter of the bytecode's size."""
    constants = tuple(
        _unlined(part) if isinstance(part, types.CodeType) else part for part in code.co_consts
    )
    return code.replace(co_linetable=b"", co_consts=constants)


def _bare(tree: ast.Module) -> ast.Module:
    """Remove annotations, which Python would evaluate when it defines each function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return tree
