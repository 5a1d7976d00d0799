"""Calls environments in threads: time limits, failures, and closing each environment once.

Used by the drivers `play` and `collect`; the threads are those of `gem.rollout.threads`.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from gem.blame import Cause, cause_of
from gem.contract import check_reset, check_step
from gem.core import Env, Info, Observation, Step
from gem.errors import MisuseError
from gem.rollout.threads import CallTimeoutError, env_threads
from gem.trajectory import Failure

T = TypeVar("T")

STEP_TIMEOUT_S = 600.0
"""Default limit of one `reset` or `step`: generous for environments, short for a hanging run."""

logger = logging.getLogger(__name__)


class EnvFailedError(Exception):
    """An environment, or something it relies on, failed or exceeded its time limit."""

    def __init__(self, message: str, cause: Cause = "environment") -> None:
        super().__init__(message, cause)
        self.message = message
        self.cause = cause

    def __str__(self) -> str:
        return self.message

    def failure(self, attempts: int) -> Failure:
        """Return the `Failure` of an episode whose last of `attempts` attempts failed this way."""
        return Failure(self.cause, self.message, attempts)


def env_failure(error: Exception, limit_s: float | None = None) -> EnvFailedError:
    """Convert an exception from a call to an environment into an `EnvFailedError`.

    Args:
        error: Raised by the call.
        limit_s: Time limit to name in the message, in seconds.

    Raises:
        Exception: `error` itself, if it is an error of the run's setup or code (`MisuseError`).
    """
    if isinstance(error, MisuseError):
        raise error
    if isinstance(error, EnvFailedError):
        return error
    if isinstance(error, CallTimeoutError):
        limit = "" if limit_s is None else f" of {limit_s:g} s"
        where = "" if error.inside is None else f" while it waited for its {error.inside}"
        message = f"environment exceeded its time limit{limit}{where}"
        return EnvFailedError(message, error.inside or "environment")
    return EnvFailedError(f"{type(error).__name__}: {error}", cause_of(error) or "environment")


def close_env(env: Env) -> None:
    """Close an environment that is no longer needed; log an exception instead of raising it."""
    try:
        env.close()
    except Exception:
        logger.warning("closing %r failed", env, exc_info=True)


class HeldEnv:
    """Owns one environment; closes it once, and never while a call to it runs.

    Any thread may call it. It checks what `reset` and `step` return (`gem.contract`).
    """

    def __init__(self, make: Callable[[], Env]) -> None:
        """Store the factory; `reset` makes the environment.

        Args:
            make: Makes the environment.
        """
        self._make = make
        # Reentrant: garbage collection may close an abandoned environment at any point, even here.
        self._lock = threading.RLock()
        self._env: Env | None = None
        self._running = self._closed = False

    def reset(self, seed: int) -> tuple[Observation, Info]:
        """Make the environment and reset it.

        Raises:
            ContractError: The environment did not return `(observation, info)`.
            Exception: Whatever the environment raised.
        """
        return self._alone(self._reset, seed)

    def step(self, action: str) -> Step:
        """Step the environment.

        Raises:
            ContractError: The environment did not return a valid step.
            Exception: Whatever the environment raised.
        """
        return self._alone(self._step, action)

    def close(self, *, wait: bool = False) -> None:
        """Close the environment, or have the running call close it when it returns.

        Args:
            wait: Close it in the calling thread, if no call runs. By default another thread
                closes it and this method returns at once.
        """
        with self._lock:
            self._closed = True
            if not self._running:
                self._release(wait)

    def _alone(self, function: Callable[..., T], argument: object) -> T:
        with self._lock:
            if self._closed:
                raise RuntimeError("the environment is closed")
            self._running = True
        try:
            return function(argument)
        finally:
            self._returned()

    def _returned(self) -> None:
        with self._lock:
            self._running = False
            if self._closed:
                self._release(wait=False)

    def _reset(self, seed: int) -> tuple[Observation, Info]:
        # Stored before `reset`, so that it is closed even if `reset` raises.
        self._env = self._make()
        return check_reset(self._env.reset(seed=seed))

    def _step(self, action: str) -> Step:
        assert self._env is not None
        return check_step(self._env.step(action))

    def _release(self, wait: bool) -> None:
        env, self._env = self._env, None
        # Most environments do not override `close`: no thread is needed.
        if env is None or getattr(type(env), "close", None) is Env.close:
            return
        if wait:
            close_env(env)
        else:
            env_threads().start(functools.partial(close_env, env))


class ThreadedEnv:
    """Calls one environment in threads, for an event loop, with a time limit.

    An environment that failed is closed. A call that exceeds the limit goes on in its thread, which
    cannot be ended; the environment is closed when the call returns.
    """

    def __init__(self, make: Callable[[], Env], timeout_s: float | None = STEP_TIMEOUT_S) -> None:
        """Store the factory; `reset` makes the environment.

        Args:
            make: Makes the environment, in a thread.
            timeout_s: Limit of one `make` and `reset`, or of one `step`, in seconds; None for no
                limit.
        """
        self._held = HeldEnv(make)
        self._timeout_s = timeout_s

    async def reset(self, seed: int) -> tuple[Observation, Info]:
        """Make the environment and reset it.

        Raises:
            EnvFailedError: The environment raised, broke its contract or exceeded the limit.
            ConfigurationError: The environment or one of its parameters is unknown.
        """
        return await self._call(self._held.reset, seed)

    async def step(self, action: str) -> Step:
        """Step the environment.

        Raises:
            EnvFailedError: The environment raised, broke its contract or exceeded the limit.
        """
        return await self._call(self._held.step, action)

    def close(self) -> None:
        """Close the environment in a thread, after any running call; return at once."""
        self._held.close()

    async def _call(self, function: Callable[..., T], argument: object) -> T:
        try:
            return await env_threads().run(function, argument, timeout_s=self._timeout_s)
        except Exception as error:
            self.close()
            raise env_failure(error, self._timeout_s) from error
