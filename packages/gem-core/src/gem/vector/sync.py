"""`SyncVectorEnv`: environments stepped one after the other in the calling thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from operator import index
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gem.blame import cause_of
from gem.contract import check_reset, check_step
from gem.core import Env, Info, Observation, Step
from gem.errors import ConfigurationError, MisuseError, ResetNeededError
from gem.parameters import choice
from gem.seeding import env_seed
from gem.trajectory import Failure

logger = logging.getLogger(__name__)

Actions: TypeAlias = "Sequence[str] | npt.NDArray[Any] | Mapping[int, str]"
VectorStep: TypeAlias = (
    "tuple[list[Observation], npt.NDArray[np.float64], npt.NDArray[np.bool_], "
    "npt.NDArray[np.bool_], list[Info]]"
)


class AutoresetMode(Enum):
    """What a vector environment does when an episode ends."""

    SAME_STEP = "same_step"
    """The step that ends an episode resets it: it returns the first observation of the next
    episode, and the info of that reset together with `final_obs` and `final_info`."""
    NEXT_STEP = "next_step"
    """The step after the end ignores its action, resets, and returns reward 0."""
    DISABLED = "disabled"
    """The caller resets: `reset(indices=[...])`."""


class SyncVectorEnv:
    """Several environments with one `reset` and one `step`.

    An environment that raises, or breaks `gem.contract`, does not disturb the others: its slot has
    reward 0, `truncated` set and a `gem.trajectory.Failure` in `info["failure"]`, and its episode
    must not be counted. Like any other end, this is followed by a reset according to the autoreset
    mode; a reset that fails is tried again by the next step of that slot (with `DISABLED`, by the
    caller). Errors of the caller (`gem.errors.MisuseError`, such as ConfigurationError) are raised
    by `reset` and `step`.

    Attributes:
        envs: The environments, outermost wrappers.
        autoreset: The autoreset mode.
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
        mode = autoreset.value if isinstance(autoreset, AutoresetMode) else autoreset
        known = tuple(each.value for each in AutoresetMode)
        self.autoreset = AutoresetMode(choice("autoreset", mode, known))
        self.envs: list[Env] = []
        with ExitStack() as made:
            for env in envs:
                if not isinstance(env, Env):
                    env = env()
                    made.callback(env.close)
                self.envs.append(env)
            made.pop_all()
        if not self.envs:
            raise ConfigurationError("a vector environment needs at least one environment")
        kept = set(keep_seed)
        # Seed of the next reset that is not given one; None continues with the next episode.
        self._next_seed = [
            None if seed is None or i in kept else env_seed(seed, i) for i in range(self.num_envs)
        ]
        self._begun = [False] * self.num_envs
        self._needs_reset = [True] * self.num_envs

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return len(self.envs)

    def reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        *,
        indices: Sequence[int] | None = None,
        **options: Any,
    ) -> tuple[list[Observation], list[Info]]:
        """Begin an episode in all environments, or in some.

        Args:
            seed: An integer gives environment `i` the seed `env_seed(seed, i)`; a sequence has
                one seed for each environment to be reset; with None each continues with the next
                episode of its own seed.
            indices: Environments to reset, all by default.
            **options: Passed to each environment's `reset`.

        Returns:
            `(observations, infos)`, in the order of `indices`.

        Raises:
            ConfigurationError: An index does not exist, or the number of seeds is wrong.
        """
        chosen = self._checked(range(self.num_envs) if indices is None else indices)
        seeds = _seeds(seed, chosen)
        results = [self._reset(i, s, options) for i, s in zip(chosen, seeds, strict=True)]
        return [observation for observation, _ in results], [info for _, info in results]

    def step(self, actions: Actions) -> VectorStep:
        """Play one turn in all environments, or in some.

        Args:
            actions: One action per environment, or `{index: action}` for some of them.

        Returns:
            `(observations, rewards float64[n], terminated bool[n], truncated bool[n], infos)` of
            the environments stepped, in the order of the mapping.

        Raises:
            ConfigurationError: The actions do not fit the environments.
            ResetNeededError: An episode has not begun, or is over and autoreset is disabled; no
                environment was stepped.
        """
        chosen, texts = self._split(actions)
        waiting = [i for i in chosen if self._needs_reset[i]]
        if waiting and (
            self.autoreset is AutoresetMode.DISABLED or not all(self._begun[i] for i in waiting)
        ):
            raise ResetNeededError(
                f"environments {waiting} have no running episode; call reset(indices={waiting})"
            )
        results = [self._step(i, action) for i, action in zip(chosen, texts, strict=True)]
        return (
            [step[0] for step in results],
            np.array([step[1] for step in results], dtype=np.float64),
            np.array([step[2] for step in results], dtype=np.bool_),
            np.array([step[3] for step in results], dtype=np.bool_),
            [step[4] for step in results],
        )

    def close(self) -> None:
        """Close all environments, also when closing one of them raises; safe to repeat."""
        with ExitStack() as stack:
            for env in self.envs:
                stack.callback(env.close)

    def __enter__(self) -> SyncVectorEnv:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs

    def _reset(
        self, i: int, seed: int | None, options: Mapping[str, Any]
    ) -> tuple[Observation, Info]:
        self._begun[i] = self._needs_reset[i] = True
        if seed is None:
            seed = self._next_seed[i]
        # Kept until the reset succeeds, so that a retry plays the same episode.
        self._next_seed[i] = seed
        try:
            observation, info = check_reset(self.envs[i].reset(seed=seed, **options))
        except MisuseError:
            raise
        except Exception as error:
            return "", {"failure": self._failure(i, "reset", error)}
        self._next_seed[i] = None
        self._needs_reset[i] = False
        return observation, dict(info)

    def _step(self, i: int, action: str) -> Step:
        if self._needs_reset[i]:
            observation, info = self._reset(i, None, {})
            return observation, 0.0, False, "failure" in info, info
        try:
            step = check_step(self.envs[i].step(action))
            observation, reward, terminated, truncated, info = step
            info = dict(info)
        except MisuseError:
            raise
        except Exception as error:
            observation, reward, terminated, truncated = "", 0.0, False, True
            info = {"failure": self._failure(i, "step", error)}
        if terminated or truncated:
            self._needs_reset[i] = True
            if self.autoreset is AutoresetMode.SAME_STEP:
                final = {"final_obs": observation, "final_info": info}
                failure = {"failure": info["failure"]} if "failure" in info else {}
                observation, info = self._reset(i, None, {})
                info = {**failure, **info, **final}
        return observation, reward, terminated, truncated, info

    def _failure(self, i: int, call: str, error: Exception) -> Failure:
        logger.warning("environment %d failed in %s()", i, call, exc_info=error)
        message = f"environment {i} failed in {call}(): {type(error).__name__}: {error}"
        return Failure(cause_of(error) or "environment", message, attempts=1)

    def _split(self, actions: Actions) -> tuple[list[int], list[str]]:
        if isinstance(actions, str | bytes):
            raise ConfigurationError(
                f"step() takes one action per environment, not a single string: {actions!r:.80}"
            )
        if isinstance(actions, Mapping):
            chosen, texts = self._checked(actions), list(actions.values())
        else:
            chosen = list(range(self.num_envs))
            texts = actions.tolist() if isinstance(actions, np.ndarray) else list(actions)
            if len(texts) != self.num_envs:
                raise ConfigurationError(
                    f"step() needs {self.num_envs} actions, got {len(texts)}; "
                    "use {index: action} to step some environments only"
                )
        for i, text in zip(chosen, texts, strict=True):
            if not isinstance(text, str):
                raise ConfigurationError(
                    f"action of environment {i} must be a str, got {type(text).__name__}"
                )
        return chosen, texts

    def _checked(self, indices: Iterable[Any]) -> list[int]:
        chosen = list(indices)
        wrong = [i for i in chosen if not hasattr(i, "__index__") or not 0 <= i < self.num_envs]
        if wrong:
            raise ConfigurationError(
                f"environment indices go from 0 to {self.num_envs - 1}, got {wrong}"
            )
        if len(set(chosen)) != len(chosen):
            raise ConfigurationError(f"an environment index occurs twice in {chosen}")
        return [int(i) for i in chosen]


def _seeds(seed: Any, chosen: Sequence[int]) -> list[int | None]:
    """Return one seed for each chosen environment."""
    if seed is None:
        return [None] * len(chosen)
    try:
        base = index(seed)
    except TypeError:
        pass
    else:
        return [env_seed(base, i) for i in chosen]
    if isinstance(seed, str) or not hasattr(seed, "__len__") or len(seed) != len(chosen):
        raise ConfigurationError(
            f"seed must be an integer, None, or {len(chosen)} seeds, got {seed!r}"
        )
    return list(seed)
