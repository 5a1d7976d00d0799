"""What every executor can do: run environments somewhere, without the caller waiting for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from gem.core import Env
from gem.executors.held import NO_OPTIONS, STEP_TIMEOUT_S, EpisodeKey
from gem.executors.recipe import Recipe
from gem.executors.threads import Sink


class EnvHandle(ABC):
    """An environment in an executor: one call at a time, whose result goes to a sink.

    Results are what `gem.contract` allows an environment to return, or an Exception: a
    `MisuseError`, a `CallTimeoutError`, or what the environment raised
    (`gem.executors.held.env_failure` turns all but the first into one).
    """

    @abstractmethod
    def load(self, token: Any) -> None:
        """Make the environment; the result is None."""

    @abstractmethod
    def reset(
        self, token: Any, seed: int | None = None, options: Mapping[str, Any] = NO_OPTIONS
    ) -> None:
        """Begin an episode, in a new environment if a call exceeded its limit before.

        Args:
            token: Names the call.
            seed: As in `gem.Env.reset`.
            options: Of the environment's `reset`.
        """

    @abstractmethod
    def step(self, token: Any, action: str) -> None:
        """Play one turn."""

    @abstractmethod
    def close(self, token: Any = None) -> None:
        """Close the environment, after any call that runs; return at once. Safe to repeat.

        Args:
            token: If it is given, a result None follows: in threads when the environment is
                closed, but not if a call runs.
        """


class Executor(ABC):
    """Runs environments: in threads, other processes or elsewhere. Thread-safe."""

    @abstractmethod
    def open(
        self,
        source: Recipe | Callable[[], Env],
        sink: Sink,
        *,
        timeout_s: float | None = STEP_TIMEOUT_S,
        after: EpisodeKey | None = None,
    ) -> EnvHandle:
        """Return a handle of a new environment, which its first call makes.

        Args:
            source: Makes the environment: a recipe, or a function where it runs in this process.
            sink: Is given the results of its calls.
            timeout_s: Limit of each call in seconds, without its time in a queue; that of the first
                includes making the environment. None for no limit.
            after: Key of an episode: the first reset without a seed begins the one after it.

        Raises:
            ConfigurationError: The environment cannot be made elsewhere, and has to be.
        """

    @abstractmethod
    def flush(self) -> None:
        """Send the calls that wait to be sent together; callers do so after one or several."""

    def flush_soon(self) -> None:
        """Have the running event loop flush, once for all calls of this turn of the loop."""
        self.flush()

    @abstractmethod
    def close(self) -> None:
        """End everything that belongs to the executor. Safe to repeat."""
