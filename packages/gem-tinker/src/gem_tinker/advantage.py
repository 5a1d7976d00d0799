"""Episodes become Tinker's datums: `gem.advantage` per turn, spread over the sampled tokens.

A Tinker server multiplies each token's loss by its advantage and adds up, but servers do not add
up alike. `Objective` says what is wanted and how the server does it; what lies between the two
goes into the advantages as one factor a datum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tinker
from numpy.typing import NDArray

from gem.errors import ConfigurationError, RolloutError
from gem.trajectory import Trajectory
from gem_tinker.settings import Config
from gem_train.experiment.estimate import PerTurn, turn_advantages
from gem_train.experiment.losses import PolicyLoss
from gem_train.record import TrainedRow
from gem_train.rows import PlacedRow, placed_rows


@dataclass(frozen=True)
class Objective:
    """How the losses of sampled tokens are to be added up, and how the server does it.

    - `hosted` and `skyrl_train` add up over all tokens of all datums.
    - `skyrl_jax` takes in each datum the mean over its tokens, weighted with `weights`, and then
      the mean over the datums. The weights sent are 1 on sampled tokens.
    """

    aggregation: str
    """`loss_aggregation` of a RunSpec; see `gem_train.experiment.losses.PolicyLoss`."""
    server: str
    """`hosted`, `skyrl_train` or `skyrl_jax`."""
    response_tokens: int = 1
    """By which `row-mean-token-sum-norm` divides."""

    def factors(self, turns: Sequence[Sequence[int]]) -> list[defaultdict[int, float]]:
        """Return what the advantages of each datum are multiplied by, by their turn.

        Args:
            turns: The turn of each sampled token of each datum of one update.
        """
        how = PolicyLoss(loss_aggregation=self.aggregation)
        units = sum(how.units(each) for each in turns)
        weights = [how.weights(each, self.response_tokens) for each in turns]
        parts = self.server_factors([len(each) for each in turns])
        return [
            defaultdict(float, {turn: weight / units / part for turn, weight in mine.items()})
            for mine, part in zip(weights, parts, strict=True)
        ]

    def server_factors(self, sampled: Sequence[int]) -> list[float]:
        """Return what the server itself multiplies each datum's summed loss by.

        Raises:
            ConfigurationError: The server is not known.
        """
        if self.server in ("hosted", "skyrl_train"):
            return [1.0] * len(sampled)
        if self.server == "skyrl_jax":
            return [1 / (n * len(sampled)) for n in sampled]
        raise ConfigurationError(f"server: how does {self.server!r} add up its loss?")


class Row(PlacedRow):
    """One training row: what was played, what it is worth, what is sent."""

    advantages: NDArray[np.float32]
    """Of each token of the response, before the factors; set by `batch_rows`."""
    factors: NDArray[np.float32]
    """What each of them is multiplied by, for the server's way of adding up; set by `to_datums`."""
    datum: tinker.Datum
    """Set by `to_datums`."""


def batch_rows(
    episodes: Sequence[Trajectory], config: Config, trained: Sequence[bool] | None = None
) -> tuple[list[Row], PerTurn]:
    """Return the rows of all episodes that count, and the advantages `[episode][turn]`.

    A row without a sampled token is left out: there is nothing to train on.

    Args:
        episodes: A whole batch: statistics are over all of its turns.
        config: Estimator, discount, and what is done to rewards and advantages.
        trained: Whether an episode is trained on; by default all are.
    """
    per_turn, _ = turn_advantages(
        config.advantage, episodes, config, gamma=config.gamma, trained=trained
    )
    in_loss = config.in_loss(episodes, trained)
    rows = [row for row in placed_rows(episodes, Row) if row.sampled and in_loss[row.episode]]
    for row in rows:
        row.advantages = np.asarray(row.tokens.spread(per_turn[row.episode]), np.float32)
    return rows, per_turn


def to_datums(
    rows: Sequence[Row], objective: Objective, *, mask: bool = False
) -> list[tinker.Datum]:
    """Make the datums of one update.

    Args:
        rows: Of the update, from `batch_rows`.
        objective: How losses are to be added up.
        mask: Whether datums have a `mask`, which the cookbook's metrics need and no server takes.

    Raises:
        RolloutError: A row has no log-probabilities.
    """
    found = objective.factors([row.turns for row in rows])
    for row, factors in zip(rows, found, strict=True):
        tokens = row.tokens
        if tokens.logprobs is None:
            raise RolloutError("the server returned no log-probabilities for sampled tokens")
        row.factors = np.asarray(tokens.spread(factors), np.float32)
        inputs: dict[str, Any] = {
            # Shifted by one, as all inputs: the first target is the prompt's second token.
            "target_tokens": np.asarray(tokens.ids[1:], np.int64),
            "logprobs": row.padded(tokens.logprobs),
            "advantages": row.padded(row.advantages * row.factors),
        }
        if objective.server == "skyrl_jax":
            inputs["weights"] = row.padded(tokens.mask)
        if mask:
            inputs["mask"] = row.padded(tokens.mask)
        prompt = tinker.ModelInput.from_ints(tokens.ids[:-1])
        row.datum = tinker.Datum(model_input=prompt, loss_fn_inputs=inputs)
    return [row.datum for row in rows]


def trained_rows(rows: Sequence[Row], episodes: Sequence[Trajectory]) -> list[list[TrainedRow]]:
    """Read back from the datums of all rows what was trained on, `[episode][row]`.

    Advantages are shown without the factors; what was sent is checked to be their product.

    Raises:
        RolloutError: A datum holds something else.
    """
    shown: list[list[TrainedRow]] = [[] for _ in episodes]
    for row in rows:
        inputs = {name: value.to_numpy() for name, value in row.datum.loss_fn_inputs.items()}
        if not np.array_equal(inputs["advantages"], row.padded(row.advantages * row.factors)):
            raise RolloutError("a datum holds other advantages than its row")
        ids = [*row.datum.model_input.to_ints(), int(inputs["target_tokens"][-1])]
        mask = inputs["weights"][row.columns] if "weights" in inputs else row.tokens.mask
        rewards = row.tokens.token_rewards(episodes[row.episode].rewards)
        shown[row.episode].append(row.trained(ids, mask, rewards, row.advantages.tolist()))
    return shown
