"""Many episodes with a sampler of whole batches: `play_batch`, and `Rounds` that it is made of.

See `gem.rollout.play` for the driver of one episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar

from gem.blame import boundary
from gem.core import Env
from gem.errors import ConfigurationError, RolloutError
from gem.executors.base import Executor
from gem.executors.held import STEP_TIMEOUT_S
from gem.rollout.play import Budget, Request, Sample, Sampler, play
from gem.rollout.tokens import ChatFormat
from gem.tasks import Task
from gem.trajectory import Trajectory

T = TypeVar("T")

BatchSampler: TypeAlias = Callable[[list[Request]], list[Sample]]
"""Samples one response per request, in order."""
Player: TypeAlias = Callable[[Sampler], Coroutine[Any, Any, T]]
"""Plays an episode with a sampler of its own."""


def play_batch(
    tasks: Sequence[Task],
    sampler: BatchSampler,
    chat: ChatFormat,
    *,
    budget: Budget,
    context: str = "chat",
    groups: Sequence[int] | None = None,
    make_env: Callable[[Task], Env] | None = None,
    retries: int = 1,
    step_timeout_s: float | None = STEP_TIMEOUT_S,
    executor: str | Executor | None = None,
) -> list[Trajectory]:
    """Play one episode per task in lockstep; finished episodes leave the batch.

    Environments run at the same time, none in the caller's thread. If one raises, breaks its
    contract or exceeds `step_timeout_s`, its episode starts over with a new environment, up to
    `retries` times; then the episode has a `Failure`. The others go on.

    Args:
        tasks: The episodes to play.
        sampler: Called in the calling thread, once per round, with the requests of all unfinished
            episodes. After a restart an episode's request is `fresh` again. The caller gets what
            the sampler raises.
        chat: The model's chat format.
        budget: Token and turn limits.
        context: What the policy is shown.
        groups: Group of each task; by default each is its own.
        make_env: Makes the environment of a task, in a thread of this process; by default the
            executor makes it.
        retries: Further attempts after an environment failed.
        step_timeout_s: Limit of one `reset`, with the making of the environment, or one `step`,
            in seconds, None for no limit; the thread of an environment that hangs cannot be ended
            and stays behind.
        executor: Where environments run: an executor or its name, see
            `gem.executors.named.shared_executor`.

    Returns:
        One trajectory per task, in order.

    Raises:
        RolloutError: The sampler did not answer every request.
        ConfigurationError: A task names an unknown environment or parameter, the chat template
            cannot show an observation, or the executor is unknown or cannot run an environment.
    """
    if groups is not None and len(groups) != len(tasks):
        raise ConfigurationError(f"{len(groups)} groups for {len(tasks)} tasks")

    def player(number: int, task: Task) -> Player[Trajectory]:
        return lambda ask: play(
            task,
            ask,
            chat,
            budget=budget,
            context=context,
            group=number if groups is None else groups[number],
            index=number,
            make_env=make_env,
            retries=retries,
            step_timeout_s=step_timeout_s,
            executor=executor,
        )

    return Rounds(sampler).play([player(*numbered) for numbered in enumerate(tasks)])


class Rounds:
    """Plays episodes; whenever all that are open ask for a turn, the sampler answers a round.

    Which requests meet in a round depends on the episodes only, so that a sampler with one
    generator for all of them samples the same in every run. The sampler is called in the calling
    thread, with the requests in the order of the episodes. A match is one of the episodes; those
    who move at the same time in it ask in one round.
    """

    def __init__(self, sampler: BatchSampler) -> None:
        """Prepare for a batch of episodes.

        Args:
            sampler: Answers a round.
        """
        self._sampler = sampler
        self._asking: dict[int, list[tuple[Request, asyncio.Future[Sample]]]] = {}
        self._open = 0
        self._stops = False

    def play(self, episodes: Sequence[Player[T]]) -> list[T]:
        """Run episodes to their ends and return their results in order.

        Raises:
            RolloutError: The sampler returned another number of samples than there were requests.
            Exception: The first one that an episode or the sampler raised; the other episodes are
                cancelled.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._play(episodes))
        self._stops = False
        with ThreadPoolExecutor(1) as thread:  # of a notebook, where a loop runs in this one
            try:
                return thread.submit(asyncio.run, self._play(episodes)).result()
            finally:  # after Ctrl-C, which this thread gets, the other one has no further round
                self._stops = True

    async def _play(self, episodes: Sequence[Player[T]]) -> list[T]:
        self._open, self._changed = len(episodes), asyncio.Event()
        numbered = [self._counted(n, episode) for n, episode in enumerate(episodes)]
        task = asyncio.create_task(together(numbered))
        task.add_done_callback(lambda _: self._changed.set())
        try:
            while not await self._are_over(task):
                # All open episodes ask: while the sampler keeps this loop, none has work to do.
                # Requests made at the same time come together: nothing runs between them.
                asking = [each for n in sorted(self._asking) for each in self._asking.pop(n)]
                samples = self._round([request for request, _ in asking])
                for (_, future), sample in zip(asking, samples, strict=True):
                    future.set_result(sample)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _round(self, requests: list[Request]) -> list[Sample]:
        """Sample a turn for each request."""
        if self._stops:
            raise RolloutError("the rounds were interrupted")
        with boundary("engine"):
            samples = self._sampler(requests)
            if len(samples) != len(requests):
                raise RolloutError(f"sampler answered {len(samples)} of {len(requests)} requests")
        return samples

    async def _are_over(self, task: asyncio.Task[Any]) -> bool:
        """Return whether the episodes are over, as soon as all that are open ask for a turn."""
        while not task.done() and not 0 < self._open == len(self._asking):
            await self._changed.wait()
            self._changed.clear()
        return task.done()

    async def _counted(self, number: int, episode: Player[T]) -> T:
        try:
            return await episode(partial(self._sample, number))
        finally:
            self._open -= 1
            self._changed.set()

    async def _sample(self, number: int, request: Request) -> Sample:
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._asking.setdefault(number, []).append((request, future))
        self._changed.set()
        return await future


async def together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at the same time and return their results in order.

    The first exception cancels the others and is raised.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
