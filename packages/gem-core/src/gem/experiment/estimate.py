"""Advantages of a batch by turn: `gem.advantage` for episodes and their rewards.

What comes in and goes out is `[episode][turn]`, in the order of the episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from gem.advantage import TurnTable, advantages

NORMALISE = ("batch", "environment")
"""What the statistics of ReBN may be over: `algorithm.normalise` of a RunSpec."""

PerTurn: TypeAlias = list[list[float]]
"""A number for each turn, `[episode][turn]`."""


class HasTurns(Protocol):
    """An episode of a batch, such as `gem.trajectory.Trajectory`."""

    @property
    def rewards(self) -> Sequence[float]:
        """Reward of each turn."""

    @property
    def group(self) -> int:
        """Number that the episodes of a task share."""

    @property
    def valid(self) -> bool:
        """False: the episode failed and is in no statistic."""

    @property
    def environment(self) -> str:
        """Name of its environment in a run of several (`gem.tasks.Task.name`)."""


def environment_parts(
    episodes: Sequence[HasTurns], normalise: str = "environment"
) -> list[int] | None:
    """Return the part of a batch that each episode belongs to, from 0; None for one part.

    Args:
        episodes: The whole batch.
        normalise: `algorithm.normalise` of a RunSpec; with `batch` all episodes are one part.
    """
    if normalise == "batch":
        return None
    numbers = {name: i for i, name in enumerate(sorted({e.environment for e in episodes}))}
    return [numbers[episode.environment] for episode in episodes]


def adjusted_rewards(episodes: Iterable[HasTurns], added: Iterable[Sequence[float]]) -> PerTurn:
    """Return the reward of every turn with what the trainer adds to it, such as a penalty.

    Args:
        episodes: The batch.
        added: To each turn's reward, `[episode][turn]`.
    """
    return [
        [reward + more for reward, more in zip(episode.rewards, of_turns, strict=True)]
        for episode, of_turns in zip(episodes, added, strict=True)
    ]


def turn_advantages(
    name: str,
    episodes: Sequence[HasTurns],
    *,
    gamma: float,
    lam: float = 1.0,
    scale: bool = True,
    rewards: Sequence[Sequence[float]] | None = None,
    values: Sequence[Sequence[float]] | None = None,
    parts: Sequence[int] | None = None,
    normalise: str = "batch",
) -> tuple[PerTurn, PerTurn]:
    """Return the advantage of every turn, and the target of the critic's value.

    Args:
        name: Estimator of `gem.advantage`.
        episodes: The whole batch, of all ranks: statistics are over all of its turns.
        gamma: Discount per turn.
        lam: GAE's lambda per turn.
        scale: Whether `grpo` divides by the standard deviation.
        rewards: Instead of the episodes' own, `[episode][turn]`; see `adjusted_rewards`.
        values: The critic's value before each turn, `[episode][turn]`; needed by `gae`.
        parts: Part of the batch that each episode belongs to, from 0; statistics are within it.
        normalise: `environment` is short for `parts=environment_parts(episodes)`.

    Raises:
        ConfigurationError: The estimator is unknown or lacks values, a parameter is out of range,
            or a number is not finite.
    """
    table = TurnTable.build(
        [episode.rewards for episode in episodes] if rewards is None else rewards,
        groups=[episode.group for episode in episodes],
        valid=[episode.valid for episode in episodes],
        values=values,
        parts=environment_parts(episodes, normalise) if parts is None else parts,
    )
    advantage, target = advantages(name, table, gamma=gamma, lam=lam, scale=scale)
    return table.split(advantage), table.split(target)
