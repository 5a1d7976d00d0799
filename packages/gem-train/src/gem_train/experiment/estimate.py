"""Advantages of a batch by turn: `gem.estimators` for episodes and their rewards.

What comes in and goes out is `[episode][turn]`, in the order of the episodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from gem.advantage import Floats, TurnTable, normalised
from gem.estimators import Options, estimator
from gem.tables import setting

NORMALISE = ("batch", "environment", "role")
"""What the statistics of ReBN may be over: `algorithm.normalise` of a RunSpec."""

PerTurn: TypeAlias = list[list[float]]
"""A number for each turn, `[episode][turn]`."""


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """What is done to rewards before an estimator sees them, and to its advantages afterwards."""

    normalise: str = setting(
        "what the statistics of `rebn` and `whiten` are over: the turns of a batch, those of each "
        "environment in it, or of each agent of an environment",
        NORMALISE[0],
        choices=NORMALISE,
    )
    reward_scale: float = setting("factor of every turn's reward", 1.0, above=0)
    reward_clip: float | None = setting(
        "largest size of a scaled reward; by default there is no limit", None, above=0
    )
    group_std: bool = setting(
        "whether `grpo` divides by the standard deviation of the group; not in Dr. GRPO "
        "(arXiv 2503.20783)",
        True,
    )
    whiten: bool = setting(
        "subtract the mean of the advantages and divide by their standard deviation, as PPO does "
        "with those of GAE (arXiv 2006.05990)",
        False,
    )
    advantage_clip: float | None = setting(
        "largest size of an advantage, after `whiten`; by default there is no limit", None, above=0
    )

    def rewards(self, rewards: Sequence[float]) -> list[float]:
        """Return the rewards of turns, `clamp(reward_scale * r, -reward_clip, reward_clip)`.

        A reward that is not finite stays: `TurnTable` names it.
        """
        scaled = [self.reward_scale * reward for reward in rewards]
        most = self.reward_clip
        if most is None:
            return scaled
        return [max(-most, min(most, r)) if math.isfinite(r) else r for r in scaled]

    def advantages(self, advantages: Floats, table: TurnTable) -> Floats:
        """Return the advantages of a table as they are trained on, `[turns]`."""
        if self.whiten:
            advantages = normalised(advantages, table)
        if self.advantage_clip is not None:
            advantages = np.clip(advantages, -self.advantage_clip, self.advantage_clip)
        return advantages

    @property
    def shaping(self) -> dict[str, Any]:
        """The keys of this class and their values."""
        return {each.name: getattr(self, each.name) for each in fields(Shaping)}

    @property
    def changed(self) -> list[str]:
        """Names of the keys that do not have their default."""
        default = Shaping().shaping
        return [name for name, value in self.shaping.items() if value != default[name]]


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


def turn_advantages(
    name: str,
    episodes: Sequence[HasTurns],
    shaping: Shaping = Shaping(),
    *,
    gamma: float,
    lam: float = 1.0,
    added: Iterable[Sequence[float]] | None = None,
    values: Sequence[Sequence[float]] | None = None,
    state: MutableMapping[str, float] | None = None,
    trained: Sequence[bool] | None = None,
) -> tuple[PerTurn, PerTurn]:
    """Return the advantage of every turn, and the target of the critic's value.

    Args:
        name: Name of an estimator; see `gem.estimators`.
        episodes: The whole batch, of all ranks: statistics are over all of its turns.
        shaping: Of rewards and advantages.
        gamma: Discount per turn.
        lam: GAE's lambda per turn.
        added: What the trainer adds to the shaped reward of each turn, such as a penalty,
            `[episode][turn]`.
        values: The critic's value before each turn, `[episode][turn]`, for an estimator that needs
            a critic.
        state: What an estimator that keeps a state left after the batch before; brought up to date.
            None: there was no batch before.
        trained: Whether an episode is trained on (`gem_train.experiment.filtering`); like failed
            ones, the others are in no statistic and have the advantage 0. By default all are.

    Raises:
        ConfigurationError: The estimator is unknown or lacks values, a parameter is out of range,
            or a number is not finite.
    """
    chosen = estimator(name)
    parts, names = _numbered(
        part_of_each(episodes, "role" if chosen.by_role else shaping.normalise)
    )
    rewards = [shaping.rewards(episode.rewards) for episode in episodes]
    if added is not None:
        rewards = [
            [reward + more for reward, more in zip(*turns, strict=True)]
            for turns in zip(rewards, added, strict=True)
        ]
    table = TurnTable.build(
        rewards,
        groups=[episode.group for episode in episodes],
        valid=[
            episode.valid and counts
            for episode, counts in zip(episodes, trained or [True] * len(episodes), strict=True)
        ],
        values=values,
        parts=parts,
        part_names=names,
    )
    estimate = chosen(table, Options(gamma, lam, shaping.group_std, dict(state or {})))
    if state is not None:
        state.clear()
        state.update(estimate.state)
    # Whatever the estimator compares with, `normalise` says what is whitened together.
    parts, names = _numbered(part_of_each(episodes, shaping.normalise))
    whitened = replace(table, part=np.repeat(parts, table.lengths), part_names=names)
    advantages = shaping.advantages(estimate.advantages, whitened)
    return table.split(advantages), table.split(estimate.targets)


def _numbered(names: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    """Return the number of each episode's part, and the name of each number."""
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return [numbers[name] for name in names], tuple(numbers) or ("batch",)
