"""Tinker's sampler plays episodes: `tinker.SamplingClient` behind `gem.rollout.play`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinker

from gem.errors import RolloutError
from gem.rollout import ChatFormat, Request, Sample
from gem.tasks import Task
from gem.training.sampling import EngineSampler, together
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


class EpisodeSampler(EngineSampler):
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
        super().__init__(stop_ids, None if sampling.seed is None else (*sampling.seed, *key))
        self._client = client
        self._sampling = sampling

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn.

        Raises:
            RolloutError: The server refused, or failed again and again.
        """
        sampling = self._sampling
        params = tinker.SamplingParams(
            max_tokens=request.max_tokens,
            seed=self.turn_seed(),
            stop=self.stop_ids,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )
        prompt = tinker.ModelInput.from_ints(request.prompt_ids)
        for attempt in range(sampling.retries + 1):
            try:
                found = await answer(
                    self._client.sample(prompt=prompt, num_samples=1, sampling_params=params),
                    sampling.timeout_s,
                )
            except (tinker.BadRequestError, tinker.AuthenticationError) as error:
                raise RolloutError(f"the server refuses to sample: {error}") from error
            except (tinker.TinkerError, asyncio.TimeoutError) as error:
                reason = f"{type(error).__name__}: {error}"
                if attempt == sampling.retries:
                    raise RolloutError(
                        f"sampling failed {attempt + 1} times, at last: {reason}"
                    ) from error
                logger.warning("sampling failed, attempt %d: %s", attempt + 1, reason)
                await asyncio.sleep(_BACKOFF_S * 2**attempt)
            else:
                break
        sampled = found.sequences[0]
        cut = len(sampled.tokens) >= request.max_tokens
        return self.sample(sampled.tokens, sampled.logprobs, cut=cut, version=sampling.version)


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
    samplers = [
        EpisodeSampler(client, sampling, chat.stop_ids, (task.seed, index))
        for index, task in enumerate(tasks)
    ]
    return await together(
        [
            config.play(task, sampler, chat, config.budget, group=group)
            for task, sampler, group in zip(tasks, samplers, groups, strict=True)
        ]
    )
