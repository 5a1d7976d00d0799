"""Many episodes, one engine that answers whole batches, called whenever all of them ask for a turn.

- `Lockstep`: runs the episodes; the engine is a function in the calling thread.

Which requests meet in a batch depends on the episodes only, so that an engine with one generator
for all of a batch samples the same in every run. `generate` of transformers and a collective over
several processes are such engines.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar

from gem.errors import RolloutError
from gem.rollout.play import Request, Sample, Sampler
from gem.training.sampling import EngineSampler, together

T = TypeVar("T")
Episode: TypeAlias = Callable[[Sampler], Coroutine[Any, Any, T]]
"""Plays an episode with a sampler of its own."""
Ids: TypeAlias = list[int]
Generate: TypeAlias = Callable[[list[Ids]], tuple[list[Ids], list[list[float | None]] | None]]
"""Takes prompts; returns sampled ids and, if they are known, their log-probabilities."""
Most: TypeAlias = Callable[[int], int]
"""Returns the largest of all processes' numbers; a collective."""


class Lockstep(EngineSampler):
    """Plays episodes; whenever all that are open ask for a turn, the engine samples a round.

    Environments step side by side in threads of their own. The engine is called in the calling
    thread, with the prompts in the order of the episodes.

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
        super().__init__(stop_ids)
        self._generate = generate
        self._most = most or (lambda size: size)
        self._asking: dict[int, tuple[Request, asyncio.Future[Sample]]] = {}
        self._open = 0

    def play(self, episodes: Sequence[Episode[T]]) -> list[T]:
        """Run episodes to their ends and return their results in order.

        Raises:
            RolloutError: The engine returned another number of answers than it was given prompts.
            Exception: The first one that an episode raised; the others are cancelled.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._play(episodes))
        with ThreadPoolExecutor(1) as thread:  # of a notebook, where a loop runs in this one
            return thread.submit(asyncio.run, self._play(episodes)).result()

    async def _play(self, episodes: Sequence[Episode[T]]) -> list[T]:
        self._open, self._changed = len(episodes), asyncio.Event()
        numbered = [self._counted(n, episode) for n, episode in enumerate(episodes)]
        task = asyncio.create_task(together(numbered))
        task.add_done_callback(lambda _: self._changed.set())
        while not await self._are_over(task):
            # All open episodes ask: while the engine keeps this loop, none has anything to do.
            asking = [self._asking.pop(number) for number in sorted(self._asking)]
            requests = [request for request, _ in asking]
            samples = self._round(requests, self._most(len(requests)))
            for (_, future), sample in zip(asking, samples, strict=True):
                future.set_result(sample)
        played = task.result()
        while size := self._most(0):
            self._round([], size)
        return played

    async def _are_over(self, task: asyncio.Task[Any]) -> bool:
        """Return whether the episodes are over, as soon as all that are open ask for a turn."""
        while not task.done() and not 0 < self._open == len(self._asking):
            await self._changed.wait()
            self._changed.clear()
        return task.done()

    async def _counted(self, number: int, episode: Episode[T]) -> T:
        try:
            return await episode(partial(self._sample, number))
        finally:
            self._open -= 1
            self._changed.set()

    async def _sample(self, number: int, request: Request) -> Sample:
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._asking[number] = request, future
        self._changed.set()
        return await future

    def _round(self, requests: Sequence[Request], size: int) -> list[Sample]:
        """Sample a turn for each request, together with idle prompts up to `size`."""
        idle = [[self.stop_ids[0]]] * (size - len(requests))
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
            samples.append(self.sample(ids, known, cut=True))
        return samples
