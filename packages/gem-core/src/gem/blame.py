"""Whose fault a failure is: its cause, decided at the boundary where it happens.

Whoever calls a tool, a grader or a sandbox does so inside `boundary(cause)`. An exception that
leaves the boundary carries this cause from there on, through whatever code it passes; the innermost
boundary counts, so that a sandbox which fails under a grader is the sandbox's failure.
"""

from __future__ import annotations

from contextvars import Context, ContextVar
from typing import Literal, TypeAlias, cast

from gem.errors import (
    ConfigurationError,
    MissingExtraError,
    RolloutError,
    UnknownEnvError,
    UnknownParameterError,
    UnsupportedVersionError,
)

Cause: TypeAlias = Literal[
    "environment", "tool", "grader", "sandbox", "engine", "template", "budget"
]
"""Who or what made an episode void, see `CAUSES`.

The policy is none of them. What it does ends an episode (`EpisodeEnd`) or costs reward, and is
trained on; a response that could void its episode would be a way around a bad reward.
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
"""A sentence about each cause."""

MISUSE = (
    ConfigurationError,
    MissingExtraError,
    RolloutError,
    UnknownEnvError,
    UnknownParameterError,
    UnsupportedVersionError,
)
"""Errors of whoever set up or wrote a run. They end it: no episode would fare better."""

_KEY = "_gem_cause"
_INSIDE: ContextVar[Cause | None] = ContextVar("gem_boundary", default=None)


def boundary(cause: Cause) -> _Boundary:
    """Blame exceptions that leave this block on `cause`, unless an inner boundary has done so.

    The exceptions pass unchanged; `cause_of` tells.
    """
    return _Boundary(cause)


class _Boundary:
    # No `contextlib.contextmanager`: that assigns to exceptions, of which some are frozen.
    def __init__(self, cause: Cause) -> None:
        self._cause = cause

    def __enter__(self) -> None:
        self._token = _INSIDE.set(self._cause)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _INSIDE.reset(self._token)
        if isinstance(error, Exception) and cause_of(error) is None:
            vars(error)[_KEY] = self._cause


def cause_of(error: BaseException | None) -> Cause | None:
    """Return the cause of an exception, or of the one it was raised from; None if it has none."""
    while error is not None:
        cause = vars(error).get(_KEY)
        if cause is not None:
            return cast(Cause, cause)
        error = error.__cause__
    return None


def reached(context: Context) -> Cause | None:
    """Return the boundary that code running in `context` is inside of, None outside of all.

    Tells where a call that does not return hangs.
    """
    return context.get(_INSIDE)
