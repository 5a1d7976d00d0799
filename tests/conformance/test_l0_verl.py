"""Level L0 for verl: golden trajectories through verl's own advantage code, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from golden_rows import GAMMA, LAM, critic, per_turn, unbiased_deviation

pytest.importorskip("verl", reason="needs the verl environment: make env-verl")

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

with warnings.catch_warnings():
    # verl warns of each of its engines that is not installed.
    warnings.simplefilter("ignore")
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

from gem.advantage import ADVANTAGES, TurnTable
from gem.testing.golden import golden_batch, golden_turn_rows
from gem.trajectory import Trajectory, turn_table
from gem_verl.advantage import Batch, EpisodeRows, given

PADDING = 3


class Rows:
    """Golden episodes as verl holds them: padded tensors, a row each, padding rows at the end."""

    def __init__(self, batch: list[Trajectory]) -> None:
        self.batch = batch
        self.rows = [
            (e, row) for e, trajectory in enumerate(batch) for row in trajectory.training_rows()
        ]
        width = max(len(row.response_ids) for _, row in self.rows) + PADDING
        shape = (len(self.rows) + 1, width)
        self.mask = torch.zeros(shape, dtype=torch.long)
        self.rewards = torch.zeros(shape)
        self.values = torch.full(shape, 9.0)
        for i, (e, row) in enumerate(self.rows):
            n = len(row.response_ids)
            valid = batch[e].valid
            # An episode that failed is a row without anything to train on.
            self.mask[i, :n] = torch.tensor(row.mask) * valid
            self.rewards[i, :n] = torch.tensor(row.token_rewards(batch[e].rewards)) * valid
            for span in row.spans:
                self.values[i, span.start] = critic(e, span.turn)
        self.uid = np.array([f"task{batch[e].group}" for e, _ in self.rows] + ["pad0"], object)

    def known(self) -> Batch:
        """What the trainers of gem-verl tell the estimators."""
        episodes = []
        for e, trajectory in enumerate(self.batch):
            mine = [(i, row.spans) for i, (f, row) in enumerate(self.rows) if f == e]
            rewards = trajectory.rewards if trajectory.valid else [0.0] * len(trajectory.turns)
            episodes.append(
                EpisodeRows(f"task{trajectory.group}", mine, rewards, valid=trajectory.valid)
            )
        return Batch(episodes, values=self.values)

    def verl_advantages(self, name: str, gamma: float = GAMMA) -> torch.Tensor:
        data = DataProto(
            batch=TensorDict(
                {"token_level_rewards": self.rewards, "response_mask": self.mask},
                batch_size=[len(self.mask)],
            ),
            non_tensor_batch={"uid": self.uid},
        )
        config = OmegaConf.create({"gamma": gamma, "lam": LAM, "norm_adv_by_std_in_grpo": True})
        out = compute_advantage(data, f"gem_{name}", gamma=gamma, lam=LAM, config=config)
        result: torch.Tensor = out.batch["advantages"]
        return result

    def expected(self, name: str) -> torch.Tensor:
        """`gem.advantage` on the trajectories, spread by their own rows, as float32."""
        split = per_turn(name, self.batch)
        out = torch.zeros(self.mask.shape)
        for i, (e, row) in enumerate(self.rows):
            out[i, : len(row.response_ids)] = torch.tensor(row.spread(split[e]))
        return out


def maskable() -> list[Trajectory]:
    """Episodes whose turns can be told from the mask: each turn has at least one token.

    The valid ones twice, so that the share of failed ones is one that training may go on with.
    """
    whole = [t for t in golden_batch() if all(turn.response_ids for turn in t.turns)]
    return [*whole, *(t for t in whole if t.valid)]


@pytest.mark.parametrize("name", [n for n in ADVANTAGES if n != "gae"])
def test_stock_trainer_gets_gems_advantages(name: str) -> None:
    rows = Rows(maskable())
    assert any(not t.valid for t in rows.batch)
    assert torch.equal(rows.verl_advantages(name), rows.expected(name))


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("batch", [golden_batch, golden_turn_rows])
def test_own_trainer_gets_gems_advantages(name: str, batch: Callable[[], list[Trajectory]]) -> None:
    rows = Rows(batch())
    with given(rows.known()):
        found = rows.verl_advantages(name)
    expected = rows.expected(name)
    assert expected.any()
    assert torch.equal(found, expected)


def shift(x: torch.Tensor) -> torch.Tensor:
    return torch.roll(x, 1, dims=1)


BREAKS: dict[str, Callable[[Rows, pytest.MonkeyPatch], float]] = {
    "gamma": lambda rows, patch: 1.0,
    "mask shifted by one": lambda rows, patch: _set(rows, "mask", shift(rows.mask)),
    "reward on the wrong token": lambda rows, patch: _set(
        rows, "rewards", torch.roll(rows.rewards, 5, dims=1)
    ),
    "unbiased standard deviation": lambda rows, patch: _unbiased(patch),
    "reward of the last turn only": lambda rows, patch: _set(
        rows, "rewards", rows.rewards.sum(1, keepdim=True) * _last(rows.mask)
    ),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_the_comparison_notices(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(maskable())
    expected = rows.expected("rebn")
    gamma = BREAKS[broken](rows, monkeypatch)
    assert not torch.equal(rows.verl_advantages("rebn", gamma), expected)


def _set(rows: Rows, name: str, value: torch.Tensor) -> float:
    setattr(rows, name, value)
    return GAMMA


def _unbiased(patch: pytest.MonkeyPatch) -> float:
    unbiased_deviation(patch)
    return GAMMA


def _last(mask: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(mask.shape[1]) * mask
    out = torch.zeros(mask.shape)
    out[torch.arange(len(mask)), positions.argmax(1)] = 1.0
    return out


def test_the_golden_batch_is_ugly_enough() -> None:
    table: TurnTable = turn_table(golden_batch())
    assert not table.valid.all()
    assert min(len(t.response_ids) for e in golden_batch() for t in e.turns) == 0
