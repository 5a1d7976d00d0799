"""Dynamic sampling: groups that teach nothing are not trained on, and others are played instead.

Where all episodes of a task have the same return, an estimator that compares them says nothing
about it (DAPO, arXiv 2503.14476, section 3.2). `training.extra_batches` of a RunSpec leaves such
groups out of the update and plays further batches of tasks in their place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gem.errors import RolloutError
from gem_train.experiment.estimate import HasTurns, Shaping

SAME = 1e-6
"""Largest difference between returns that are taken for the same, as in `gem.advantage`."""


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
    different = [g for g, each in compared.items() if not max(each) - min(each) <= SAME]
    chosen = set(different[:most])
    counts = {
        "played_groups": len(returns),
        "equal_groups": len(compared) - len(different),
        "void_groups": len(returns) - len(compared),
        "trained_groups": len(chosen),
    }
    trained = [episode.group in chosen for episode in episodes]
    return Filtered(trained, {name: float(count) for name, count in counts.items()})
