"""Advantages of a batch by turn: `gem.estimators` for episodes and their rewards.

What comes in and goes out is `[episode][turn]`, in the order of the episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Protocol, TypeAlias

from gem.advantage import TurnTable
from gem.estimators import Options, estimator

NORMALISE = ("batch", "environment", "role")
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

    @property
    def agent(self) -> str | None:
        """Whose episode of a match it is."""


def roles(episodes: Iterable[HasTurns]) -> list[str]:
    """Return the role of each episode: its environment and, in a match, the agent."""
    return [f"{episode.environment} {episode.agent or ''}".strip() for episode in episodes]


def part_of_each(episodes: Sequence[HasTurns], normalise: str) -> list[str]:
    """Return the name of the part of a batch that each episode belongs to.

    Args:
        episodes: The whole batch.
        normalise: `algorithm.normalise` of a RunSpec; with `batch` all episodes are one part, with
            `role` those of one agent of an environment are.
    """
    if normalise == "batch":
        return ["batch"] * len(episodes)
    return roles(episodes) if normalise == "role" else [each.environment for each in episodes]


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
    normalise: str = "batch",
    state: MutableMapping[str, float] | None = None,
) -> tuple[PerTurn, PerTurn]:
    """Return the advantage of every turn, and the target of the critic's value.

    Args:
        name: Name of an estimator; see `gem.estimators`.
        episodes: The whole batch, of all ranks: statistics are over all of its turns.
        gamma: Discount per turn.
        lam: GAE's lambda per turn.
        scale: Whether `grpo` divides by the standard deviation.
        rewards: Instead of the episodes' own, `[episode][turn]`; see `adjusted_rewards`.
        values: The critic's value before each turn, `[episode][turn]`, for an estimator that needs
            a critic.
        normalise: What statistics are within; see `part_of_each`. An estimator that compares groups
            or roles never compares different roles.
        state: What an estimator that keeps a state left after the batch before; brought up to date.
            None: there was no batch before.

    Raises:
        ConfigurationError: The estimator is unknown or lacks values, a parameter is out of range,
            or a number is not finite.
    """
    chosen = estimator(name)
    names = part_of_each(episodes, "role" if chosen.by_role else normalise)
    numbers = {part: number for number, part in enumerate(sorted(set(names)))}
    table = TurnTable.build(
        [episode.rewards for episode in episodes] if rewards is None else rewards,
        groups=[episode.group for episode in episodes],
        valid=[episode.valid for episode in episodes],
        values=values,
        parts=[numbers[part] for part in names],
        part_names=tuple(numbers) or ("batch",),
    )
    estimate = chosen(table, Options(gamma, lam, scale, dict(state or {})))
    if state is not None:
        state.clear()
        state.update(estimate.state)
    return table.split(estimate.advantages), table.split(estimate.targets)
