"""`SyncVectorEnv`: environments stepped one after the other in the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from gem.contract import check_step
from gem.core import Env
from gem.executors.held import begin, check_options, close_env
from gem.foreign import called, contained
from gem.vector.base import AutoresetMode, VectorEnv


class SyncVectorEnv(VectorEnv):
    """Environments in the calling thread, stepped one after the other; see `VectorEnv`.

    Attributes:
        envs: The environments, outermost wrappers.
    """

    def __init__(
        self,
        envs: Iterable[Env | Callable[[], Env]],
        *,
        autoreset: AutoresetMode | str = AutoresetMode.SAME_STEP,
        seed: int | None = None,
        keep_seed: Iterable[int] = (),
    ) -> None:
        """Store the environments, without resetting them.

        Args:
            envs: Environments, or functions that make them; if a function raises, the environments
                made by earlier ones are closed.
            autoreset: Mode or its name.
            seed: Base seed of the first `reset` that is not given one.
            keep_seed: Indices of environments that `seed` does not apply to.

        Raises:
            ConfigurationError: No environment, or an unknown mode.
        """
        self.envs: list[Env] = []
        with ExitStack() as made:
            for env in envs:
                if not isinstance(env, Env):
                    env = called(env)
                    made.callback(close_env, env)
                self.envs.append(env)
            super().__init__(len(self.envs), autoreset=autoreset, seed=seed, keep_seed=keep_seed)
            made.pop_all()
        self._results: list[tuple[int, Any]] = []

    def close(self) -> None:
        """Close all environments; what one of them raises is logged. Safe to repeat."""
        with ExitStack() as stack:
            for env in self.envs:
                stack.callback(close_env, env)

    def _call(self, i: int, name: str, *arguments: Any) -> None:
        env = self.envs[i]
        try:
            if name == "step":
                result: Any = check_step(env.step(*arguments))
            else:
                check_options(env, arguments[1])
                result = begin(env, *arguments)
        except BaseException as error:
            try:
                result = contained(error)
            except BaseException:  # such as Ctrl-C
                self._interrupted(i)
                self._results.clear()
                raise
        self._results.append((i, result))

    def _arrived(self, timeout_s: float | None) -> list[tuple[int, Any]]:
        results, self._results = self._results, []
        return results
