"""Episodes become Tinker's datums: `gem.advantage` per turn, spread over the sampled tokens.

A Tinker server multiplies each token's loss by its advantage and adds up, but servers do not add
up alike. `Objective` says what is wanted and how the server does it; what lies between the two
goes into the advantages as one factor a datum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tinker
from numpy.typing import NDArray

from gem.advantage import advantages
from gem.errors import ConfigurationError, RolloutError
from gem.training.record import TrainedRow
from gem.trajectory import TrainingRow, Trajectory, turn_table

Floats32: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class Objective:
    """How the losses of sampled tokens are to be added up, and how the server does it.

    - `hosted` and `skyrl_train` add up over all tokens of all datums.
    - `skyrl_jax` takes in each datum the mean over its tokens, weighted with `weights`, and then
      the mean over the datums. The weights sent are 1 on sampled tokens.
    """

    aggregation: str
    """`token-mean`: mean over sampled tokens; `row-mean-token-sum`: sum over tokens, mean over
    rows."""
    server: str
    """`hosted`, `skyrl_train` or `skyrl_jax`."""

    @property
    def weights(self) -> bool:
        """Whether datums carry `weights`."""
        return self.server == "skyrl_jax"

    def factors(self, sampled: Sequence[int]) -> list[float]:
        """Return what the advantages of each datum are multiplied by.

        Args:
            sampled: Number of sampled tokens of each datum of one update.
        """
        wanted = 1 / sum(sampled) if self.aggregation == "token-mean" else 1 / len(sampled)
        return [wanted / part for part in self.server_factors(sampled)]

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


@dataclass
class Row:
    """One training row: what was played, what it is worth, what is sent."""

    episode: int
    """Index of the episode in the batch."""
    tokens: TrainingRow
    advantages: Floats32
    """Of each token of the response, before the factor."""
    factor: Floats32 | None = None
    """What the server's way of adding up makes of them; set by `to_datums`."""
    datum: tinker.Datum | None = None
    """Set by `to_datums`."""

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(self.tokens.mask)


def batch_rows(
    episodes: Sequence[Trajectory], advantage: str, gamma: float
) -> tuple[list[Row], list[list[float]]]:
    """Return the rows of all episodes that count, and the advantages `[episode][turn]`.

    Args:
        episodes: A whole batch: statistics are over all of its turns.
        advantage: Estimator of `gem.advantage`.
        gamma: Discount per turn.
    """
    table = turn_table(episodes)
    per_turn, _ = advantages(advantage, table, gamma=gamma)
    split = table.split(per_turn)
    rows = [
        Row(index, tokens, np.asarray(tokens.spread(values), np.float32))
        for index, (episode, values) in enumerate(zip(episodes, split, strict=True))
        for tokens in episode.training_rows()
    ]
    return rows, split


def to_datums(rows: Sequence[Row], objective: Objective) -> list[tinker.Datum]:
    """Make the datums of one update; rows without a sampled token have none.

    Raises:
        RolloutError: A row has no log-probabilities.
    """
    trained = [row for row in rows if row.sampled]
    factors = objective.factors([row.sampled for row in trained])
    for row, factor in zip(trained, factors, strict=True):
        row.factor = np.asarray(factor, np.float32)
        row.datum = _datum(row, row.factor, objective.weights)
    return [row.datum for row in trained if row.datum is not None]


def _datum(row: Row, factor: Floats32, weights: bool) -> tinker.Datum:
    tokens = row.tokens
    if tokens.logprobs is None:
        raise RolloutError("the server returned no log-probabilities for sampled tokens")
    ids = tokens.ids
    # Targets are shifted by one: the first stands behind the first token of the prompt.
    before = len(tokens.prompt_ids) - 1
    inputs: dict[str, Any] = {
        "target_tokens": np.asarray(ids[1:], np.int64),
        "logprobs": _after(before, np.asarray(tokens.logprobs, np.float32)),
        "advantages": _after(before, row.advantages * factor),
    }
    if weights:
        inputs["weights"] = _after(before, np.asarray(tokens.mask, np.float32))
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def _after(before: int, values: Floats32) -> Floats32:
    return np.concatenate([np.zeros(before, np.float32), values])


def trained_rows(rows: Sequence[Row], episodes: Sequence[Trajectory]) -> list[list[TrainedRow]]:
    """Read back from the datums what was trained on, `[episode][row]`.

    Advantages are shown without the factor; what was sent is checked to be their product.

    Raises:
        RolloutError: A datum holds something else.
    """
    shown: list[list[TrainedRow]] = [[] for _ in episodes]
    for row in rows:
        if row.datum is None or row.factor is None:
            continue
        inputs = row.datum.loss_fn_inputs
        ids = [*row.datum.model_input.to_ints(), int(inputs["target_tokens"].to_numpy()[-1])]
        start = len(row.tokens.prompt_ids)
        before, sent = np.split(inputs["advantages"].to_numpy(), [start - 1])
        if before.any() or not np.array_equal(sent, row.advantages * row.factor):
            raise RolloutError("a datum holds other advantages than its row")
        mask = row.tokens.mask
        if "weights" in inputs:
            mask = inputs["weights"].to_numpy()[start - 1 :].astype(int).tolist()
        rewards = row.tokens.token_rewards(episodes[row.episode].rewards)
        shown[row.episode].append(
            TrainedRow(ids[:start], ids[start:], mask, rewards, row.advantages.tolist())
        )
    return shown
