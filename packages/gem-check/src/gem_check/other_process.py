"""`OtherProcess`: plays the same episodes in another process, with another hash seed.

For the check `processes`.
"""

from __future__ import annotations

import base64
import os
import pickle
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager

from gem.errors import UnreachableError
from gem.foreign import contained
from gem.workers.pool import Reply, WorkerPool
from gem_check.playing import digest, transcript
from gem_check.subject import FaultError, SkipCheck, Subject, describe

# Limit of CPU time; see `WorkerPool.call`.
_CPU_S = 120.0


class OtherProcess(AbstractContextManager["OtherProcess"]):
    """A process that plays subjects, one after the other; starts at the first `ask`.

    It plays while the caller continues, and is restarted if it died.
    """

    def __init__(self) -> None:
        seeds = {os.environ.get("PYTHONHASHSEED", ""), "101", "202"}
        self._pool = WorkerPool(
            f"{__name__}:play", 1, memory_mb=None, environment={"PYTHONHASHSEED": max(seeds)}
        )
        self._reply: Future[Reply] = Future()

    def ask(self, subject: Subject) -> None:
        """Start to play a subject in the other process."""
        reply: Future[Reply] = Future()
        self._reply = reply
        try:
            question = base64.b64encode(pickle.dumps(subject)).decode()
        except Exception as error:
            problem = f"the function that makes it cannot be pickled: {error}"
            reply.set_exception(SkipCheck(problem))
            return

        def call() -> None:
            try:
                reply.set_result(self._pool.call(question, timeout_s=_CPU_S))
            except BaseException as error:
                reply.set_exception(error)

        threading.Thread(target=call, daemon=True).start()

    def answer(self) -> str:
        """Wait for the last `ask`; return the digest of its transcript.

        Raises:
            SkipCheck: The subject cannot be sent to another process, or no process can be started
                or gets enough CPU time.
            FaultError: The subject cannot be played there.
        """
        try:
            reply = self._reply.result()
        except UnreachableError as error:
            raise SkipCheck(str(error)) from None
        if reply.failure == "timeout":
            raise FaultError(f"another process is not done after {_CPU_S:g} s of CPU time")
        if reply.failure == "crash":
            raise FaultError(f"another process died with status {reply.status or 0}")
        if reply.failure is not None:
            raise FaultError(f"another process failed: {reply.failure}")
        answer: dict[str, str] = reply.value
        if "unknown" in answer:
            raise SkipCheck(f"another process cannot import what makes it: {answer['unknown']}")
        if "error" in answer:
            raise FaultError(f"another process failed: {answer['error']}")
        return answer["digest"]

    def close(self) -> None:
        """End the process."""
        self._pool.close()

    def __exit__(self, *exc: object) -> None:
        self.close()


def play(question: str) -> dict[str, str]:
    """Play a pickled subject; this runs in the other process."""
    try:
        subject: Subject = pickle.loads(base64.b64decode(question))
    except Exception as error:
        # For instance, the class is defined in the calling program's main module.
        return {"unknown": describe(error)}
    try:
        played = transcript(subject.factory(), subject.seeds, subject.max_steps)
    except BaseException as error:
        return {"error": describe(contained(error))}
    finally:
        subject.factory.close()
    return {"digest": digest(played)}
