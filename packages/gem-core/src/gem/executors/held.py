"""One environment that several threads call: closed once, never while a call runs; its failures."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from gem.blame import Cause, cause_of
from gem.contract import check_reset, check_step
from gem.core import Env, Info, Observation, Step
from gem.errors import MisuseError, ResetNeededError, UnknownParameterError
from gem.executors.threads import CallTimeoutError, env_threads
from gem.foreign import contained, described, trace
from gem.trajectory import Failure

T = TypeVar("T")

STEP_TIMEOUT_S = 600.0
"""Default limit of one `reset` or `step`: generous for environments, short for a hanging run."""

EpisodeKey: TypeAlias = tuple[int, int]
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

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


def env_failure(error: BaseException, limit_s: float | None = None) -> EnvFailedError:
    """Convert an exception from a call to an environment into an `EnvFailedError`.

    Args:
        error: Raised by the call.
        limit_s: Time limit to name in the message, in seconds.

    Raises:
        BaseException: `error` itself, if it is an error of the run's setup or code (`MisuseError`),
            or the user interrupted the program.
    """
    error = contained(error)
    if isinstance(error, MisuseError):
        raise error
    if isinstance(error, EnvFailedError):
        return error
    if isinstance(error, CallTimeoutError):
        limit = "" if limit_s is None else f" of {limit_s:g} s"
        where = "" if error.inside is None else f" while it waited for its {error.inside}"
        message = f"environment exceeded its time limit{limit}{where}"
        return EnvFailedError(message, error.inside or "environment")
    return EnvFailedError(described(error), cause_of(error) or "environment")


def check_options(env: Env, options: Mapping[str, Any]) -> None:
    """Raise if an environment cannot be given these options of a reset.

    Raises:
        UnknownParameterError: Its `reset` does not take one of these names.
    """
    if not options:
        return
    for name in ("self", "seed"):
        if name in options:
            raise UnknownParameterError(f"{name!r} is not an option of a reset")
    try:
        inspect.signature(env.reset).bind(seed=None, **options)
    except TypeError as error:
        raise UnknownParameterError(f"{type(env).__name__}.reset: {error}") from None
    except ValueError:  # it is not written in Python
        return


def begin(env: Env, seed: int | None, options: Mapping[str, Any]) -> tuple[Observation, Info]:
    """Reset an environment; if that fails, its next reset without a seed begins this episode.

    Raises:
        ContractError: The environment did not return `(observation, info)`.
        Exception: Whatever the environment raised.
    """
    before = key_of(env)
    try:
        return check_reset(env.reset(seed=seed, **options))
    except BaseException:
        failed = key_of(env)
        if failed is not None and failed != before:
            env.seek(*failed)
        raise


def key_of(env: Env) -> EpisodeKey | None:
    """Return the key of an environment's episode, None if there is none."""
    try:
        return env.episode_key
    except ResetNeededError:
        return None
    except BaseException as error:
        logger.warning("episode_key raised: %s", trace(contained(error)))
        return None


def close_env(env: Env) -> None:
    """Close an environment that is no longer needed; log what it raises."""
    try:
        env.close()
    except BaseException as error:
        failed = contained(error)
        logger.warning("closing a %s failed: %s", type(env).__name__, trace(failed))


def _close(env: Env | None, after: Iterable[Callable[[], None]]) -> None:
    try:
        if env is not None:
            close_env(env)
    finally:
        for each in after:
            each()


class HeldEnv:
    """Owns one environment; closes it once, and never while a call to it runs.

    Any thread may call it. It checks what `reset` and `step` return (`gem.contract`).

    Attributes:
        after: Key of the last episode that began; an environment in the place of this one goes on
            with the next.
    """

    def __init__(
        self,
        make: Callable[[], Env],
        after: EpisodeKey | None = None,
        closed: Callable[[], None] | None = None,
    ) -> None:
        """Store the factory; `load` or `reset` makes the environment.

        Args:
            make: Makes the environment.
            after: Its first `reset` without a seed begins the episode after this one.
            closed: Called once, in any thread, when the environment is closed.
        """
        self._make = make
        self.after = after
        self._was_closed = closed
        # Reentrant: garbage collection may close an abandoned environment at any point, even here.
        self._lock = threading.RLock()
        self._env: Env | None = None
        self._running = self._closed = False

    def load(self) -> Env:
        """Make the environment, unless it is made already, and return it.

        Raises:
            Exception: Whatever making it raised.
        """
        return self._alone(self._load)

    def run(self, function: Callable[[Env], T]) -> T:
        """Return what a function of the environment returns; make the environment if necessary.

        Raises:
            Exception: Whatever it raised.
        """
        return self._alone(lambda: function(self._load()))

    def reset(
        self, seed: int | None, options: Mapping[str, Any] = NO_OPTIONS
    ) -> tuple[Observation, Info]:
        """Make the environment, if necessary, and reset it.

        Raises:
            ContractError: The environment did not return `(observation, info)`.
            Exception: Whatever the environment raised.
        """
        return self._alone(self._reset, seed, options)

    def step(self, action: str) -> Step:
        """Step the environment.

        Raises:
            ContractError: The environment did not return a valid step.
            Exception: Whatever the environment raised.
        """
        return self._alone(self._step, action)

    @property
    def is_running(self) -> bool:
        """Whether a call runs."""
        return self._running

    @property
    def episode_key(self) -> EpisodeKey | None:
        """Key of the episode, None if there is none; see `gem.Env.episode_key`."""
        return None if self._env is None else key_of(self._env)

    def close(self, *, wait: bool = False, done: Callable[[], None] | None = None) -> None:
        """Close the environment, or have the running call close it when it returns.

        Args:
            wait: Close it in the calling thread, if no call runs. By default another thread
                closes it and this method returns at once.
            done: Called when it is closed, in any thread; at once if a call runs.
        """
        with self._lock:
            self._closed = True
            running = self._running
            if not running:
                self._release(wait, done)
        if running and done is not None:
            done()

    def _alone(self, function: Callable[..., T], *arguments: object) -> T:
        with self._lock:
            if self._closed:
                raise RuntimeError("the environment is closed")
            self._running = True
        try:
            return function(*arguments)
        finally:
            self._returned()

    def _returned(self) -> None:
        with self._lock:
            self._running = False
            if self._closed:
                self._release(wait=False, done=None)

    def _load(self) -> Env:
        if self._env is None:
            self._env = self._make()
            if self.after is not None:
                base, episode = self.after
                self._env.seek(base, episode + 1)
        return self._env

    def _reset(self, seed: int | None, options: Mapping[str, Any]) -> tuple[Observation, Info]:
        env = self._load()
        check_options(env, options)
        result = begin(env, seed, options)
        self.after = key_of(env)
        return result

    def _step(self, action: str) -> Step:
        if self._env is None:
            raise ResetNeededError("the episode has not begun; call reset()")
        return check_step(self._env.step(action))

    def _release(self, wait: bool, done: Callable[[], None] | None) -> None:
        env, self._env = self._env, None
        closed, self._was_closed = self._was_closed, None
        close = functools.partial(_close, env, [each for each in (closed, done) if each])
        # Most environments do not override `close`: no thread is needed.
        if wait or env is None or getattr(type(env), "close", None) is Env.close:
            close()
        else:
            env_threads().start(close)
