"""A call that waits for Ray actors ends when one of them, or its vLLM engine, is dead.

Trainers by themselves go on waiting then: the sender of a broadcast for a receiver that is gone, a
socket for its other end.

Needs Ray, which trainers bring along.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from gem.errors import RolloutError

T = TypeVar("T")

_CHECK_S = 2.0
"""Time between two looks at the actors."""
_NOTICE_S = 10.0
"""Time that Ray or vLLM may take to notice a death of which the call heard first."""


def call_while_alive(
    function: Callable[[], T], actors: Sequence[Any], engine: str | None = None
) -> T:
    """Return `function()`, or give it up when one of `actors` is dead.

    An actor that does not answer, or that cannot be reached for the moment, is taken to be busy.
    The function is called in a thread of its
    own, where it stays behind if it is given up.

    Args:
        function: Waits for the actors.
        actors: Handles of Ray actors.
        engine: Attribute of the actors that holds vLLM's `AsyncLLM`, where they have one. An engine
            may end without its actor.

    Raises:
        RolloutError: An actor or an engine died before the function returned. The message says
            which; what the function raised on that account, if anything, is the context.
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
        # Asked anew: open questions may have been answered before the death.
        _Watched(actors, engine).check(timeout_s=_NOTICE_S)
        raise


class _Watched:
    """Actors, and what they were asked without having answered yet."""

    def __init__(self, actors: Sequence[Any], engine: str | None) -> None:
        self._actors = actors
        self._engine = engine
        self._asked: dict[int, Any] = {}

    def check(self, timeout_s: float) -> None:
        """Ask the actors that have no question open; raise if one is found to be dead."""
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
                continue  # Ray cannot reach it for the moment: asked anew at the next look.
            except RayActorError as error:
                raise RolloutError(f"a process that the run needs has died. {error}") from error
            if problem is not None:
                raise RolloutError(f"a process that the run needs has died. {problem}")


def _problem(actor: Any, engine: str | None) -> str | None:
    """Say what is wrong with the engine of the actor in whose process this is called."""
    held = None if engine is None else getattr(actor, engine, None)
    if held is None or not held.errored:
        return None
    return f"{type(actor).__name__}: {held.dead_error}"
