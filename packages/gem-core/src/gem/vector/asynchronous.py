"""`AsyncVectorEnv`: environments of an executor; none waits for another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gem.core import Info, Observation, Step
from gem.errors import ConfigurationError, MisuseError
from gem.executors.base import EnvHandle, Executor
from gem.executors.held import STEP_TIMEOUT_S, EnvFailedError, env_failure
from gem.executors.recipe import Recipe
from gem.executors.threads import Result
from gem.parameters import optional, positive
from gem.vector.base import Actions, AutoresetMode, VectorEnv, columns, steps_of

Received: TypeAlias = (
    "tuple[npt.NDArray[np.int64], list[Observation], npt.NDArray[np.float64], "
    "npt.NDArray[np.bool_], npt.NDArray[np.bool_], list[Info]]"
)


class AsyncVectorEnv(VectorEnv):
    """Environments in threads, processes or elsewhere; see `VectorEnv`.

    Besides `reset` and `step`, which wait for all environments they concern, there are `send` and
    `recv`, named as in EnvPool, and `reset_one` and `step_one` for an event loop: a slow
    environment delays only itself.
    """

    def __init__(
        self,
        sources: Sequence[Recipe],
        executor: Executor,
        *,
        autoreset: AutoresetMode | str = AutoresetMode.SAME_STEP,
        seed: int | None = None,
        keep_seed: Iterable[int] = (),
        step_timeout_s: float | None = STEP_TIMEOUT_S,
    ) -> None:
        """Make the environments, all at the same time.

        Args:
            sources: What makes each environment.
            executor: Where they run; it is closed with this object.
            autoreset: Mode or its name.
            seed: Base seed of the first `reset` that is not given one.
            keep_seed: Indices of environments that `seed` does not apply to.
            step_timeout_s: Limit of one `reset` or `step` in seconds; None for no limit.

        Raises:
            EnvFailedError: One cannot be made; all others and the executor are closed.
            ConfigurationError, UnknownEnvError, UnknownParameterError: See `gem.make`.
        """
        optional(positive, "step_timeout_s", step_timeout_s)
        super().__init__(len(sources), autoreset=autoreset, seed=seed, keep_seed=keep_seed)
        self._executor = executor
        self._queue: SimpleQueue[list[Result]] = SimpleQueue()
        self._unsent = self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._futures: dict[int, asyncio.Future[Step]] = {}
        self._handles: list[EnvHandle] = []
        try:
            for i, source in enumerate(sources):
                self._handles.append(executor.open(source, self._take, timeout_s=step_timeout_s))
                self._handles[i].load(i)
            executor.flush()
            made = 0
            while made < len(sources):
                for i, result in self._queue.get():
                    made += 1
                    if isinstance(result, MisuseError):
                        raise result
                    if isinstance(result, Exception):
                        raise EnvFailedError(f"environment {i}: {env_failure(result).message}")
        except BaseException:
            self.close()
            raise

    def send(self, actions: Actions) -> None:
        """Begin a turn in all environments, or in some, and return at once.

        Args:
            actions: One action per environment, or `{index: action}` for some of them.

        Raises:
            ConfigurationError: The actions do not fit the environments, or the last result of one
                of them was not received.
            ResetNeededError: See `step`.
        """
        self._begin(actions)
        self._flush()

    def recv(self, min_ready: int = 1, timeout_s: float | None = None) -> Received:
        """Return the turns that have ended.

        Args:
            min_ready: Number of environments to wait for.
            timeout_s: Longest wait in seconds; then there may be fewer, or none.

        Returns:
            `(indices int64[n], observations, rewards float64[n], terminated bool[n],
            truncated bool[n], infos)`, in the order in which the turns ended.

        Raises:
            ConfigurationError: Fewer than `min_ready` turns were sent.
        """
        running = sum(slot.call is not None for slot in self._slots) - len(self._futures)
        if min_ready < 1 or min_ready > running + len(self._kept):
            raise ConfigurationError(
                f"min_ready must be from 1 to the number of turns that were sent and not received, "
                f"{running + len(self._kept)}, got {min_ready}"
            )
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        self._settle_arrived(0)
        while len(self._kept) < min_ready:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            self._settle_arrived(left)
            if left == 0:
                break
        received, self._kept = self._kept, {}
        return (np.array(list(received), dtype=np.int64), *columns(steps_of(received.values())))

    async def reset_one(
        self, i: int, seed: int | None = None, **options: Any
    ) -> tuple[Observation, Info]:
        """Begin an episode in one environment; the event loop goes on.

        Raises:
            ConfigurationError: There is no such environment, or its last result was not received.
        """
        (i,) = self._checked([i])
        self._require_idle([i])
        self._loop = asyncio.get_running_loop()
        self._reset(i, seed, options)
        observation, *_, info = await self._turn(i)
        return observation, info

    async def step_one(self, i: int, action: str) -> Step:
        """Play one turn in one environment; the event loop goes on.

        Raises:
            ConfigurationError: There is no such environment, or its last result was not received.
            ResetNeededError: See `step`.
        """
        self._loop = asyncio.get_running_loop()
        self._begin({i: action})
        return await self._turn(i)

    def close(self) -> None:
        """Close all environments and the executor; calls without a result fail. Safe to repeat."""
        self._is_closed = True
        for handle in self._handles:
            handle.close()
        self._executor.close()
        for future in self._futures.values():
            with suppress(RuntimeError):  # its loop is closed
                if not future.done():
                    future.set_exception(ConfigurationError("the vector environment was closed"))

    async def _turn(self, i: int) -> Step:
        future: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        self._futures[i] = future
        self._flush()
        self._drain()
        try:
            return await future
        finally:
            del self._futures[i]

    def _drain(self) -> None:
        """Give what has arrived to those who wait for it in the event loop."""
        if self._is_closed:
            return
        self._settle_arrived(0)
        for i in self._kept.keys() & self._futures.keys():
            future, result = self._futures[i], self._kept.pop(i)
            if future.done():
                self._kept[i] = result  # cancelled: for `recv`
            elif isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _require_idle(self, chosen: Sequence[int]) -> None:
        self._require_open()
        super()._require_idle(chosen)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConfigurationError("the vector environment is closed")

    def _call(self, i: int, name: str, *arguments: Any) -> None:
        handle = self._handles[i]
        (handle.step if name == "step" else handle.reset)(i, *arguments)
        self._unsent = True

    def _flush(self) -> None:
        if self._unsent:
            self._unsent = False
            self._executor.flush()

    def _arrived(self, timeout_s: float | None) -> list[Result]:
        self._require_open()
        self._flush()
        results: list[Result] = []
        try:
            results += self._queue.get(timeout_s != 0, timeout_s)
            while True:
                results += self._queue.get_nowait()
        except Empty:
            return results

    def _take(self, results: list[Result]) -> None:
        """Take results, in any thread."""
        self._queue.put(results)
        if self._loop is not None:
            # A loop that is closed has nobody who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._drain)
