"""`VectorEnv`: what vector environments have in common: seeds, autoreset, failures, arguments."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import index
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from gem.core import Info, Observation, Step, checked_seed
from gem.errors import ConfigurationError, MisuseError, ResetNeededError
from gem.executors.held import env_failure
from gem.foreign import trace
from gem.parameters import choice
from gem.seeding import env_seed
from gem.trajectory import Failure

logger = logging.getLogger(__name__)

VectorT = TypeVar("VectorT", bound="VectorEnv")

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


@dataclass
class _Slot:
    """What a vector environment knows of one of its environments."""

    next_seed: int | None
    """Seed of the next reset that is not given one; None continues with the next episode."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a reset that has not succeeded, which its next attempt has, too."""
    begun: bool = False
    needs_reset: bool = True
    call: str | None = None
    """`reset` or `step` while its result has not arrived."""
    final: Step | None = None
    """Last step of an episode, while the reset that follows it runs."""


class VectorEnv(ABC):
    """Several environments with one `reset` and one `step`.

    An environment that raises, exceeds its time limit or breaks `gem.contract` does not disturb the
    others: its slot has reward 0, `truncated` set and a `gem.trajectory.Failure` in
    `info["failure"]`, and its episode must not be counted. Like any other end, this is followed by
    a reset according to the autoreset mode; a reset that fails is tried again by the next step of
    that slot (with `DISABLED`, by the caller). Errors of the caller (`gem.errors.MisuseError`, such
    as ConfigurationError) are raised.

    Not thread-safe: one thread, or one event loop, uses it.

    Attributes:
        autoreset: The autoreset mode.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        autoreset: AutoresetMode | str = AutoresetMode.SAME_STEP,
        seed: int | None = None,
        keep_seed: Iterable[int] = (),
    ) -> None:
        """Begin without an episode.

        Args:
            num_envs: Number of environments.
            autoreset: Mode or its name.
            seed: Base seed of the first `reset` that is not given one.
            keep_seed: Indices of environments that `seed` does not apply to.

        Raises:
            ConfigurationError: No environment, an unknown mode, or a seed that is not an integer.
        """
        seed = checked_seed(seed)
        mode = autoreset.value if isinstance(autoreset, AutoresetMode) else autoreset
        known = tuple(each.value for each in AutoresetMode)
        self.autoreset = AutoresetMode(choice("autoreset", mode, known))
        if num_envs < 1:
            raise ConfigurationError("a vector environment needs at least one environment")
        kept = set(keep_seed)
        self._slots = [
            _Slot(None if seed is None or i in kept else env_seed(seed, i)) for i in range(num_envs)
        ]
        # Turns that have ended and were not asked for yet, or what the caller did wrong.
        self._kept: dict[int, Step | Exception] = {}

    @abstractmethod
    def _call(self, i: int, name: str, *arguments: Any) -> None:
        """Begin `reset(seed, options)` or `step(action)` of environment `i`."""

    def _flush(self) -> None:  # noqa: B027
        """Send the calls begun."""

    @abstractmethod
    def _arrived(self, timeout_s: float | None) -> Iterable[tuple[int, Any]]:
        """Return what `_call` began and has ended, with results or exceptions; wait for some.

        Args:
            timeout_s: Longest wait in seconds, 0 to not wait, None for no limit.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all environments; safe to repeat."""

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return len(self._slots)

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
        self._require_idle(chosen)
        for i, each in zip(chosen, seeds, strict=True):
            self._reset(i, each, options)
        results = self._wait_for(chosen)
        return [step[0] for step in results], [step[4] for step in results]

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
        return columns(self._wait_for(self._begin(actions)))

    def __enter__(self: VectorT) -> VectorT:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs

    def _begin(self, actions: Actions) -> list[int]:
        """Begin the steps of actions; return the environments in their order."""
        chosen, texts = self._split(actions)
        self._require_idle(chosen)
        waiting = [i for i in chosen if self._slots[i].needs_reset]
        if waiting and (
            self.autoreset is AutoresetMode.DISABLED
            or not all(self._slots[i].begun for i in waiting)
        ):
            raise ResetNeededError(
                f"environments {waiting} have no running episode; call reset(indices={waiting})"
            )
        for i, action in zip(chosen, texts, strict=True):
            self._step(i, action)
        return chosen

    def _step(self, i: int, action: str) -> None:
        if self._slots[i].needs_reset:
            self._reset(i, None, self._slots[i].options)
        else:
            self._call(i, "step", action)
            self._slots[i].call = "step"

    def _reset(self, i: int, seed: int | None, options: Mapping[str, Any]) -> None:
        slot = self._slots[i]
        slot.begun = slot.needs_reset = True
        if seed is None:
            seed = slot.next_seed
        # Kept until the reset succeeds, so that a retry plays the same episode.
        slot.next_seed, slot.options = seed, options
        self._call(i, "reset", seed, options)
        slot.call = "reset"

    def _wait_for(self, chosen: Sequence[int]) -> list[Step]:
        """Return the steps of environments; what arrives of others is kept for `recv`."""
        wanted = set(chosen)
        while not wanted <= self._kept.keys():
            self._settle_arrived(None)
        return steps_of([self._kept.pop(i) for i in chosen])

    def _settle_arrived(self, timeout_s: float | None) -> None:
        """Keep the turns that have ended; wait for some calls."""
        for i, result in self._arrived(timeout_s):
            if isinstance(result, MisuseError):
                slot = self._slots[i]
                self._slots[i] = _Slot(slot.next_seed) if slot.call == "reset" else slot
                self._slots[i].call = None
                self._kept[i] = result
            elif (step := self._settle(i, result)) is not None:
                self._kept[i] = step
        self._flush()

    def _settle(self, i: int, result: Any) -> Step | None:
        """Take the result of a call; return the step, None if a reset goes with it."""
        slot = self._slots[i]
        call, slot.call = slot.call, None
        failure = None
        if isinstance(result, Exception):
            failure = self._failure(i, str(call), result)
        if call == "step":
            step: Step = ("", 0.0, False, True, {"failure": failure}) if failure else result
            if step[2] or step[3]:
                slot.needs_reset = True
                if self.autoreset is AutoresetMode.SAME_STEP:
                    slot.final = step
                    self._reset(i, None, {})
                    return None
            return step
        observation, info = ("", {"failure": failure}) if failure else result
        if failure is None:
            slot.next_seed, slot.options = None, {}
            slot.needs_reset = False
        if slot.final is None:
            return observation, 0.0, False, failure is not None, info
        (last, reward, terminated, truncated, final_info), slot.final = slot.final, None
        if "failure" in final_info:
            info = {"failure": final_info["failure"], **info}
        ended = {"final_obs": last, "final_info": final_info}
        return observation, reward, terminated, truncated, {**info, **ended}

    def _interrupted(self, i: int) -> None:
        """Begin without an episode where a call was interrupted or its result not returned."""
        for number, slot in enumerate(self._slots):
            if number == i or slot.call or number in self._kept:
                self._slots[number] = _Slot(slot.next_seed, slot.options)
        self._kept.clear()

    def _require_idle(self, chosen: Sequence[int]) -> None:
        busy = [i for i in chosen if self._slots[i].call or i in self._kept]
        if busy:
            raise ConfigurationError(
                f"environments {busy} have calls whose results were not received; call recv()"
            )

    def _failure(self, i: int, call: str, error: Exception) -> Failure:
        logger.warning("environment %d failed in %s(): %s", i, call, trace(error))
        failed = env_failure(error)
        message = f"environment {i} failed in {call}(): {failed.message}"
        return Failure(failed.cause, message, attempts=1)

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


def steps_of(kept: Iterable[Step | Exception]) -> list[Step]:
    """Return the steps; raise the first error among them."""
    steps = []
    errors = []
    for each in kept:
        if isinstance(each, Exception):
            errors.append(each)
        else:
            steps.append(each)
    if errors:
        raise errors[0]
    return steps


def columns(steps: Sequence[Step]) -> VectorStep:
    """Return steps as a vector environment's `step` does."""
    return (
        [step[0] for step in steps],
        np.array([step[1] for step in steps], dtype=np.float64),
        np.array([step[2] for step in steps], dtype=np.bool_),
        np.array([step[3] for step in steps], dtype=np.bool_),
        [step[4] for step in steps],
    )


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
