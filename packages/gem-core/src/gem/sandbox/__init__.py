"""Executors of programs that a policy wrote: one interface, honest labels of what each isolates."""

from __future__ import annotations

from gem.errors import ConfigurationError
from gem.sandbox.base import Executor, Limits, Result
from gem.sandbox.process import SubprocessExecutor

__all__ = ["Executor", "Limits", "Result", "SubprocessExecutor", "resolve"]


def resolve(executor: str | Executor | None) -> Executor:
    """Return the executor that a parameter names.

    Args:
        executor: An executor; `"subprocess"`, the unsafe `SubprocessExecutor`; or None for one
            that isolates. There is none yet, so None is refused: programs of a policy never run
            unprotected unless that was asked for by name.

    Raises:
        ConfigurationError: Nothing isolates here, or there is no executor of this name.
    """
    if isinstance(executor, Executor):
        return executor
    if executor == "subprocess":
        return SubprocessExecutor()
    if executor is None:
        raise ConfigurationError(
            "executor=None asks for an isolating executor and none is installed; "
            "executor='subprocess' runs the policy's programs as your own user with full access "
            "to files and network (unsafe), or pass a gem.sandbox.Executor"
        )
    raise ConfigurationError(
        f"executor must be 'subprocess', a gem.sandbox.Executor or None, got {executor!r}"
    )
