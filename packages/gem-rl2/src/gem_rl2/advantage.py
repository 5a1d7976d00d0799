"""RL2's advantage seam: rows become a table of turns, `gem.advantage` does the maths.

RL2 has no registry of estimators. Its trainer calls `compute_advantages` by a global name, on rank
0, where the whole batch of all ranks is: statistics are global by construction. `gem_rl2.hook`
puts `compute` in its place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gem.advantage import TurnTable, advantages
from gem.errors import RolloutError
from gem.training.record import TrainedRow
from gem.training.settings import check_failures
from gem.trajectory import Sequence as TokenRow
from gem.trajectory import Trajectory
from gem_rl2.rollout import TAG
from gem_rl2.settings import Keys, Settings

Tensors = dict[str, Tensor]
"""RL2's batch, each `[rows, columns]` on the CPU: column c has token c as input and is about token
c + 1."""


@dataclass(frozen=True)
class Row:
    """One training row of an episode, and where RL2 keeps it."""

    place: int
    """Row of the tensors."""
    tokens: TokenRow

    @property
    def action(self) -> int:
        """Column that is about the first token after the prompt."""
        return len(self.tokens.prompt_ids) - 1

    def check(self, batch: Tensors) -> None:
        """Raise `RolloutError` unless the tensors hold exactly the episode's tokens."""
        ids = self.tokens.prompt_ids + self.tokens.response_ids
        mask = [0] * self.action + self.tokens.mask
        mask += [0] * (batch["action_mask"].shape[1] - len(mask))
        found = batch["states"][self.place, : len(ids) - 1].tolist()
        last = batch["actions"][self.place, len(ids) - 2].item()
        if [*found, last] != ids or batch["action_mask"][self.place].tolist() != mask:
            raise RolloutError(
                f"row {self.place} of RL2's batch does not hold the tokens that were sampled"
            )

    def write(self, target: Tensor, per_turn: Sequence[float]) -> None:
        """Put each turn's value on its sampled tokens of a tensor `[rows, columns]`."""
        values = torch.tensor(self.tokens.spread(per_turn), dtype=torch.float64)
        target[self.place, self.action : self.action + len(values)] = values.to(target)

    def columns(self, start: int, end: int) -> slice:
        """Columns that are about the response tokens `[start, end)`."""
        return slice(self.action + start, self.action + end)


@dataclass(frozen=True)
class Episode:
    """An episode of the batch with its rows; a failed one has none."""

    trajectory: Trajectory
    rows: list[Row]

    def first_of_turns(self, source: Tensor) -> list[float]:
        """Read a tensor `[rows, columns]` where each turn begins.

        Of the critic's values this is the one at the last token before the turn: when the policy
        is about to act.
        """
        out = [0.0] * len(self.trajectory.turns)
        last = source.shape[1] - 1  # a turn without tokens may begin where the row ends
        for row in self.rows:
            for span in row.tokens.spans:
                out[span.turn] = float(source[row.place, min(row.action + span.start, last)])
        return out

    def sums_of_turns(self, source: Tensor) -> list[float]:
        """Sum a tensor `[rows, columns]` over the sampled tokens of each turn."""
        out = [0.0] * len(self.trajectory.turns)
        for row in self.rows:
            for span in row.tokens.spans:
                cut = source[row.place, row.columns(span.start, span.end)]
                out[span.turn] = float(cut.double().sum())
        return out

    def trained_rows(self, batch: Tensors) -> list[TrainedRow]:
        """Read back what RL2 trains on."""
        found = []
        for row in self.rows:
            n, start = len(row.tokens.response_ids), len(row.tokens.prompt_ids)
            columns = row.columns(0, n)
            states, actions = batch["states"][row.place], batch["actions"][row.place]
            found.append(
                TrainedRow(
                    # Where nothing was sampled, the prompt's last token is no input.
                    prompt_ids=[*states[: start - 1].tolist(), int(actions[start - 2])],
                    response_ids=actions[columns].tolist(),
                    mask=batch["action_mask"][row.place, columns].tolist(),
                    rewards=batch["rewards"][row.place, columns].tolist(),
                    advantages=batch["advantages"][row.place, columns].tolist(),
                )
            )
        return found


def read(batch: Tensors, boundaries: Sequence[int], played: Sequence[Trajectory]) -> list[Episode]:
    """Return the episodes of a batch in RL2's order, failed ones last; clears the tags.

    Args:
        batch: RL2's tensors.
        boundaries: Rows at which episodes begin, and the number of rows (RL2's `cu_seqs`).
        played: Episodes by number.

    Raises:
        RolloutError: The rows are not those of the episodes.
    """
    found: list[Episode] = []
    left = dict(enumerate(played))
    for start, end in itertools.pairwise(boundaries):
        if start == end:  # a failed episode
            continue
        tags = {int(tag) for tag in batch["rewards"][start:end, TAG - 1].tolist()}
        trajectory = left.pop(min(tags), None)
        tokens = [] if trajectory is None else trajectory.sequences()
        if len(tags) != 1 or trajectory is None or len(tokens) != end - start:
            raise RolloutError(f"rows {start} to {end} of RL2's batch are no episode of GEM")
        rows = [Row(start + i, row) for i, row in enumerate(tokens)]
        for row in rows:
            row.check(batch)
        found.append(Episode(trajectory, rows))
    batch["rewards"][:, TAG - 1] = 0.0
    lost = [t for t in left.values() if t.valid]
    if lost:
        raise RolloutError(f"{len(lost)} of {len(played)} episodes are not in RL2's batch")
    return [*found, *(Episode(t, []) for t in left.values())]


def compute(
    settings: Settings, keys: Keys, batch: Tensors, episodes: Sequence[Episode]
) -> list[list[float]]:
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
    check_failures(
        [t.valid for t in trajectories],
        settings.max_failed_fraction,
        [t.failure for t in trajectories],
    )
    _check_minibatches(batch, keys.minibatches // settings.epochs)
    values = None
    if name == "gae":
        source = batch["old_values" if keys.form == "head" else "values"]
        values = [e.first_of_turns(source) for e in episodes]
    table = TurnTable.build(
        _rewards(keys, batch, episodes),
        groups=[t.group for t in trajectories],
        valid=[t.valid for t in trajectories],
        values=values,
    )
    per_turn, targets = advantages(name, table, gamma=keys.gamma, lam=keys.lam)
    split = table.split(per_turn)
    written = {"advantages": split} | ({"returns": table.split(targets)} if values else {})
    for key, by_episode in written.items():
        batch[key] = torch.zeros(batch["states"].shape)
        for episode, of_turns in zip(episodes, by_episode, strict=True):
            for row in episode.rows:
                row.write(batch[key], of_turns)
    return split


def logprob_difference(batch: Tensors, episodes: Sequence[Episode]) -> float | None:
    """Largest distance of the trainer's log-probabilities from SGLang's.

    None if RL2 did not compute its own before the update: it does for a KL penalty or several
    minibatches.
    """
    if "old_logps" not in batch:
        return None
    distance = (batch["old_logps"] - batch["llm_logps"]).abs() * batch["action_mask"]
    rows = [row.place for episode in episodes for row in episode.rows]
    return float(distance[rows].max())


def _rewards(keys: Keys, batch: Tensors, episodes: Sequence[Episode]) -> list[list[float]]:
    """Reward of each turn, with the KL penalty that RL2 took from the rewards of its tokens."""
    rewards = [episode.trajectory.rewards for episode in episodes]
    if not keys.kl_coef or keys.kl_type != "reward":
        return rewards
    own = torch.zeros(batch["rewards"].shape)
    for episode in episodes:
        for row in episode.rows:
            tokens = row.tokens.token_rewards(episode.trajectory.rewards)
            own[row.place, row.columns(0, len(tokens))] = torch.tensor(tokens)
    penalties = [episode.sums_of_turns(batch["rewards"] - own) for episode in episodes]
    return [
        [r + p for r, p in zip(of_turns, penalty, strict=True)]
        for of_turns, penalty in zip(rewards, penalties, strict=True)
    ]


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
