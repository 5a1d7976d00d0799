"""Ends a call that waits for Ray actors when one of them, or its vLLM engine, dies.

Trainers themselves would wait forever: a broadcast for a dead receiver, a socket for its peer.
Imports Ray lazily; Ray is a dependency of the trainers, not of gem-core.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from gem.errors import RolloutError

T = TypeVar("T")

_CHECK_S = 2.0
"""Interval between checks of the actors."""
_NOTICE_S = 10.0
"""Grace period for Ray or vLLM to report the death that made the call fail."""


def call_while_alive(
    function: Callable[[], T], actors: Sequence[Any], engine: str | None = None
) -> T:
    """Return `function()`, or raise if one of `actors` dies before.

    The function runs in its own thread, which stays behind if an actor dies. An actor that does
    not respond, or that Ray cannot reach at the moment, counts as busy.

    Args:
        function: Waits for the actors.
        actors: Handles of Ray actors.
        engine: Name of the attribute of the actors that holds vLLM's `AsyncLLM`, if they have one.
            An engine may die while its actor lives.

    Raises:
        RolloutError: An actor or an engine died before the function returned. The message says
            which. An exception that the function raised because of it is the context.
    """
    result: Future[T] = Future()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=call, name="gem-while-alive", daemon=True).start()
    watched = _Watched(actors, engine)
    while not wait([result], timeout=_CHECK_S).done:
        watched.check(timeout_s=0)
    try:
        return result.result()
    except Exception:
        # New queries: replies to pending ones may predate the death.
        _Watched(actors, engine).check(timeout_s=_NOTICE_S)
        raise


class _Watched:
    """Actors and the health queries that they have not replied to yet."""

    def __init__(self, actors: Sequence[Any], engine: str | None) -> None:
        self._actors = actors
        self._engine = engine
        self._asked: dict[int, Any] = {}

    def check(self, timeout_s: float) -> None:
        """Query the actors without a pending query; raise if an actor or engine is dead."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayActorError

        for number, actor in enumerate(self._actors):
            if number not in self._asked:
                self._asked[number] = actor.__ray_call__.remote(_problem, self._engine)
        if not self._asked:
            return
        questions = list(self._asked.values())
        answered, _ = ray.wait(questions, num_returns=len(questions), timeout=timeout_s)
        for number, question in list(self._asked.items()):
            if question not in answered:
                continue
            del self._asked[number]
            try:
                problem = ray.get(question)
            except ActorUnavailableError:
                continue  # Ray cannot reach it at the moment: the next check queries it again.
            except RayActorError as error:
                raise RolloutError(f"a process that the run needs has died. {error}") from error
            if problem is not None:
                raise RolloutError(f"a process that the run needs has died. {problem}")


def _problem(actor: Any, engine: str | None) -> str | None:
    """Return the error of an actor's engine, or None; Ray runs this in the actor's process."""
    held = None if engine is None else getattr(actor, engine, None)
    if held is None or not held.errored:
        return None
    return f"{type(actor).__name__}: {held.dead_error}"
