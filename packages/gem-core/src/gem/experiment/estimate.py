"""Advantages of a batch by turn: `gem.advantage` for episodes and their rewards.

What comes in and goes out is `[episode][turn]`, in the order of the episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Protocol, TypeAlias

from gem.advantage import Floats, TurnTable, advantages, rae, returns

NORMALISE = ("batch", "environment", "role")
"""What the statistics of ReBN may be over: `algorithm.normalise` of a RunSpec."""

BY_ROLE = ("grpo", "rloo", "rae")
"""Estimators that never compare the roles of a game with each other."""

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


def environment_parts(
    episodes: Sequence[HasTurns], normalise: str = "environment"
) -> list[int] | None:
    """Return the part of a batch that each episode belongs to, from 0; None for one part.

    Args:
        episodes: The whole batch.
        normalise: `algorithm.normalise` of a RunSpec; with `batch` all episodes are one part, with
            `role` those of one agent of an environment are.
    """
    if normalise == "batch":
        return None
    named = roles(episodes) if normalise == "role" else [each.environment for each in episodes]
    numbers = {name: number for number, name in enumerate(sorted(set(named)))}
    return [numbers[name] for name in named]


def parts_for(name: str, episodes: Sequence[HasTurns], normalise: str) -> list[int] | None:
    """Return the parts of a batch that an estimator works on; see `environment_parts`.

    Args:
        name: The estimator.
        episodes: The whole batch.
        normalise: `algorithm.normalise` of a RunSpec.
    """
    return environment_parts(episodes, "role" if name in BY_ROLE else normalise)


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


def against_baselines(
    table: TurnTable,
    named: Sequence[str],
    gamma: float,
    baselines: MutableMapping[str, float] | None,
) -> Floats:
    """Return the advantages of `gem.advantage.rae`, `[turns]`, with baselines by name of role.

    Args:
        table: The whole batch; its parts are the roles in the order of their names.
        named: The role of each episode.
        gamma: Discount per turn.
        baselines: Of earlier batches; brought up to date. None: there are none.
    """
    known, names = {} if baselines is None else baselines, sorted(set(named))
    state = {str(n): known[name] for n, name in enumerate(names) if name in known}
    advantage, state = rae(table, gamma, state)
    known.update({names[int(n)]: baseline for n, baseline in state.items()})
    return advantage


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
    baselines: MutableMapping[str, float] | None = None,
) -> tuple[PerTurn, PerTurn]:
    """Return the advantage of every turn, and the target of the critic's value.

    Args:
        name: Estimator of `gem.advantage`, or `rae`.
        episodes: The whole batch, of all ranks: statistics are over all of its turns.
        gamma: Discount per turn.
        lam: GAE's lambda per turn.
        scale: Whether `grpo` divides by the standard deviation.
        rewards: Instead of the episodes' own, `[episode][turn]`; see `adjusted_rewards`.
        values: The critic's value before each turn, `[episode][turn]`; needed by `gae`.
        parts: Part of the batch that each episode belongs to, from 0; statistics are within it.
        normalise: Short for `parts=parts_for(name, episodes, normalise)`.
        baselines: Of each role, for `rae`, which brings them up to date.

    Raises:
        ConfigurationError: The estimator is unknown or lacks values, a parameter is out of range,
            or a number is not finite.
    """
    table = TurnTable.build(
        [episode.rewards for episode in episodes] if rewards is None else rewards,
        groups=[episode.group for episode in episodes],
        valid=[episode.valid for episode in episodes],
        values=values,
        parts=parts_for(name, episodes, normalise) if parts is None else parts,
    )
    if name == "rae":
        advantage = against_baselines(table, roles(episodes), gamma, baselines)
        return table.split(advantage), table.split(returns(table, gamma))
    advantage, target = advantages(name, table, gamma=gamma, lam=lam, scale=scale)
    return table.split(advantage), table.split(target)
