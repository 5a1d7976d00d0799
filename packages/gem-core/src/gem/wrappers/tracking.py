"""Wrappers that add episode statistics (steps, undiscounted return) to info."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from gem.core import Env, Info, Observation, Step, Wrapper


class EpisodeTracking(Wrapper):
    """Counts steps and adds up rewards; must be the outermost wrapper.

    Every step's info has `step_counter` and `cumulative_rewards`; the info of `reset` has the
    previous episode's, as `prev_ep_step_counter` and `prev_ep_cumulative_rewards`.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._forget()

    def _forget(self) -> None:
        self.step_counter = 0
        self.cumulative_rewards = 0.0

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Reset the inner environment and the statistics."""
        before = {
            "prev_ep_step_counter": self.step_counter,
            "prev_ep_cumulative_rewards": self.cumulative_rewards,
        }
        observation, info = self.env.reset(seed=seed, **options)
        self._forget()
        return observation, {**info, **before}

    def step(self, action: str) -> Step:
        """Step the inner environment and count."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.step_counter += 1
        self.cumulative_rewards += reward
        counted = {"step_counter": self.step_counter, "cumulative_rewards": self.cumulative_rewards}
        return observation, reward, terminated, truncated, {**info, **counted}


StatisticsT = TypeVar("StatisticsT", bound="RecordEpisodeStatistics")


class RecordEpisodeStatistics(Wrapper):
    """Gymnasium's statistics: the last step's info has `episode`, `{"r": ..., "l": ..., "t": ...}`.

    `r` is the undiscounted return, `l` the number of steps, `t` the seconds since the `reset`, or
    since the environment was spawned or restored. `t` is measured: a seed does not fix it.
    """

    # A clock reading of this process; a slot, so that snapshots leave it out.
    __slots__ = ("_began",)
    _began: float

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._forget()

    def _forget(self) -> None:
        self._return = 0.0
        self._steps = 0
        self._began = time.perf_counter()

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Reset the inner environment and the statistics."""
        result = self.env.reset(seed=seed, **options)
        self._forget()
        return result

    def step(self, action: str) -> Step:
        """Step the inner environment; the last step's info has the statistics."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += reward
        self._steps += 1
        if terminated or truncated:
            seconds = round(time.perf_counter() - self._began, 6)
            info = {**info, "episode": {"r": self._return, "l": self._steps, "t": seconds}}
        return observation, reward, terminated, truncated, info

    def restore(self, state: bytes) -> None:
        """Restore the statistics and the inner environment; the time begins now."""
        super().restore(state)
        self._began = time.perf_counter()

    def spawn(self: StatisticsT, same_state: bool = False, seed: int | None = None) -> StatisticsT:
        """Spawn the inner environment; with `same_state` the child has the same statistics."""
        child = super().spawn(same_state=same_state, seed=seed)
        child._began = time.perf_counter()
        return child
