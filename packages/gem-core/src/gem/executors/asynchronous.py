"""`AsyncEnv`: one environment of an executor, for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gem.core import Env, Info, Observation, Step
from gem.executors.base import EnvHandle, Executor
from gem.executors.held import STEP_TIMEOUT_S, env_failure
from gem.executors.named import shared_executor
from gem.executors.recipe import Recipe
from gem.executors.threads import to_loops
from gem.tasks import Task


class AsyncEnv:
    """One environment; a slow one never blocks the event loop.

    One that failed is closed. A call that exceeds its limit in a thread goes on there, as a thread
    cannot be ended; the environment is closed when the call returns.
    """

    def __init__(
        self,
        source: Task | Callable[[], Env],
        timeout_s: float | None = STEP_TIMEOUT_S,
        executor: str | Executor | None = None,
    ) -> None:
        """Store what makes the environment; `reset` makes it.

        Args:
            source: A task, or a function that makes the environment in a thread of this process.
            timeout_s: Limit of making and the first reset, and of each later call, in seconds;
                None for no limit.
            executor: Where the environment runs: an executor or its name, see
                `gem.executors.named.shared_executor`.

        Raises:
            ConfigurationError, MissingExtraError, UnreachableError: There is no such executor.
        """
        if not isinstance(executor, Executor):
            executor = shared_executor(executor)
        self._executor = executor
        self._source = Recipe(source.env_id, source.params) if isinstance(source, Task) else source
        self._timeout_s = timeout_s
        self._handle: EnvHandle | None = None

    async def reset(self, seed: int) -> tuple[Observation, Info]:
        """Make the environment and reset it.

        Raises:
            EnvFailedError: The environment raised, broke its contract or exceeded the limit.
            ConfigurationError: The environment or one of its parameters is unknown.
        """
        self._handle = self._executor.open(self._source, to_loops, timeout_s=self._timeout_s)
        result: tuple[Observation, Info] = await self._call(self._handle.reset, seed)
        return result

    async def step(self, action: str) -> Step:
        """Step the environment.

        Raises:
            EnvFailedError: The environment raised, broke its contract or exceeded the limit.
        """
        assert self._handle is not None
        result: Step = await self._call(self._handle.step, action)
        return result

    def close(self) -> None:
        """Close the environment, after any running call; return at once."""
        if self._handle is not None:
            self._handle.close()

    async def aclose(self) -> None:
        """Close the environment and wait for it, unless a call runs or closing takes too long."""
        if self._handle is not None:
            future = asyncio.get_running_loop().create_future()
            self._handle.close(future)
            await asyncio.wait([future], timeout=self._timeout_s)

    async def _call(self, function: Callable[..., None], argument: object) -> Any:
        future = asyncio.get_running_loop().create_future()
        function(future, argument)
        self._executor.flush_soon()
        try:
            return await future
        except Exception as error:
            self.close()
            raise env_failure(error, self._timeout_s) from error
