"""Many episodes, one engine that answers whole batches: requests are collected into rounds.

- `Rounds`: runs the episodes and collects their requests.
- `RoundsSampler`: the sampler of one of them, if the engine is vLLM.

A function such as `vllm.LLM.generate` takes a batch and returns when all of it is sampled. While
the engine samples one round, environments step in threads of their own; the next round takes the
requests that are waiting by then. A slow environment holds up its own episode only.

Which requests meet in a round depends on time. An engine that takes a seed for each request samples
the same all the same; one with a generator for all of a batch does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gem.errors import RolloutError
from gem.rollout.play import Request, Sample
from gem.training.sampling import EngineSampler, together

T = TypeVar("T")

Generate = Callable[[list[list[int]], list[Any]], Sequence[Any]]
"""The engine: takes prompts and the sampling parameters of each, returns outputs in their order.

It is called in a thread, for one batch at a time. Parameters and outputs may be of any type: they
are those of `Rounds.sample`.
"""

LEAST_WAIT_S = 0.02
WAIT_SHARE = 0.25
"""A round waits for episodes that are at their environments, at most for this share of the time
that the previous round took: one more prompt in a batch costs little, one more batch a lot."""


class Rounds:
    """Runs episodes and has the engine answer their requests together."""

    def __init__(self, generate: Generate) -> None:
        self._generate = generate
        self._waiting: list[tuple[list[int], Any, asyncio.Future[Any]]] = []
        self._arrived = asyncio.Event()
        self._complete = asyncio.Event()
        self._playing = 0

    async def run(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run episodes at the same time and return their results in order.

        Args:
            episodes: Coroutines that call `sample`. The first exception of one cancels the others
                and is raised.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="gem-engine") as thread:
            server = asyncio.create_task(self._serve(thread))
            try:
                return await together([self._counted(episode) for episode in episodes])
            finally:
                server.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await server

    async def sample(self, prompt_ids: list[int], params: Any) -> Any:
        """Return the engine's output for a prompt; what the engine raises, this raises.

        Args:
            prompt_ids: Tokens of the prompt.
            params: Sampling parameters of this request.

        Raises:
            ValueError: The engine returned another number of outputs than it was given prompts.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt_ids, params, future))
        self._arrived.set()
        self._note()
        return await future

    async def _counted(self, episode: Coroutine[Any, Any, T]) -> T:
        """Count an episode as one that will ask again, until it is over."""
        self._playing += 1
        try:
            return await episode
        finally:
            self._playing -= 1
            self._note()

    def _note(self) -> None:
        if len(self._waiting) >= self._playing:
            self._complete.set()

    async def _serve(self, thread: ThreadPoolExecutor) -> None:
        loop, took = asyncio.get_running_loop(), 0.0
        while True:
            await self._collect(max(LEAST_WAIT_S, WAIT_SHARE * took))
            batch, self._waiting = self._waiting, []
            began = time.monotonic()
            prompts, params = [p for p, _, _ in batch], [q for _, q, _ in batch]
            try:
                outputs = await loop.run_in_executor(thread, self._generate, prompts, params)
                answered = list(zip(batch, outputs, strict=True))
            except Exception as error:
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            finally:
                took = time.monotonic() - began
            for (_, _, future), output in answered:
                if not future.done():
                    future.set_result(output)

    async def _collect(self, wait_s: float) -> None:
        """Return when all episodes have asked, or some have and `wait_s` seconds have passed."""
        self._arrived.clear()
        if not self._waiting:
            await self._arrived.wait()
        if len(self._waiting) < self._playing:
            self._complete.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._complete.wait(), wait_s)


class RoundsSampler(EngineSampler):
    """vLLM, which answers in rounds, as the sampler of one episode."""

    def __init__(
        self,
        rounds: Rounds,
        params: Callable[..., Any],
        stop_ids: frozenset[int],
        seed: Sequence[int] | None = None,
    ) -> None:
        """Prepare for an episode.

        Args:
            rounds: The engine returns `RequestOutput`s of one completion, with log-probabilities.
            params: Makes the sampling parameters of a turn, of `max_tokens`, `seed` and
                `stop_token_ids`.
            stop_ids: See `EngineSampler`.
            seed: See `EngineSampler`.
        """
        super().__init__(stop_ids, seed)
        self._rounds = rounds
        self._params = params

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn.

        Raises:
            RolloutError: vLLM aborted the request, or sampled from another prompt.
        """
        params = self._params(
            max_tokens=request.max_tokens, seed=self.turn_seed(), stop_token_ids=self.stop_ids
        )
        answer = await self._rounds.sample(request.prompt_ids, params)
        if list(answer.prompt_token_ids) != request.prompt_ids:
            raise RolloutError("the engine sampled from another prompt than it was given")
        return self.vllm_sample(answer)
