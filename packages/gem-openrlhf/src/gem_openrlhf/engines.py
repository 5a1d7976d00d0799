"""A vLLM actor that dies while weights are sent to it ends the run, and is named.

The sender of a broadcast waits for a receiver that is gone: over NCCL for ever, over Gloo until it
times out, with a message that does not mention the actor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from types import ModuleType
from typing import Any

import ray
from ray.exceptions import RayActorError

from gem.errors import RolloutError
from gem_openrlhf.seams import check_signature

_CHECK_S = 1.0
"""Time between two looks at the actors."""
_NOTICE_S = 10.0
"""Time that Ray may take to notice a death of which the call heard first."""


def call_while_alive(function: Callable[[], Any], actors: Sequence[Any]) -> Any:
    """Return `function()`, or give it up when one of `actors` dies.

    An actor that does not answer is taken to be busy. A call that is given up stays behind in its
    thread.

    Args:
        function: Waits for the actors.
        actors: Handles of Ray actors.

    Raises:
        RolloutError: An actor died before the call returned; Ray's account of it is the cause.
    """
    result: Future[Any] = Future()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=call, name="gem-while-alive", daemon=True).start()
    asked: dict[int, Any] = {}
    while not wait([result], timeout=_CHECK_S).done:
        _check(actors, asked, timeout_s=0)
    if result.exception() is not None:
        _check(actors, asked, timeout_s=_NOTICE_S)
    return result.result()


def _check(actors: Sequence[Any], asked: dict[int, Any], timeout_s: float) -> None:
    """Look at the answers to what was asked, and ask the actors that answered again."""
    for number, actor in enumerate(actors):
        if number not in asked:
            asked[number] = actor.__ray_ready__.remote()
    answered, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout_s)
    for number, answer in list(asked.items()):
        if answer in answered:
            del asked[number]
            try:
                ray.get(answer)
            except RayActorError as error:
                raise RolloutError(
                    f"a vLLM engine died while weights were sent to it: {error}"
                ) from error


def install(module: ModuleType) -> None:
    """Have the engines watched while OpenRLHF sends them weights.

    Raises:
        UnsupportedVersionError: `BasePPOTrainer.broadcast_to_vllm` is not what it was.
    """
    trainer = module.BasePPOTrainer
    check_signature(trainer, "broadcast_to_vllm", ["self"])
    original = trainer.broadcast_to_vllm

    def broadcast_to_vllm(self: Any) -> None:
        call_while_alive(lambda: original(self), self.vllm_engines)

    # Trainers reach Ray's workers by value, with methods of this class that are looked up there.
    trainer.broadcast_to_vllm = broadcast_to_vllm
