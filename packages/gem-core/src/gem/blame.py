"""The cause of a failure (environment, tool, grader, ...), recorded on the exception.

Code that calls a tool, a grader or a sandbox does so inside `with boundary(cause)`. An exception
that leaves the block carries the cause from there on. The innermost boundary counts: if a sandbox
fails under a grader, the cause is the sandbox. Imports nothing of gem.
"""

from __future__ import annotations

from contextvars import Context, ContextVar
from typing import Literal, TypeAlias, cast

Cause: TypeAlias = Literal[
    "environment", "tool", "grader", "sandbox", "engine", "template", "budget"
]
"""What made an episode fail, see `CAUSES`.

Never the policy: its actions end an episode (`EpisodeEnd`) or cost reward, and are trained on. A
policy that could make its episode fail could avoid a bad reward.
"""

CAUSES: dict[Cause, str] = {
    "environment": "the environment raised, exceeded its time limit or broke its contract",
    "tool": "a tool failed, or the server behind it is gone",
    "grader": "what judges answers failed",
    "sandbox": "what runs programs failed",
    "engine": "the engine that samples, or the trainer around it, lost the episode",
    "template": "the chat template or the tokenizer cannot render what the environment said",
    "budget": "the first prompt is longer than the budget allows: task and limit do not agree",
}
"""What each cause means, for users."""

_KEY = "_gem_cause"
# An exception of foreign code may look up attributes in a way of its own.
_DICT, _CAUSE = (vars(BaseException)[name] for name in ("__dict__", "__cause__"))
_INSIDE: ContextVar[Cause | None] = ContextVar("gem_boundary", default=None)


def boundary(cause: Cause) -> _Boundary:
    """Blame exceptions that leave this block on `cause`, unless an inner boundary has done so.

    The exceptions propagate; `cause_of` returns their cause.
    """
    return _Boundary(cause)


class _Boundary:
    # Not `contextlib.contextmanager`: it assigns to exceptions, and some of them are frozen.
    def __init__(self, cause: Cause) -> None:
        self._cause = cause

    def __enter__(self) -> None:
        self._token = _INSIDE.set(self._cause)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _INSIDE.reset(self._token)
        if error is not None and cause_of(error) is None:
            record_cause(error, self._cause)


def record_cause(error: BaseException, cause: Cause | None) -> None:
    """Record the cause of an exception; None for no cause."""
    _DICT.__get__(error)[_KEY] = cause


def cause_of(error: BaseException | None) -> Cause | None:
    """Return the cause of an exception, or of the one it was raised from; None if it has none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        cause = _DICT.__get__(error).get(_KEY)
        if cause is not None:
            return cast(Cause, cause)
        error = _CAUSE.__get__(error)
    return None


def reached(context: Context) -> Cause | None:
    """Return the innermost boundary around code that runs in `context`, None if there is none.

    Shows where a call hangs that does not return.
    """
    return context.get(_INSIDE)
