"""`ThreadExecutor`: environments in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gem.core import Env
from gem.executors.base import EnvHandle, Executor
from gem.executors.held import NO_OPTIONS, STEP_TIMEOUT_S, EpisodeKey, HeldEnv
from gem.executors.recipe import Recipe
from gem.executors.threads import Sink, env_threads


class ThreadExecutor(Executor):
    """Environments in the threads that all of a process share; right for those that wait."""

    def open(
        self,
        source: Recipe | Callable[[], Env],
        sink: Sink,
        *,
        timeout_s: float | None = STEP_TIMEOUT_S,
        after: EpisodeKey | None = None,
    ) -> EnvHandle:
        """Return a handle of a new environment, which its first call makes."""
        make = source.make if isinstance(source, Recipe) else source
        return _ThreadHandle(make, sink, timeout_s, after)

    def flush(self) -> None:
        """Do nothing: calls begin at once."""

    def close(self) -> None:
        """Do nothing: threads that wait for calls belong to the process."""


class _ThreadHandle(EnvHandle):
    def __init__(
        self,
        make: Callable[[], Env],
        sink: Sink,
        timeout_s: float | None,
        after: EpisodeKey | None,
    ) -> None:
        self._make = make
        self._sink = sink
        self._timeout_s = timeout_s
        self._held = HeldEnv(make, after)

    def load(self, token: Any) -> None:
        self._submit(token, self._held.load)

    def reset(
        self, token: Any, seed: int | None = None, options: Mapping[str, Any] = NO_OPTIONS
    ) -> None:
        if self._held.is_running:
            # A call exceeded its limit and goes on in its thread.
            self._held.close()
            self._held = HeldEnv(self._make, self._held.after)
        self._submit(token, self._held.reset, seed, options)

    def step(self, token: Any, action: str) -> None:
        self._submit(token, self._held.step, action)

    def close(self, token: Any = None) -> None:
        done = None if token is None else partial(self._sink, [(token, None)])
        self._held.close(done=done)

    def _submit(self, token: Any, function: Callable[..., Any], *arguments: Any) -> None:
        call = partial(function, *arguments)
        env_threads().submit(call, self._sink, token, self._timeout_s)
