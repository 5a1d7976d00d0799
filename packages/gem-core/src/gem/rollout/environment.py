"""Environments that are called in threads: their failures, their time limits, their end."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from gem.blame import MISUSE, Cause, cause_of
from gem.contract import check_reset, check_step
from gem.core import Env, Info, Observation, Step
from gem.rollout.threads import CallTimeoutError, env_threads
from gem.trajectory import Failure

T = TypeVar("T")

STEP_TIMEOUT_S = 600.0
"""Default limit of one `reset` or `step`: long for any environment, short for a run that hangs."""

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
        """Return what is noted of an episode that failed `attempts` times, this time at last."""
        return Failure(self.cause, self.message, attempts)


def env_failure(error: Exception, limit_s: float | None = None) -> EnvFailedError:
    """Return the failure that an exception of a call to an environment means.

    Args:
        error: What the call raised.
        limit_s: Time limit to name in the message, in seconds.

    Raises:
        Exception: `error` itself, if whoever set up or wrote the run is to blame (`MISUSE`).
    """
    if isinstance(error, MISUSE):
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
    """Close an environment that is no longer needed; a failure to do so loses nothing."""
    try:
        env.close()
    except Exception:
        logger.warning("closing %r failed", env, exc_info=True)


class HeldEnv:
    """One environment and its end: closed once, and never while a call to it runs.

    Calls may come from any thread. What `reset` and `step` return is checked (`gem.contract`).
    """

    def __init__(self, make: Callable[[], Env]) -> None:
        """Make no environment yet.

        Args:
            make: Makes it when it is reset.
        """
        self._make = make
        # Reentrant: an abandoned episode closes its environment whenever garbage is collected.
        self._lock = threading.RLock()
        self._env: Env | None = None
        self._running = self._closed = False

    def reset(self, seed: int) -> tuple[Observation, Info]:
        """Make the environment and reset it.

        Raises:
            ContractError: What it returned is no observation and info.
            Exception: Whatever it raised.
        """
        return self._alone(self._reset, seed)

    def step(self, action: str) -> Step:
        """Step the environment.

        Raises:
            ContractError: What it returned is no step.
            Exception: Whatever it raised.
        """
        return self._alone(self._step, action)

    def close(self, *, wait: bool = False) -> None:
        """Close the environment, after a call that still runs.

        Args:
            wait: Close it in the calling thread, unless a call still runs. Otherwise it is closed
                in a thread and nothing is waited for.
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
        # Held even if its reset fails.
        self._env = self._make()
        return check_reset(self._env.reset(seed=seed))

    def _step(self, action: str) -> Step:
        assert self._env is not None
        return check_step(self._env.step(action))

    def _release(self, wait: bool) -> None:
        env, self._env = self._env, None
        # Most environments hold nothing that would have to be released.
        if env is None or getattr(type(env), "close", None) is Env.close:
            return
        if wait:
            close_env(env)
        else:
            env_threads().start(functools.partial(close_env, env))


class ThreadedEnv:
    """One environment, called in threads by an event loop, with a time limit.

    A call that exceeds the limit goes on in its thread, which cannot be ended. Whatever it opened
    is released when it returns.
    """

    def __init__(self, make: Callable[[], Env], timeout_s: float | None = STEP_TIMEOUT_S) -> None:
        """Make no environment yet.

        Args:
            make: Makes it, in a thread.
            timeout_s: Limit of one `reset`, with the making, or one `step`, in seconds; None for
                no limit.
        """
        self._held = HeldEnv(make)
        self._timeout_s = timeout_s

    async def reset(self, seed: int) -> tuple[Observation, Info]:
        """Make the environment and reset it.

        Raises:
            EnvFailedError: It raised, broke its contract or exceeded the limit.
            ConfigurationError: It is unknown, or a parameter of it is.
        """
        return await self._call(self._held.reset, seed)

    async def step(self, action: str) -> Step:
        """Step the environment.

        Raises:
            EnvFailedError: It raised, broke its contract or exceeded the limit.
        """
        return await self._call(self._held.step, action)

    def close(self) -> None:
        """Close the environment in a thread, after a call that still runs; waits for nothing."""
        self._held.close()

    async def _call(self, function: Callable[..., T], argument: object) -> T:
        try:
            return await env_threads().run(function, argument, timeout_s=self._timeout_s)
        except Exception as error:
            raise env_failure(error, self._timeout_s) from error
