"""The processes in which reasoning-gym runs, and how to talk to them.

Answers come from a policy and some generators evaluate them, so that a process may have to be
killed at any time; the others go on meanwhile, and a warm parent forks the next one.
"""

from __future__ import annotations

import signal
from functools import cache
from typing import Any

from gem.errors import ConfigurationError, DataError, MissingExtraError
from gem.workers.pool import Reply, WorkerPool

# CPU time; building a data set included.
_GENERATION_TIMEOUT_S = 120.0
_MEMORY_MB = 8192
# How a process ends that scores an answer for longer than it may.
_OVER = -signal.SIGVTALRM if hasattr(signal, "SIGVTALRM") else None


@cache
def pool() -> WorkerPool:
    """Return the processes, which start when they are first needed."""
    return WorkerPool(
        "gem.envs.reasoning_gym_child:answer",
        memory_mb=_MEMORY_MB,
        by_cores=True,
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
    whose scoring needs more than `timeout_s` of CPU time, or ends the process twice, has the score
    0.

    Raises:
        BusyMachineError: The process got too little CPU time.
        GemError: The item cannot be made; see `item`.
    """
    for _ in range(2):
        reply = pool().call(which, answer, timeout_s, timeout_s=_GENERATION_TIMEOUT_S + timeout_s)
        if reply.failure == "timeout" or reply.status == _OVER:
            return 0.0, False, "timeout"
        if reply.failure != "crash":
            told = _told(which, reply)
            return told["score"], told["solved"], told["reason"]
        # The process may have died for a reason that is none of this answer's.
    return 0.0, False, "crash"


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
