"""Environments that are called in threads: their failures, their time limits, their end."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from gem.core import Env, Info, Observation, Step
from gem.errors import (
    ConfigurationError,
    MissingExtraError,
    UnknownEnvError,
    UnknownParameterError,
)
from gem.rollout.threads import CallTimeoutError, env_threads

T = TypeVar("T")

STEP_TIMEOUT_S = 600.0
"""Default limit of one `reset` or `step`: long for any environment, short for a run that hangs."""

logger = logging.getLogger(__name__)


class EnvFailedError(Exception):
    """An environment raised or exceeded its time limit."""


@contextlib.contextmanager
def blames_env(limit_s: float | None = None) -> Iterator[None]:
    """Turn what an environment raises into `EnvFailedError`; wrong configuration passes.

    Args:
        limit_s: Time limit to name in the message, in seconds.
    """
    try:
        yield
    except (ConfigurationError, MissingExtraError, UnknownEnvError, UnknownParameterError):
        raise
    except CallTimeoutError as error:
        limit = "" if limit_s is None else f" of {limit_s:g} s"
        raise EnvFailedError(f"environment exceeded its time limit{limit}") from error
    except Exception as error:
        raise EnvFailedError(f"{type(error).__name__}: {error}") from error


def close_env(env: Env) -> None:
    """Close an environment that is no longer needed; a failure to do so loses nothing."""
    try:
        env.close()
    except Exception:
        logger.warning("closing %r failed", env, exc_info=True)


class ThreadedEnv:
    """One environment, called in threads, and closed once: never while a call to it runs.

    A call that exceeds the time limit goes on in its thread, which cannot be ended. Whatever it
    opened is released when it returns.
    """

    def __init__(self, make: Callable[[], Env], timeout_s: float | None = STEP_TIMEOUT_S) -> None:
        """Make no environment yet.

        Args:
            make: Makes it, in a thread.
            timeout_s: Limit of one `reset`, with the making, or one `step`, in seconds; None for
                no limit.
        """
        self._make = make
        self._timeout_s = timeout_s
        # Reentrant: an abandoned episode closes its environment whenever garbage is collected.
        self._lock = threading.RLock()
        self._env: Env | None = None
        self._running = self._closed = False

    async def reset(self, seed: int) -> tuple[Observation, Info]:
        """Make the environment and reset it.

        Raises:
            EnvFailedError: It raised or exceeded the limit.
            ConfigurationError: It is unknown, or a parameter of it is.
        """
        # One visit to a thread; the environment is held even if its reset fails.
        return await self._call(self._reset, seed)

    async def step(self, action: str) -> Step:
        """Step the environment.

        Raises:
            EnvFailedError: It raised or exceeded the limit.
        """
        return await self._call(self._step, action)

    def close(self) -> None:
        """Close the environment in a thread, after a call that still runs; waits for nothing."""
        with self._lock:
            self._closed = True
            if not self._running:
                self._release()

    async def _call(self, function: Callable[..., T], argument: object) -> T:
        with blames_env(self._timeout_s):
            return await env_threads().run(
                self._alone, function, argument, timeout_s=self._timeout_s
            )

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
                self._release()

    def _reset(self, seed: int) -> tuple[Observation, Info]:
        self._env = self._make()
        return self._env.reset(seed=seed)

    def _step(self, action: str) -> Step:
        assert self._env is not None
        return self._env.step(action)

    def _release(self) -> None:
        env, self._env = self._env, None
        # Most environments hold nothing that would have to be released.
        if env is not None and getattr(type(env), "close", None) is not Env.close:
            env_threads().start(functools.partial(close_env, env))
