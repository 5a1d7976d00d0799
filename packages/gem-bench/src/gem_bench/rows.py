"""Training rows of the reference trainer: which tokens the policy sampled, and where turns begin.

- `Row`, `training_rows`: the rows of a batch, in the order played.
- `pad`: several rows as the tensors of one forward pass.
- `row_sums`, `row_means`: over the sampled tokens of each row.
- `trained_rows`: what the loss sees of each row, for comparison with the rows of adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gem.errors import ConfigurationError, RolloutError
from gem.rollout import ChatFormat
from gem.rollout.vision import VisionChatFormat
from gem.trajectory import TrainingRow, Trajectory
from gem_train.record import TrainedRow


@dataclass
class Row:
    """One training row: a stretch of an episode that is one growing sequence of tokens."""

    episode: int
    """Index of the episode in the batch."""
    tokens: TrainingRow
    """Prompt, response and spans of turns, as the trajectory cuts them."""
    ids: list[int]
    """Prompt and response."""
    sampled: list[int]
    """Positions in `ids` of the tokens that the policy sampled."""
    turn: list[int]
    """The turn that each sampled token belongs to."""
    states: list[tuple[int, int]]
    """`(turn, position in ids of its last prompt token)` for every turn of this row."""
    old_logprobs: Tensor | None = None
    """Log-probabilities before the first update, `[sampled tokens]`; None: the current ones."""
    initial_logprobs: Tensor | None = None
    """Log-probabilities of the policy with which the run began; None without a KL penalty."""
    old_values: Tensor | None = None
    """The critic's values before the first update, `[turns]`."""

    @property
    def drawn(self) -> list[float]:
        """The sampler's log-probability of each sampled token.

        Raises:
            ConfigurationError: It is not known.
        """
        if self.tokens.logprobs is None:
            raise ConfigurationError(
                "algorithm.tis_*, reject_*: an episode has no log-probabilities of its sampler; "
                "leave them out"
            )
        start = len(self.tokens.prompt_ids)
        return [self.tokens.logprobs[position - start] for position in self.sampled]


def training_rows(
    trajectories: Sequence[Trajectory], trained: Sequence[bool] | None = None
) -> list[Row]:
    """Return the rows of all valid episodes, in the order played.

    An append-only context gives one row an episode, every other context one row a turn.

    Args:
        trajectories: The batch.
        trained: Whether an episode is trained on; by default all are.
    """
    rows = []
    for episode, trajectory in enumerate(trajectories):
        if trained is not None and not trained[episode]:
            continue
        for tokens in trajectory.training_rows():
            start = len(tokens.prompt_ids)
            where = [(start + i, s.turn) for s in tokens.spans for i in range(s.start, s.end)]
            rows.append(
                Row(
                    episode,
                    tokens,
                    tokens.ids,
                    sampled=[position for position, _ in where],
                    turn=[turn for _, turn in where],
                    states=tokens.states,
                )
            )
    return rows


def pad(
    rows: Sequence[Row], device: torch.device, chat: ChatFormat | None = None
) -> dict[str, Tensor]:
    """Return right-padded `input_ids` and `attention_mask`, `[rows, length]`.

    With a chat format that shows images also what the model is given for them.

    Raises:
        RolloutError: A row has images, and `chat` shows none; or the bytes of an image are missing.
    """
    width = max(len(row.ids) for row in rows)
    ids = [row.ids + [0] * (width - len(row.ids)) for row in rows]
    mask = [[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in rows]
    batch = {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }
    images = [image for row in rows for image in row.tokens.images]
    if not images:
        return batch
    if not isinstance(chat, VisionChatFormat):
        raise RolloutError(f"{len(images)} images in rows of a model that sees none")
    shown = chat.model_inputs(batch["input_ids"], images)
    return batch | {name: value.to(device) for name, value in shown.items()}


def row_sums(lengths: Tensor, values: Tensor) -> Tensor:
    """Return for each token the sum over its row, `[sampled tokens of all rows]`.

    Args:
        lengths: Sampled tokens of each row, `[rows]`.
        values: A number for each token, row after row.
    """
    lengths = lengths.to(values.device)
    row = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths)
    return values.new_zeros(len(lengths)).index_add(0, row, values)[row]


def row_means(lengths: Tensor, values: Tensor) -> Tensor:
    """Return for each token the mean over its row; see `row_sums`."""
    return row_sums(lengths, values) / row_sums(lengths, torch.ones_like(values))


def trained_rows(
    rows: Sequence[Row], trajectories: Sequence[Trajectory], advantage: list[list[float]]
) -> list[list[TrainedRow]]:
    """Return what the loss sees of each row, `[episode][row]`, for comparison with adapters."""
    shown: list[list[TrainedRow]] = [[] for _ in trajectories]
    for row in rows:
        start, n = len(row.tokens.prompt_ids), len(row.tokens.response_ids)
        mask, per_token = [0] * n, [0.0] * n
        for position, turn in zip(row.sampled, row.turn, strict=True):
            mask[position - start] = 1
            per_token[position - start] = advantage[row.episode][turn]
        rewards = row.tokens.token_rewards(trajectories[row.episode].rewards)
        shown[row.episode].append(
            TrainedRow(row.ids[:start], row.ids[start:], mask, rewards, per_token)
        )
    return shown
