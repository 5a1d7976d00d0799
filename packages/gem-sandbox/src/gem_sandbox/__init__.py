"""Runners of a policy's programs: the interface, the implementations, `resolve` by name.

`base` is the interface; `bwrap`, `docker` and `process` implement it; `audit` and `attacks` test
it. Installed packages add runners through the entry-point group `gem.runners`. Imports nothing
of environments, tools or grading.
"""

from __future__ import annotations

import functools

from gem.errors import ConfigurationError
from gem.plugins import installed, load
from gem_sandbox.base import Limits, Result, Runner, Session
from gem_sandbox.bwrap import BwrapRunner
from gem_sandbox.docker import DockerRunner
from gem_sandbox.process import SubprocessRunner

__all__ = [
    "ENTRY_POINT_GROUP",
    "RUNNERS",
    "BwrapRunner",
    "DockerRunner",
    "Limits",
    "Result",
    "Runner",
    "Session",
    "SubprocessRunner",
    "resolve",
    "runner_class",
    "runner_names",
]

ENTRY_POINT_GROUP = "gem.runners"

RUNNERS: dict[str, type[Runner]] = {
    "bwrap": BwrapRunner,
    "docker": DockerRunner,
    "subprocess": SubprocessRunner,
}
"""Built-in runners by name. All but `subprocess` isolate; under `subprocess` a program can read
golds and the expected output of its own tests."""


def runner_names() -> list[str]:
    """Return the names of the built-in runners, then those of installed packages."""
    others = (name for name in installed(ENTRY_POINT_GROUP) if name not in RUNNERS)
    return [*RUNNERS, *others]


def runner_class(name: str) -> type[Runner]:
    """Return the runner of a name; a built-in one cannot be replaced by an installed package's.

    Raises:
        ConfigurationError: The name is unknown, or does not name an importable `Runner`.
    """
    return RUNNERS[name] if name in RUNNERS else _installed(name)


@functools.cache
def _installed(name: str) -> type[Runner]:
    # Ignored: mypy wants a concrete class as `base`.
    return load(ENTRY_POINT_GROUP, name, Runner, RUNNERS)  # type: ignore[type-abstract]


def resolve(runner: str | Runner | None) -> Runner:
    """Return the runner that a parameter names.

    Args:
        runner: A runner; a name in `runner_names()`; or None for `bwrap`, the strongest
            built-in one that isolates and runs any program. Programs run without isolation only if
            the caller names a runner that has none.

    Raises:
        ConfigurationError: The name is unknown, or the runner is not available here.
        MissingExtraError: The runner needs a package that is not installed.
    """
    if isinstance(runner, Runner):
        return runner
    if runner is None:
        try:
            return BwrapRunner()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"runner=None asks for an isolating runner: {error}; or pass "
                "runner='subprocess', which runs the policy's programs as your own user with "
                "full access to files, answers and network (unsafe), or a gem_sandbox.Runner"
            ) from error
    return runner_class(runner)()
