"""Tinker's sampler plays episodes: `tinker.SamplingClient` behind `gem.rollout.play`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinker

from gem.rollout import ChatFormat, Request, Sample, together
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_tinker.server import answer, unanswered
from gem_tinker.settings import Config
from gem_train.sampling import EngineSampler, answered


@dataclass(frozen=True)
class Sampling:
    """How turns are sampled."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """1 is greedy."""
    seed: tuple[int, ...] | None = None
    """Integers that decide the randomness of a batch; None leaves it to the server."""
    version: int | None = None
    """How many updates the weights have had."""


class EpisodeSampler(EngineSampler):
    """Samples the turns of one episode."""

    def __init__(
        self, client: Any, sampling: Sampling, chat: ChatFormat, config: Config, *key: int
    ) -> None:
        """Prepare for an episode.

        Args:
            client: A `tinker.SamplingClient`.
            sampling: How turns are sampled.
            chat: The model's chat format, with the tokens at which a turn ends.
            config: Attempts at a turn, and the longest wait for one.
            *key: Integers that tell this episode from the others of its batch.
        """
        super().__init__(chat.stop_ids, None if sampling.seed is None else (*sampling.seed, *key))
        self._client = client
        self._sampling = sampling
        self._config = config

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn.

        Raises:
            RolloutError: The server refused, or failed again and again.
        """
        sampling, config = self._sampling, self._config
        # Servers report log-probabilities of what is left after top-k, or not: greedy is clear.
        greedy = sampling.top_k == 1
        params = tinker.SamplingParams(
            max_tokens=request.max_tokens,
            seed=self.turn_seed(),
            stop=self.stop_ids,
            temperature=0.0 if greedy else sampling.temperature,
            top_k=-1 if greedy else sampling.top_k,
            top_p=sampling.top_p,
        )
        prompt = tinker.ModelInput.from_ints(request.prompt_ids)

        async def ask() -> Any:
            with unanswered((tinker.BadRequestError, tinker.AuthenticationError)):
                asked = self._client.sample(prompt=prompt, num_samples=1, sampling_params=params)
                return await answer(asked, config)

        [sampled] = (await answered(ask, "the Tinker server", config.sample_retries)).sequences
        cut = len(sampled.tokens) >= request.max_tokens
        return self.sample(sampled.tokens, sampled.logprobs, cut=cut, version=sampling.version)


async def play_batch(
    client: Any,
    chat: ChatFormat,
    config: Config,
    tasks: Sequence[Task],
    sampling: Sampling,
    group_size: int = 1,
    first_group: int = 0,
) -> list[Trajectory]:
    """Play all episodes of some tasks at the same time; one with `seat=all` is a match.

    Environments run in threads, so that a slow one holds up neither the sampler nor the others.

    Args:
        client: A `tinker.SamplingClient`.
        chat: The model's chat format.
        config: Context, budget, retries and time limits.
        tasks: The tasks; the episodes of each are a group.
        sampling: How turns are sampled.
        group_size: Episodes of each task.
        first_group: Number of the first group.

    Raises:
        RolloutError: Sampling is impossible; the other episodes have been cancelled.
    """
    budget = config.limits(config.prompt_tokens, config.response_tokens)

    async def episode(index: int, group: int, task: Task) -> list[Trajectory]:
        sampler = EpisodeSampler(client, sampling, chat, config, task.seed, index)
        return await config.play_all(task, sampler, chat, budget, group=group)

    numbered = list(enumerate(tasks, first_group))
    groups = [each for each in numbered for _ in range(group_size)]
    played = await together([episode(index, *group) for index, group in enumerate(groups)])
    return [trajectory for each in played for trajectory in each]
