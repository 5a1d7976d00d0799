"""The processes in which reasoning-gym runs, and how to talk to them.

Answers come from a policy and some generators evaluate them, so that a process may have to be
killed at any time; the others go on meanwhile, and a warm parent forks the next one.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from gem.errors import ConfigurationError, DataError, MissingExtraError
from gem.workers.pool import Reply, WorkerPool

# Building a data set included.
_GENERATION_TIMEOUT_S = 120.0
_MEMORY_MB = 8192
# A process that ends this much later than the time limit may have ended for another reason.
_LATE_S = 1.0


@cache
def pool() -> WorkerPool:
    """Return the processes, which start when they are first needed."""
    return WorkerPool(
        "gem.envs.reasoning_gym_child:answer",
        memory_mb=_MEMORY_MB,
        # Some generators iterate over sets of text.
        environment={"PYTHONHASHSEED": "0"},
    )


def item(which: dict[str, Any]) -> dict[str, Any]:
    """Return `{"question": str, "answer": str | None}` of an item.

    Raises:
        MissingExtraError: reasoning-gym is not installed.
        ConfigurationError: It has no such generator, level or configuration field.
        DataError: The generator fails on this item.
        UnreachableError: No process can be started.
    """
    reply = pool().call(which, timeout_s=_GENERATION_TIMEOUT_S)
    if reply.failure == "crash":
        # The process may have died for a reason that is none of this item's.
        reply = pool().call(which, timeout_s=_GENERATION_TIMEOUT_S)
    return _told(which, reply)


def score(which: dict[str, Any], answer: str, timeout_s: float) -> tuple[float, bool, str]:
    """Return the library's score of an answer, from 0 to 1, whether it solves the task, and why.

    The item may have to be made again first, which does not count against the time. An answer
    whose scoring does not end, or ends the process twice, has the score 0.

    Raises:
        GemError: The item cannot be made; see `item`.
    """
    for last in (False, True):
        began = time.monotonic()
        reply = pool().call(which, answer, timeout_s, timeout_s=_GENERATION_TIMEOUT_S + timeout_s)
        took = time.monotonic() - began
        if reply.failure not in ("crash", "timeout"):
            told = _told(which, reply)
            return told["score"], told["solved"], told["reason"]
        # At the time limit the process ends itself. One that ended sooner, or much later, may have
        # died for a reason that is none of this answer's.
        if last or timeout_s <= took < timeout_s + _LATE_S:
            break
    return 0.0, False, "timeout" if took >= timeout_s else "crash"


def _told(which: dict[str, Any], reply: Reply) -> dict[str, Any]:
    told: dict[str, Any] = reply.value or {"error": reply.failure, "kind": ""}
    if "error" not in told:
        return told
    for refused in (ConfigurationError, MissingExtraError):
        if told["kind"] == refused.__name__:
            raise refused(told["error"])
    raise DataError(
        f"reasoning-gym {which['name']!r}, seed {which['seed']}, item {which['place']}: "
        f"{told['error']}"
    )
