"""Executors of a policy's programs: the interface, the implementations, `resolve` by name.

`base` is the interface; `bwrap`, `docker` and `process` implement it; `audit` and `attacks` test
it. Installed packages add executors through the entry-point group `gem.runners`. Imports nothing
of environments, tools or grading.
"""

from __future__ import annotations

import functools

from gem.errors import ConfigurationError
from gem.plugins import installed, load
from gem_sandbox.base import Executor, Limits, Result, Session
from gem_sandbox.bwrap import BwrapExecutor
from gem_sandbox.docker import DockerExecutor
from gem_sandbox.process import SubprocessExecutor

__all__ = [
    "ENTRY_POINT_GROUP",
    "EXECUTORS",
    "BwrapExecutor",
    "DockerExecutor",
    "Executor",
    "Limits",
    "Result",
    "Session",
    "SubprocessExecutor",
    "executor_class",
    "executor_names",
    "resolve",
]

ENTRY_POINT_GROUP = "gem.runners"

EXECUTORS: dict[str, type[Executor]] = {
    "bwrap": BwrapExecutor,
    "docker": DockerExecutor,
    "subprocess": SubprocessExecutor,
}
"""Built-in executors by name. All but `subprocess` isolate; under `subprocess` a program can read
golds and the expected output of its own tests."""


def executor_names() -> list[str]:
    """Return the names of the built-in executors, then those of installed packages."""
    others = (name for name in installed(ENTRY_POINT_GROUP) if name not in EXECUTORS)
    return [*EXECUTORS, *others]


def executor_class(name: str) -> type[Executor]:
    """Return the executor of a name; a built-in one cannot be replaced by an installed package's.

    Raises:
        ConfigurationError: The name is unknown, or does not name an importable `Executor`.
    """
    return EXECUTORS[name] if name in EXECUTORS else _installed(name)


@functools.cache
def _installed(name: str) -> type[Executor]:
    # Ignored: mypy wants a concrete class as `base`.
    return load(ENTRY_POINT_GROUP, name, Executor, EXECUTORS)  # type: ignore[type-abstract]


def resolve(executor: str | Executor | None) -> Executor:
    """Return the executor that a parameter names.

    Args:
        executor: An executor; a name in `executor_names()`; or None for `bwrap`, the strongest
            built-in one that isolates and runs any program. Programs run without isolation only if
            the caller names an executor that has none.

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
                "full access to files, answers and network (unsafe), or a gem_sandbox.Executor"
            ) from error
    return executor_class(executor)()
