"""Which of the episodes that were played are trained on (DAPO, arXiv 2503.14476).

- Dynamic sampling (section 3.2): where all episodes of a task have the same return, an estimator
  that compares them says nothing about it. `training.extra_batches` of a RunSpec leaves such groups
  out of the update and plays further batches of tasks in their place.
- Overlong filtering (section 3.4): an episode that a token limit cut may have been on a right way.
  `training.mask_overlong` leaves its rows out of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gem.errors import RolloutError
from gem.tables import setting
from gem_train.experiment.estimate import HasTurns, Shaping

SAME = 1e-6
"""Largest difference between returns that are taken for the same, as in `gem.advantage`."""


class HasLength(Protocol):
    """A played episode, such as `gem.trajectory.Trajectory`."""

    @property
    def valid(self) -> bool:
        """False: the episode failed."""

    @property
    def end(self) -> str:
        """How it ended, a `gem.trajectory.EpisodeEnd`."""

    @property
    def length_stops(self) -> int:
        """Number of turns that a token limit cut."""


def overlong(episode: HasLength) -> bool:
    """Return whether a token limit cut a turn of an episode, or the episode."""
    return episode.length_stops > 0 or episode.end == "token_budget"


@dataclass(frozen=True, kw_only=True)
class Filtering:
    """Which of the episodes that were played are trained on."""

    extra_batches: int | None = setting(
        "dynamic sampling: groups whose valid episodes all have the same return are not trained "
        "on, and up to so many further batches of tasks are played until there are `tasks` groups; "
        "by default all groups are trained on",
        None,
        least=0,
    )
    mask_overlong: bool = setting(
        "overlong filtering: leave out of the loss the rows of episodes that a token limit cut (a "
        "turn ended at `turn_tokens`, or the episode at `response_tokens`); their rewards stay in "
        "the statistics of the estimator",
        False,
    )

    def in_loss(
        self, episodes: Sequence[HasLength], trained: Sequence[bool] | None = None
    ) -> list[bool]:
        """Return whether the rows of each episode are in the loss.

        Args:
            episodes: A batch.
            trained: Whether an episode is trained on (`Filtered.trained`); by default all are.

        Raises:
            RolloutError: None is left.
        """
        known = trained or [True] * len(episodes)
        counted = [each.valid and counts for each, counts in zip(episodes, known, strict=True)]
        if not self.mask_overlong:
            return counted
        kept = [
            counts and not overlong(each) for counts, each in zip(counted, episodes, strict=True)
        ]
        if any(counted) and not any(kept):
            raise RolloutError(
                f"training.mask_overlong: a token limit cut each of {sum(counted)} episodes, so "
                "that there is nothing to train on; raise policy.turn_tokens or "
                "policy.response_tokens"
            )
        return kept


@dataclass(frozen=True)
class Filtered:
    """Which of the episodes that were played are trained on."""

    trained: list[bool]
    """Of each episode."""
    metrics: dict[str, float]
    """`played_groups`, of which `equal_groups` have one return, `void_groups` fewer than two valid
    episodes, and `trained_groups` are trained on. What is left was played in excess."""

    @property
    def groups(self) -> int:
        """Number of groups that are trained on."""
        return int(self.metrics["trained_groups"])

    def check(self) -> None:
        """Raise `RolloutError` if there is nothing to train on."""
        if not self.groups:
            found = self.metrics
            raise RolloutError(
                f"training.extra_batches: none of {found['played_groups']:.0f} groups can be "
                f"trained on: in {found['equal_groups']:.0f} all episodes have the same return, "
                f"{found['void_groups']:.0f} have fewer than two valid episodes; choose other "
                "tasks, larger groups or more extra batches"
            )


def filtered(episodes: Sequence[HasTurns], most: int, shaping: Shaping) -> Filtered:
    """Choose the first groups, in the order played, whose episodes have different returns.

    The return is the sum of an episode's shaped rewards. Failed episodes have none: a group whose
    valid episodes are alike is left out, however many of its episodes failed.

    Args:
        episodes: All that were played, group after group.
        most: Largest number of groups to train on, `training.tasks`.
        shaping: Of rewards.
    """
    returns: dict[int, list[float]] = {}
    for episode in episodes:
        found = returns.setdefault(episode.group, [])
        if episode.valid:
            found.append(math.fsum(shaping.rewards(episode.rewards)))
    compared = {group: each for group, each in returns.items() if len(each) > 1}
    # A return that is not finite is no number to compare; the estimator names it.
    different = [
        group
        for group, each in compared.items()
        if not all(map(math.isfinite, each)) or max(each) - min(each) > SAME
    ]
    chosen = set(different[:most])
    counts = {
        "played_groups": len(returns),
        "equal_groups": len(compared) - len(different),
        "void_groups": len(returns) - len(compared),
        "trained_groups": len(chosen),
    }
    trained = [episode.group in chosen for episode in episodes]
    return Filtered(trained, {name: float(count) for name, count in counts.items()})
