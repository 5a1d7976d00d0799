"""`ExecutedEnv`: an environment in an executor, as an `Env` whose methods wait for it."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from gem.core import Env, Info, Observation, Step, reset_options
from gem.executors.base import Executor
from gem.executors.held import EpisodeKey
from gem.executors.recipe import Recipe
from gem.executors.threads import Result


class ExecutedEnv(Env):
    """An environment in other processes or on a Ray cluster; it can be reset, stepped and closed.

    The executor ends what exceeds its limit, and goes on elsewhere when a worker is lost.
    Whether it is replayable is known after the first `reset`.
    """

    replayable = False

    def __init__(self, executor: Executor, recipe: Recipe, timeout_s: float | None) -> None:
        """Make the environment.

        Args:
            executor: Where it runs.
            recipe: What makes it.
            timeout_s: Limit of each call in seconds, None for no limit.

        Raises:
            ConfigurationError: See `Executor.open`.
            Exception: What making it raised.
        """
        super().__init__()
        self._executor = executor
        self._recipe = recipe
        self._timeout_s = timeout_s
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._begun: EpisodeKey | None = None
        self._handle = executor.open(recipe, self._take, timeout_s=timeout_s)
        try:
            self._ask(self._handle.load)
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode.

        An executor begins a series of episodes at its first one, or goes on with the next. For any
        other episode the environment is made anew, so that no episode takes longer to begin than
        another.
        """
        super().reset(seed=seed)
        (base, episode), before = self.episode_key, self._begun
        self._begun = None
        if episode and before != (base, episode - 1):
            self._handle.close()
            self._handle = self._executor.open(
                self._recipe, self._take, timeout_s=self._timeout_s, after=(base, episode - 1)
            )
        first: tuple[Observation, Info] = self._ask(
            self._handle.reset, None if episode else base, reset_options(options)
        )
        self._begun = base, episode
        self.replayable = getattr(self._handle, "replayable", True)
        return first

    def step(self, action: str) -> Step:
        """Play one turn."""
        step: Step = self._ask(self._handle.step, action)
        return step

    def close(self) -> None:
        """Close the environment; the executor may still be at work on it. Safe to repeat."""
        self._handle.close()

    def _take(self, results: list[Result]) -> None:
        for _, result in results:
            self._results.put(result)

    def _ask(self, call: Callable[..., None], *arguments: Any) -> Any:
        call(None, *arguments)
        self._executor.flush()
        result = self._results.get()
        if isinstance(result, Exception):
            raise result
        return result
