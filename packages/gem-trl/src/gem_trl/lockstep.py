"""Many episodes, one engine that answers whole batches, called whenever all of them ask for a turn.

`generate` of transformers and a collective over several processes are such engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from gem.errors import RolloutError
from gem.rollout.collect import Player, Rounds
from gem.rollout.play import Request, Sample
from gem_train.sampling import EngineSampler

T = TypeVar("T")
Ids: TypeAlias = list[int]
Generate: TypeAlias = Callable[[list[Ids]], tuple[list[Ids], list[list[float | None]] | None]]
"""Takes prompts; returns sampled ids and, if they are known, their log-probabilities."""
Most: TypeAlias = Callable[[int], int]
"""Returns the largest of all processes' numbers; a collective."""


class Lockstep(Rounds):
    """Rounds of an engine that takes prompts.

    Where sampling is a collective, the processes must ask equally often and for equally many
    answers, but their episodes differ in number of turns. Each round is then filled up with idle
    prompts to the size of the largest, until no process has an open episode.
    """

    def __init__(
        self, generate: Generate, stop_ids: frozenset[int], most: Most | None = None
    ) -> None:
        """Prepare for a batch of episodes.

        Args:
            generate: The engine.
            stop_ids: Tokens at which a turn ends; the engine stops at all of them.
            most: None where the processes sample independently.
        """
        super().__init__(self._generated)
        self._engine = EngineSampler(stop_ids)
        self._generate = generate
        self._most = most or (lambda size: size)

    async def _play(self, episodes: Sequence[Player[T]]) -> list[T]:
        played = await super()._play(episodes)
        while size := self._most(0):
            self._generated([], size)
        return played

    def _generated(self, requests: Sequence[Request], size: int | None = None) -> list[Sample]:
        """Sample a turn for each request, together with idle prompts up to the largest size."""
        size = self._most(len(requests)) if size is None else size
        idle = [[self._engine.stop_ids[0]]] * (size - len(requests))
        answers, logprobs = self._generate([*(r.prompt_ids for r in requests), *idle])
        if len(answers) != size:
            raise RolloutError(f"the engine answered {len(answers)} of {size} prompts")
        samples = []
        for index, request in enumerate(requests):
            # Cutting a longer answer is the same as sampling with the smaller limit.
            ids = answers[index][: request.max_tokens]
            known = None
            if logprobs is not None:
                # vLLM's log-probability of a token may be unknown.
                known = [math.nan if p is None else p for p in logprobs[index][: len(ids)]]
            samples.append(self._engine.sample(ids, known, cut=True))
        return samples
