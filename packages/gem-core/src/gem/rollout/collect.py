"""Play many episodes side by side with an engine that samples whole batches synchronously."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gem.core import Env
from gem.errors import ConfigurationError, RolloutError
from gem.rollout.environment import EnvFailedError, blames_env, close_env
from gem.rollout.play import Budget, Episode, Request, Sample
from gem.rollout.tokens import ChatFormat
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory

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
) -> list[Trajectory]:
    """Play one episode per task in lockstep; finished episodes leave the batch.

    Environments run in the calling thread, one after the other, without a time limit. One that
    raises starts over with a new instance; after `retries` such attempts its episode has a
    `Failure`. The others go on.

    Args:
        tasks: The episodes to play.
        sampler: Called once per round with the open requests of all unfinished episodes. After a
            restart an episode's request is `fresh` again.
        chat: The model's chat format.
        budget: Token and turn limits.
        context: What the policy is shown.
        groups: Group of each task; by default each is its own.
        make_env: Makes the environment of a task.
        retries: Further attempts after an environment failed.

    Returns:
        One trajectory per task, in order.

    Raises:
        RolloutError: The sampler did not answer every request.
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
            make_env,
            retries,
        )
        for index, task in enumerate(tasks)
    ]
    try:
        for player in players:
            player.begin()
        while open_players := [p for p in players if p.episode.request is not None]:
            requests = [p.episode.request for p in open_players if p.episode.request is not None]
            samples = sampler(requests)
            if len(samples) != len(requests):
                raise RolloutError(f"sampler answered {len(samples)} of {len(requests)} requests")
            for player, sample in zip(open_players, samples, strict=True):
                player.play_turn(sample)
    finally:
        for player in players:
            player.close()
    return [player.episode.trajectory for player in players]


class _Player:
    """An episode together with the environment it is played in."""

    def __init__(self, episode: Episode, make_env: Callable[[Task], Env], retries: int) -> None:
        self.episode = episode
        self._make_env = make_env
        self._attempts = retries + 1
        self._failed = 0
        self._env: Env | None = None

    def begin(self) -> None:
        """Reset a new environment, as often as attempts are left."""
        task = self.episode.trajectory.task
        while True:
            try:
                with blames_env():
                    self._env = self._make_env(task)
                    observation, info = self._env.reset(seed=task.seed)
            except EnvFailedError as error:
                if not self._may_retry(error):
                    return
            else:
                self.episode.begin(observation, info)
                return

    def play_turn(self, sample: Sample) -> None:
        """Step the environment with a sampled response."""
        text = self.episode.receive(sample)
        try:
            with blames_env():
                if self._env is None:
                    raise RolloutError("the episode has no environment")
                self.episode.advance(self._env.step(text))
        except EnvFailedError as error:
            if self._may_retry(error):
                self.begin()
        if self.episode.request is None:
            self.close()

    def close(self) -> None:
        """Close the environment, if any."""
        if self._env is not None:
            close_env(self._env)
            self._env = None

    def _may_retry(self, error: EnvFailedError) -> bool:
        self.close()
        self._failed += 1
        if self._failed < self._attempts:
            return True
        self.episode.fail(Failure("infra", str(error), attempts=self._failed))
        return False
