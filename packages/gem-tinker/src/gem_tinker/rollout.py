"""Tinker's sampler plays episodes: `tinker.SamplingClient` behind `gem.rollout.play`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinker

from gem.errors import RolloutError
from gem.rollout import ChatFormat, Request, Sample, play
from gem.seeding import stream
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_tinker.answers import answer
from gem_tinker.settings import Config

logger = logging.getLogger(__name__)

_BACKOFF_S = 0.5


@dataclass(frozen=True)
class Sampling:
    """How turns are sampled."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = -1
    seed: tuple[int, ...] | None = None
    """Integers that decide the randomness of a batch; None leaves it to the server."""
    version: int | None = None
    """How many updates the weights have had."""
    retries: int = 3
    """Further attempts after the server failed a request."""
    timeout_s: float = 1800.0
    """Longest wait for one turn, in seconds."""


class EpisodeSampler:
    """Samples the turns of one episode."""

    def __init__(
        self, client: Any, sampling: Sampling, stop_ids: frozenset[int], key: tuple[int, ...] = ()
    ) -> None:
        """Prepare for an episode.

        Args:
            client: A `tinker.SamplingClient`.
            sampling: How turns are sampled.
            stop_ids: Tokens at which a turn ends.
            key: Integers that tell this episode from the others of its batch.
        """
        self._client = client
        self._sampling = sampling
        self._stop_ids = stop_ids
        self._key = key
        self._turns = 0

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn.

        Raises:
            RolloutError: The server refused, or failed again and again.
        """
        params = self._params(request.max_tokens)
        self._turns += 1
        prompt = tinker.ModelInput.from_ints(request.prompt_ids)
        for attempt in range(self._sampling.retries + 1):
            try:
                found = await answer(
                    self._client.sample(prompt=prompt, num_samples=1, sampling_params=params),
                    self._sampling.timeout_s,
                )
            except (tinker.BadRequestError, tinker.AuthenticationError) as error:
                raise RolloutError(f"the server refuses to sample: {error}") from error
            except (tinker.TinkerError, asyncio.TimeoutError) as error:
                reason = f"{type(error).__name__}: {error}"
                if attempt == self._sampling.retries:
                    raise RolloutError(
                        f"sampling failed {attempt + 1} times, at last: {reason}"
                    ) from error
                logger.warning("sampling failed, attempt %d: %s", attempt + 1, reason)
                await asyncio.sleep(_BACKOFF_S * 2**attempt)
            else:
                return self._sample(found.sequences[0], request.max_tokens)
        raise AssertionError("unreachable")

    def _params(self, max_tokens: int) -> tinker.SamplingParams:
        sampling = self._sampling
        seed = None
        if sampling.seed is not None:
            seed = stream(*sampling.seed, *self._key, self._turns).getrandbits(31)
        return tinker.SamplingParams(
            max_tokens=max_tokens,
            seed=seed,
            stop=sorted(self._stop_ids),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )

    def _sample(self, sequence: Any, max_tokens: int) -> Sample:
        ids = [int(i) for i in sequence.tokens]
        logprobs = sequence.logprobs
        cut = not ids or ids[-1] not in self._stop_ids
        return Sample(
            token_ids=ids,
            logprobs=None if logprobs is None else [float(p) for p in logprobs],
            stop_reason="length" if cut and len(ids) >= max_tokens else "stop",
            version=self._sampling.version,
        )


async def play_batch(
    client: Any,
    chat: ChatFormat,
    config: Config,
    tasks: Sequence[Task],
    groups: Sequence[int],
    sampling: Sampling,
) -> list[Trajectory]:
    """Play one episode per task, all at the same time.

    Environments run in threads, so that a slow one holds up neither the sampler nor the others.

    Args:
        client: A `tinker.SamplingClient`.
        chat: The model's chat format.
        config: Context, budget, retries and time limits.
        tasks: The episodes.
        groups: Group of each task.
        sampling: How turns are sampled.

    Raises:
        RolloutError: Sampling is impossible; the other episodes have been cancelled.
    """

    async def episode(index: int) -> Trajectory:
        sampler = EpisodeSampler(client, sampling, chat.stop_ids, (tasks[index].seed, index))
        return await play(
            tasks[index],
            sampler,
            chat,
            budget=config.budget,
            context=config.context,
            group=groups[index],
            retries=config.retries,
            step_timeout_s=config.step_timeout_s,
        )

    playing = [asyncio.ensure_future(episode(index)) for index in range(len(tasks))]
    try:
        return list(await asyncio.gather(*playing))
    finally:
        for task in playing:
            task.cancel()
