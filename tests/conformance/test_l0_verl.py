"""Level L0 for verl: golden trajectories through verl's own advantage code, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("verl", reason="needs the verl environment: make env-verl")

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

with warnings.catch_warnings():
    # verl warns of each of its engines that is not installed.
    warnings.simplefilter("ignore")
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

from gem.trajectory import Trajectory
from gem_train.experiment.estimate import Shaping
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.rows import EpisodeTurns, RowTurns
from gem_train.testing.conformance import L0Suite, Rows, critic, cut_row
from gem_train.testing.golden import golden_batch
from gem_verl.advantage import Batch, given

PADDING = 3


class Tensors:
    """Golden episodes as verl holds them: padded tensors, a row each, padding rows at the end."""

    def __init__(self, batch: list[Trajectory]) -> None:
        self.batch = batch
        # An episode that failed has rows without anything to train on.
        self.rows = [
            (e, row)
            for e, t in enumerate(batch)
            for row in replace(t, failure=None).training_rows()
        ]
        width = max(len(row.response_ids) for _, row in self.rows) + PADDING
        shape = (len(self.rows) + 1, width)
        self.mask = torch.zeros(shape, dtype=torch.long)
        self.rewards = torch.zeros(shape)
        self.values = torch.full(shape, 9.0)
        for i, (e, row) in enumerate(self.rows):
            n = len(row.response_ids)
            self.mask[i, :n] = torch.tensor(row.mask) * batch[e].valid
            self.rewards[i, :n] = torch.tensor(row.token_rewards(batch[e].rewards)) * batch[e].valid
            for span in row.spans:
                self.values[i, span.start] = critic(e, span.turn)
        self.uid = np.array([f"task{batch[e].group}" for e, _ in self.rows] + ["pad0"], object)

    def known(self, shaping: Shaping) -> Batch:
        """What the trainers of gem-verl tell the estimators."""
        episodes = []
        for e, trajectory in enumerate(self.batch):
            mine = [RowTurns(i, row.spans) for i, (f, row) in enumerate(self.rows) if f == e]
            rewards = trajectory.rewards if trajectory.valid else [0.0] * len(trajectory.turns)
            known = trajectory.valid, trajectory.environment
            episodes.append(EpisodeTurns(trajectory.group, mine, rewards, *known))
        return Batch(episodes, values=self.values, shaping=shaping)

    def advantages(self, algorithm: AlgorithmPart) -> torch.Tensor:
        """What verl's advantage code makes of them."""
        data = DataProto(
            batch=TensorDict(
                {"token_level_rewards": self.rewards, "response_mask": self.mask},
                batch_size=[len(self.mask)],
            ),
            non_tensor_batch={"uid": self.uid},
        )
        numbers = {"gamma": algorithm.gamma, "lam": algorithm.lam}
        config = OmegaConf.create({**numbers, "norm_adv_by_std_in_grpo": algorithm.group_std})
        out = compute_advantage(data, f"gem_{algorithm.advantage}", **numbers, config=config)
        result: torch.Tensor = out.batch["advantages"]
        return result

    def trained(self, algorithm: AlgorithmPart) -> Rows:
        advantages = self.advantages(algorithm)
        assert not advantages[-1].any()
        tensors = {"mask": self.mask, "rewards": self.rewards, "advantages": advantages}
        found: Rows = [[] for _ in self.batch]
        for i, (e, row) in enumerate(self.rows):
            # verl's tensors begin with the response.
            before = [0] * (len(row.prompt_ids) - 1)
            columns = {name: before + tensor[i].tolist() for name, tensor in tensors.items()}
            found[e].append(cut_row(row.ids, len(row.prompt_ids), **columns))
        return found


def maskable() -> list[Trajectory]:
    """Episodes whose turns can be told from the mask: each turn has at least one token.

    The valid ones twice, so that the share of failed ones is one that training may go on with.
    """
    whole = [t for t in golden_batch() if all(turn.response_ids for turn in t.turns)]
    return [*whole, *(t for t in whole if t.valid)]


class TestStockTrainer(L0Suite):
    critic = False
    batches = (maskable,)
    mixtures = shaping = False

    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        return Tensors(batch).trained(algorithm)


class TestOwnTrainer(L0Suite):
    def train(self, batch: list[Trajectory], algorithm: AlgorithmPart) -> Rows:
        tensors = Tensors(batch)
        with given(tensors.known(algorithm)):
            return tensors.trained(algorithm)


def last(mask: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(mask.shape[1]) * mask
    out = torch.zeros(mask.shape)
    out[torch.arange(len(mask)), positions.argmax(1)] = 1.0
    return out


BREAKS: dict[str, Callable[[Tensors], dict[str, torch.Tensor]]] = {
    "mask shifted by one": lambda t: {"mask": torch.roll(t.mask, 1, dims=1)},
    "reward on the wrong token": lambda t: {"rewards": torch.roll(t.rewards, 5, dims=1)},
    "reward of the last turn only": lambda t: {
        "rewards": t.rewards.sum(1, keepdim=True) * last(t.mask)
    },
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_tensor_changes_verls_advantages(broken: str) -> None:
    algorithm = AlgorithmPart(advantage="rebn", gamma=0.9)
    tensors = Tensors(maskable())
    right = tensors.advantages(algorithm)
    vars(tensors).update(BREAKS[broken](tensors))
    assert not torch.equal(tensors.advantages(algorithm), right)
