"""Many episodes, one engine in this process that samples step by step, such as vLLM's `LLMEngine`.

- `SteppedEngine`: runs the episodes, and the engine in a thread beside them.
- `SteppedSampler`: the sampler of one of them.

Before every step the engine gets what episodes have asked for meanwhile: a turn waits for no turn
of another episode, and a slow environment holds up its own episode only.

Which requests share a step depends on time. An engine that takes a seed for each request samples
the same all the same; one with a generator for all of them does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from gem.errors import RolloutError
from gem.rollout.collect import together
from gem.rollout.play import Request, Sample
from gem_train.sampling import EngineSampler

T = TypeVar("T")


class Engine(Protocol):
    """What is called of vLLM's `LLMEngine`; always in the same thread during a run."""

    def add_request(self, request_id: str, prompt: Any, params: Any) -> Any:
        """Take a request, `prompt` being `{"prompt_token_ids": ids}`."""

    def has_unfinished_requests(self) -> bool:
        """Whether there is something to sample."""

    def step(self) -> Sequence[Any]:
        """Sample a token of every request; return `RequestOutput`s, the finished ones at least."""

    def abort_request(self, request_ids: list[str]) -> Any:
        """Forget requests."""


class SteppedEngine:
    """Runs episodes and steps the engine that answers their requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: SimpleQueue[tuple[list[int], Any, Future[Any]] | None] = SimpleQueue()
        self._open: dict[str, Future[Any]] = {}

    async def run(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run episodes at the same time and return their results in order.

        Args:
            episodes: Coroutines that call `sample`. The first exception of one cancels the others
                and is raised; the engine forgets what they asked for.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="gem-engine") as thread:
            served = asyncio.get_running_loop().run_in_executor(thread, self._serve)
            try:
                return await together(episodes)
            finally:
                self._asked.put(None)
                await served

    async def sample(self, prompt_ids: list[int], params: Any) -> Any:
        """Return the engine's `RequestOutput` for a prompt; what the engine raises, this raises.

        Args:
            prompt_ids: Tokens of the prompt.
            params: The engine's sampling parameters of this request.

        Raises:
            RolloutError: The engine left the answer out.
        """
        answer: Future[Any] = Future()
        self._asked.put((prompt_ids, params, answer))
        return await asyncio.wrap_future(answer)

    def _serve(self) -> None:
        try:
            while self._take():
                for output in self._engine.step():
                    if output.finished:
                        self._open.pop(output.request_id).set_result(output)
                if self._open and not self._engine.has_unfinished_requests():
                    raise RolloutError("the engine left out the answer to a request")
        except Exception as error:
            self._refuse(error)
        else:
            self._engine.abort_request(list(self._open))

    def _take(self) -> bool:
        """Give the engine what is asked for; wait while it has nothing to do; False at the end."""
        while not self._open or not self._asked.empty():
            asked = self._asked.get()
            if asked is None:
                return False
            prompt_ids, params, answer = asked
            request = uuid4().hex
            if answer.set_running_or_notify_cancel():
                self._open[request] = answer
                self._engine.add_request(request, {"prompt_token_ids": prompt_ids}, params)
        return True

    def _refuse(self, error: Exception) -> None:
        """Answer everybody with the error that the engine ended with, until the run is over."""
        for answer in self._open.values():
            answer.set_exception(error)
        while (asked := self._asked.get()) is not None:
            _, _, answer = asked
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)


class SteppedSampler(EngineSampler):
    """An engine that is stepped as the sampler of one episode.

    `engine` is a `SteppedEngine` that returns `RequestOutput`s of one completion, with
    log-probabilities; `params` makes the sampling parameters of a turn, of `max_tokens`, `seed` and
    `stop_token_ids`.
    """

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn.

        Raises:
            RolloutError: vLLM aborted the request, left it out, or sampled from another prompt.
        """
        params = self.params(
            max_tokens=request.max_tokens, seed=self.turn_seed(), stop_token_ids=self.stop_ids
        )
        answer = await self.engine.sample(request.prompt_ids, params)
        if list(answer.prompt_token_ids) != request.prompt_ids:
            raise RolloutError("the engine sampled from another prompt than it was given")
        return self.vllm_sample(answer)
