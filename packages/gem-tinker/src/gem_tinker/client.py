"""What a run asks of the SDK's training client, and how its answers are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import tinker

from gem.errors import RolloutError
from gem.training.sampling import NoAnswerError
from gem_tinker.settings import Config

T = TypeVar("T")

GRAD_NORM = "grad_norm"
"""End of the name under which servers report the norm of a gradient before clipping."""


@contextmanager
def unanswered(refusals: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert what the SDK raises, which becomes the cause of what is raised here.

    Args:
        refusals: What it raises if there is no use in asking again.

    Raises:
        NoAnswerError: The server failed a request, or did not answer in time.
        RolloutError: It refused the request.
    """
    try:
        yield
    except (tinker.TinkerError, asyncio.TimeoutError, ValueError) as error:
        # In a ValueError the SDK wraps what it has given up on.
        cause = error.__cause__ if isinstance(error, ValueError) else error
        if not isinstance(cause, tinker.TinkerError | asyncio.TimeoutError):
            raise
        if isinstance(cause, refusals):
            raise RolloutError(f"the server refuses a request: {cause}") from cause
        raise NoAnswerError(f"{type(cause).__name__}: {cause}") from cause


async def answer(future: Awaitable[T], config: Config) -> T:
    """Wait for the server, but at most `request_timeout_s`."""
    return await asyncio.wait_for(future, config.request_timeout_s)


def new_adapter(service: Any, config: Config) -> Any:
    """Ask a `tinker.ServiceClient` for a training client with a new adapter.

    The adapter is on attention and MLP projections; the client can be awaited.
    """
    return service.create_lora_training_client(
        config.model, rank=config.lora_rank, seed=config.lora_seed, train_unembed=False
    )


async def update(
    client: Any, datums: Sequence[tinker.Datum], config: Config, lr: float
) -> tuple[tinker.ForwardBackwardOutput, float | None]:
    """Make an update; return what the server says of the loss, and the gradient's norm.

    Args:
        client: A `tinker.TrainingClient`.
        datums: What is trained on.
        config: The loss and the optimiser.
        lr: Learning rate.

    Returns:
        The output, and the norm before clipping; None if the server reports none.
    """
    low, high = 1 - config.clip, 1 + config.clip
    clips = {"clip_low_threshold": low, "clip_high_threshold": high}
    clipped = None if config.loss_fn == "importance_sampling" else clips
    # Both are sent before either is waited for: the server needs no round trip in between.
    gradient = client.forward_backward(datums, config.loss_fn, clipped)
    adam = tinker.AdamParams(
        learning_rate=lr,
        beta1=config.beta1,
        beta2=config.beta2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        grad_clip_norm=config.grad_clip,
    )
    step = client.optim_step(adam)
    output = await answer(gradient, config)
    metrics = (await answer(step, config)).metrics or {}
    norms = [float(value) for name, value in metrics.items() if name.endswith(GRAD_NORM)]
    return output, norms[0] if norms else None
