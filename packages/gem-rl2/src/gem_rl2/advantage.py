"""RL2's advantage seam: rows become a table of turns, `gem.advantage` does the maths.

RL2 has no registry of estimators. Its trainer calls `compute_advantages` by a global name, on rank
0, where the whole batch of all ranks is: statistics are global by construction. `gem_rl2.hook`
puts `compute` in its place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gem.errors import RolloutError
from gem.estimators import estimator
from gem_rl2.rollout import TAG
from gem_rl2.settings import Keys, Settings
from gem_train.experiment.agreement import Agreement
from gem_train.experiment.estimate import PerTurn, turn_advantages
from gem_train.packed import PackedTrajectory
from gem_train.record import TrainedRow
from gem_train.rows import PlacedEpisode, PlacedRow, write_all
from gem_train.settings import check_episodes

Tensors = dict[str, Tensor]
"""RL2's batch, each `[rows, columns]` on the CPU: column c has token c as input and is about token
c + 1."""


def read(
    batch: Tensors, boundaries: Sequence[int], played: Sequence[PackedTrajectory]
) -> list[PlacedEpisode]:
    """Return the episodes of a batch in RL2's order, failed ones last; clears the tags.

    Args:
        batch: RL2's tensors.
        boundaries: Rows at which episodes begin, and the number of rows (RL2's `cu_seqs`).
        played: Episodes by number.

    Raises:
        RolloutError: The rows are not those of the episodes.
    """
    found: list[PlacedEpisode] = []
    left = dict(enumerate(played))
    for start, end in itertools.pairwise(boundaries):
        tags = map(int, batch["rewards"][start:end, TAG - 1].tolist())
        # A failed episode has no row; a match has those of all agents.
        for tag, same in itertools.groupby(enumerate(tags, start), lambda pair: pair[1]):
            places, trajectory = [place for place, _ in same], left.pop(tag, None)
            tokens = [] if trajectory is None else trajectory.training_rows()
            if trajectory is None or len(tokens) != len(places):
                raise RolloutError(f"rows {start} to {end} of RL2's batch are no episode of GEM")
            rows = [PlacedRow(*pair) for pair in zip(places, tokens, strict=True)]
            for row in rows:
                mask = batch["action_mask"][row.place]
                row.check(_ids(batch, row), mask, f"row {row.place} of RL2's batch")
            found.append(PlacedEpisode(trajectory, rows))
    batch["rewards"][:, TAG - 1] = 0.0
    lost = [t for t in left.values() if t.valid and t.rewards]
    if lost:
        raise RolloutError(f"{len(lost)} of {len(played)} episodes are not in RL2's batch")
    return [*found, *(PlacedEpisode(t, []) for t in left.values())]


def trained_rows(batch: Tensors, episode: PlacedEpisode) -> list[TrainedRow]:
    """Read back what RL2 trains on."""
    shown = [batch[key] for key in ("action_mask", "rewards", "advantages")]
    return [
        row.trained(_ids(batch, row), *(each[row.place, row.columns].tolist() for each in shown))
        for row in episode.rows
    ]


def _ids(batch: Tensors, row: PlacedRow) -> Tensor:
    """Tokens of a row: the last one is no input."""
    end = row.columns.stop
    return torch.cat([batch["states"][row.place, :end], batch["actions"][row.place, end - 1 : end]])


def compute(
    settings: Settings, keys: Keys, batch: Tensors, episodes: Sequence[PlacedEpisode]
) -> PerTurn:
    """Set `advantages` of a batch, and `returns` for a critic; see `gem.advantage`.

    All tokens of a turn get its advantage, and the critic its target.

    Args:
        settings: With an `advantage`.
        keys: RL2's.
        batch: RL2's tensors.
        episodes: Of `read`.

    Returns:
        The advantages, `[episode][turn]`.

    Raises:
        RolloutError: Too many episodes failed, or there is nothing to train on.
    """
    name = settings.advantage
    assert name is not None
    trajectories = [e.trajectory for e in episodes]
    check_episodes(trajectories, settings.max_failed_fraction)
    _check_minibatches(batch, keys.minibatches // settings.epochs)
    values = None
    if estimator(name).needs_critic:
        values = [e.at_turns(batch["values"]) for e in episodes]
    added = _added(batch, episodes)
    per_turn, targets = turn_advantages(
        name,
        trajectories,
        settings,
        gamma=keys.gamma,
        lam=keys.lam,
        added=[e.over_turns(added) for e in episodes],
        values=values,
    )
    batch["advantages"] = write_all(torch.zeros(batch["states"].shape), episodes, per_turn)
    if values is not None:
        batch["returns"] = write_all(torch.zeros(batch["states"].shape), episodes, targets)
    return per_turn


def engine_metrics(batch: Tensors) -> dict[str, float]:
    """Return how far the trainer's log-probabilities are from SGLang's, if it is known.

    RL2 computes its own before the update for a KL penalty or several minibatches.
    """
    if "old_logps" not in batch:
        return {}
    known = (batch[name] for name in ("old_logps", "llm_logps", "action_mask"))
    return Agreement.of(*known).metrics()


def _added(batch: Tensors, episodes: Sequence[PlacedEpisode]) -> Tensor:
    """What RL2 has added to the rewards of tokens: a negative KL penalty, or 0."""
    added = batch["rewards"].clone()
    for episode in episodes:
        for row in episode.rows:
            tokens = row.tokens.token_rewards(episode.trajectory.rewards)
            added[row.place, row.columns] -= torch.tensor(tokens)
    return added


def repeat(batch: Tensors, epochs: int) -> None:
    """Give RL2 every row as often as there are passes.

    RL2 trains once on consecutive parts of a batch, as many as `actor.update_per_rollout`: with
    that many parts times passes, each pass is one after the other.
    """
    if epochs > 1:
        for key, value in batch.items():
            batch[key] = value.repeat(epochs, *[1] * (value.dim() - 1))


def _check_minibatches(batch: Tensors, parts: int) -> None:
    rows = len(batch["states"])
    if (parts - 1) * math.ceil(rows / parts) >= rows:
        raise RolloutError(
            f"actor.update_per_rollout: RL2 cannot divide the {rows} rows of this batch into "
            f"{parts} parts"
        )
    if not batch["action_mask"].any():
        raise RolloutError("no token of this batch was sampled: there is nothing to train on")
