"""An inference engine as the sampler of one episode: what the samplers of all adapters share.

An adapter's sampler extends `EngineSampler`; its `__call__` asks `engine` with `params` and the
seed of the turn, and returns `sample(...)`. `answered` repeats a request that may fail for a while.
"""

from __future__ import annotations

import logging
import time
from asyncio import sleep
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from gem.errors import RolloutError
from gem.rollout.play import Request, Sample
from gem.seeding import stream

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_DELAY_S = 1.0
MOST_DELAY_S = 10.0
"""Wait before the second attempt of a request; doubles with every further one up to the most."""


class EngineSampler:
    """Seeds the turns of an episode, and tells a complete turn from one that was cut off."""

    def __init__(
        self,
        stop_ids: frozenset[int],
        seed: Sequence[int] | None = None,
        *,
        engine: Any = None,
        params: Any = None,
    ) -> None:
        """Prepare for an episode.

        Args:
            stop_ids: Tokens at which a turn ends. Base models end a text with another token than
                the chat template ends a message with: engines must be given all of them.
            seed: Integers that decide the randomness of the episode; None leaves it to the engine.
            engine: What the subclass asks for a turn.
            params: Sampling parameters, of the subclass's own kind, that all turns have.
        """
        self.engine = engine
        self.params = params
        self.stop_ids = sorted(stop_ids)
        self.turns = 0
        """Seeds drawn so far, one for every turn that was asked for."""
        self._seed = None if seed is None else tuple(seed)

    def turn_seed(self) -> int | None:
        """Return the seed of the next turn, an integer of 31 bits; None without a seed."""
        turn, self.turns = self.turns, self.turns + 1
        return None if self._seed is None else stream(*self._seed, turn).getrandbits(31)

    def sample(
        self,
        ids: Iterable[int],
        logprobs: Iterable[float] | None,
        *,
        cut: bool,
        version: int | tuple[int, int] | None = None,
    ) -> Sample:
        """Return what the engine sampled.

        Args:
            ids: Sampled tokens, the stop token included.
            logprobs: Their log-probabilities, if the engine reports them.
            cut: Whether the engine stopped at the most tokens of the turn. A turn whose last
                allowed token is a stop token is complete all the same.
            version: Number of updates that the weights have had, if it is known; oldest and newest
                where they changed during the turn.
        """
        tokens = list(map(int, ids))
        complete = not cut or (bool(tokens) and tokens[-1] in self.stop_ids)
        return Sample(
            token_ids=tokens,
            logprobs=None if logprobs is None else list(map(float, logprobs)),
            stop_reason="stop" if complete else "length",
            version=version,
        )

    def vllm_sample(self, answer: Any) -> Sample:
        """Return what vLLM sampled.

        Args:
            answer: Its `RequestOutput` of one completion.

        Raises:
            RolloutError: There is no completion, or vLLM aborted the request.
        """
        output = answer.outputs[0] if answer is not None and answer.outputs else None
        reason = None if output is None else output.finish_reason
        if output is None or reason not in ("stop", "length"):
            raise RolloutError(f"the engine ended a request with {reason!r}")
        ids, logprobs = output.token_ids, None
        if output.logprobs is not None:
            pairs = zip(ids, output.logprobs, strict=True)
            logprobs = [known[token].logprob for token, known in pairs]
        return self.sample(ids, logprobs, cut=reason == "length")


def tokens_read(request: Request, read: Sequence[int]) -> int:
    """Return how many tokens an engine read of a prompt, for `Sample.prompt_tokens`.

    `Episode` compares the number; a prompt of the same number of other tokens is noticed here.

    Args:
        request: What was asked for.
        read: The prompt's ids as the engine says them.

    Raises:
        RolloutError: It read as many tokens, but others.
    """
    sent = request.prompt_ids
    if len(read) == len(sent):
        for place, (found, expected) in enumerate(zip(read, sent, strict=True)):
            if found != expected:
                raise RolloutError(
                    f"the engine read token {found} at place {place} of a prompt with "
                    f"{len(request.images)} images, where {expected} was sent: its processor gives "
                    "images other tokens than the trainer's does"
                )
    return len(read)


class NoAnswerError(Exception):
    """An engine did not answer a request, but may do so when it is asked again."""

    def __init__(self, reason: str, patience_s: float = 0.0) -> None:
        """Say why.

        Args:
            reason: What happened.
            patience_s: How long after the first attempt this is no failure, in seconds.
        """
        super().__init__(reason)
        self.patience_s = patience_s


async def answered(ask: Callable[[], Awaitable[T]], engine: str, retries: int) -> T:
    """Return an engine's answer; ask again, with growing waits, while there is none.

    Args:
        ask: Makes one attempt; `NoAnswerError` allows another one.
        engine: Name of the engine, for messages.
        retries: Further attempts after one that failed.

    Raises:
        RolloutError: All attempts failed.
    """
    began, delay, failures = time.monotonic(), FIRST_DELAY_S, 0
    while True:
        try:
            return await ask()
        except NoAnswerError as error:
            elapsed = time.monotonic() - began
            failures += elapsed >= error.patience_s
            if failures > retries:
                raise RolloutError(
                    f"{engine} did not answer: {failures} failures in {elapsed:.0f} s, the last: "
                    f"{error}"
                ) from error
            logger.warning("%s: %s; trying again in %g s", engine, error, delay)
        await sleep(delay)
        delay = min(2 * delay, MOST_DELAY_S)
