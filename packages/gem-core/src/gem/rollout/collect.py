"""The synchronous driver: plays many episodes in lockstep with a sampler of whole batches.

See `gem.rollout.play` for the asynchronous driver of one episode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from gem.blame import boundary
from gem.core import Env, Info, Observation, Step
from gem.errors import ConfigurationError, RolloutError
from gem.rollout.environment import STEP_TIMEOUT_S, EnvFailedError, HeldEnv, env_failure
from gem.rollout.play import Budget, Episode, Request, Sample
from gem.rollout.threads import one_by_one
from gem.rollout.tokens import ChatFormat
from gem.tasks import Task
from gem.trajectory import Trajectory

T = TypeVar("T")

BatchSampler: TypeAlias = Callable[[list[Request]], list[Sample]]
"""Samples one response per request, in order."""


def play_batch(
    tasks: Sequence[Task],
    sampler: BatchSampler,
    chat: ChatFormat,
    *,
    budget: Budget,
    context: str = "chat",
    groups: Sequence[int] | None = None,
    make_env: Callable[[Task], Env] = Task.make,
    retries: int = 1,
    step_timeout_s: float | None = STEP_TIMEOUT_S,
) -> list[Trajectory]:
    """Play one episode per task in lockstep; finished episodes leave the batch.

    Environments run one after the other, in a thread other than the caller's. If one raises,
    breaks its contract or exceeds `step_timeout_s`, its episode starts over with a new
    environment, up to `retries` times; then the episode has a `Failure`. The others go on.

    Args:
        tasks: The episodes to play.
        sampler: Called once per round with the requests of all unfinished episodes. After a
            restart an episode's request is `fresh` again. The caller gets what the sampler raises.
        chat: The model's chat format.
        budget: Token and turn limits.
        context: What the policy is shown.
        groups: Group of each task; by default each is its own.
        make_env: Makes the environment of a task.
        retries: Further attempts after an environment failed.
        step_timeout_s: Limit of one `reset`, with the making of the environment, or one `step`,
            in seconds; the thread of an environment that hangs cannot be ended and stays behind.
            None for no limit; then environments run in the calling thread.

    Returns:
        One trajectory per task, in order.

    Raises:
        RolloutError: The sampler did not answer every request.
        ConfigurationError: A task names an unknown environment or parameter, or the chat template
            cannot show an observation.
    """
    if groups is not None and len(groups) != len(tasks):
        raise ConfigurationError(f"{len(groups)} groups for {len(tasks)} tasks")
    players = [
        _Player(
            Episode(
                task,
                chat,
                context=context,
                budget=budget,
                group=index if groups is None else groups[index],
                index=index,
            ),
            functools.partial(make_env, task),
            retries,
            step_timeout_s,
        )
        for index, task in enumerate(tasks)
    ]
    try:
        _begin(players, step_timeout_s)
        while open_players := [p for p in players if p.episode.request is not None]:
            requests = [p.episode.request for p in open_players if p.episode.request is not None]
            with boundary("engine"):
                samples = sampler(requests)
                if len(samples) != len(requests):
                    raise RolloutError(
                        f"sampler answered {len(samples)} of {len(requests)} requests"
                    )
            calls = [
                functools.partial(player.env.step, player.episode.receive(sample))
                for player, sample in zip(open_players, samples, strict=True)
            ]
            results = one_by_one(calls, step_timeout_s)
            failed = [
                player
                for player, result in zip(open_players, results, strict=True)
                if not player.advanced(result)
            ]
            _begin(failed, step_timeout_s)
            for player in open_players:
                if player.episode.request is None:
                    player.env.close(wait=True)
    finally:
        for player in players:
            player.env.close(wait=True)
    return [player.episode.trajectory for player in players]


def _begin(players: Sequence[_Player], timeout_s: float | None) -> None:
    """Reset each player in a new environment; retry failed resets while attempts are left."""
    while players := [p for p in players if p.renew()]:
        calls = [functools.partial(p.env.reset, p.episode.trajectory.task.seed) for p in players]
        players = [
            player
            for player, result in zip(players, one_by_one(calls, timeout_s), strict=True)
            if not player.begun(result)
        ]


class _Player:
    """An episode, its current environment and its failed attempts."""

    def __init__(
        self, episode: Episode, make_env: Callable[[], Env], retries: int, timeout_s: float | None
    ) -> None:
        self.episode = episode
        self.env = HeldEnv(make_env)
        self._make_env = make_env
        self._attempts = retries + 1
        self._timeout_s = timeout_s
        self._failures: list[EnvFailedError] = []

    def renew(self) -> bool:
        """Replace the environment; if no attempt is left, fail the episode and return False."""
        self.env.close(wait=True)
        if len(self._failures) == self._attempts:
            self.episode.fail(self._failures[-1].failure(len(self._failures)))
            return False
        self.env = HeldEnv(self._make_env)
        return True

    def begun(self, result: tuple[Observation, Info] | Exception) -> bool:
        """Pass the result of `reset` to the episode; return False if `reset` raised."""
        return self._passed_on(result, lambda start: self.episode.begin(*start))

    def advanced(self, result: Step | Exception) -> bool:
        """Pass the result of `step` to the episode; return False if `step` raised."""
        return self._passed_on(result, self.episode.advance)

    def _passed_on(self, result: T | Exception, receive: Callable[[T], None]) -> bool:
        if isinstance(result, Exception):
            self._failures.append(env_failure(result, self._timeout_s))
            return False
        receive(result)
        return True
