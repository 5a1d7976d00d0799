"""Executors of a policy's programs: the interface, the implementations, `resolve` by name.

`base` is the interface; `bwrap`, `docker`, `monty`, `process` and `auto` implement it; `audit` and
`attacks` test it. Imports nothing of environments, tools or grading.
"""

from __future__ import annotations

from collections.abc import Callable

from gem.errors import ConfigurationError
from gem.sandbox.auto import AutoExecutor
from gem.sandbox.base import Executor, Limits, Result, Session
from gem.sandbox.bwrap import BwrapExecutor
from gem.sandbox.docker import DockerExecutor
from gem.sandbox.monty import MontyExecutor
from gem.sandbox.process import SubprocessExecutor

__all__ = [
    "EXECUTORS",
    "AutoExecutor",
    "BwrapExecutor",
    "DockerExecutor",
    "Executor",
    "Limits",
    "MontyExecutor",
    "Result",
    "Session",
    "SubprocessExecutor",
    "resolve",
]

EXECUTORS: dict[str, Callable[[], Executor]] = {
    "bwrap": BwrapExecutor,
    "monty": MontyExecutor,
    "auto": AutoExecutor,
    "docker": DockerExecutor,
    "subprocess": SubprocessExecutor,
}
"""Executors by name. All but `subprocess` isolate; under `subprocess` a program can read golds and
the expected output of its own tests."""


def resolve(executor: str | Executor | None) -> Executor:
    """Return the executor that a parameter names.

    Args:
        executor: An executor; a name in `EXECUTORS`; or None for `bwrap`, the strongest one that
            isolates and runs any program. Programs run without isolation only if the caller names
            `subprocess`.

    Raises:
        ConfigurationError: The name is unknown, or the executor is not available here.
        MissingExtraError: The executor needs a package that is not installed.
    """
    if isinstance(executor, Executor):
        return executor
    if executor is None:
        try:
            return BwrapExecutor()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"executor=None asks for an isolating executor: {error}; or pass "
                "executor='subprocess', which runs the policy's programs as your own user with "
                "full access to files, answers and network (unsafe), or a gem.sandbox.Executor"
            ) from error
    if executor not in EXECUTORS:
        raise ConfigurationError(
            f"executor must be one of {', '.join(map(repr, EXECUTORS))}, a gem.sandbox.Executor "
            f"or None, got {executor!r}"
        )
    return EXECUTORS[executor]()
