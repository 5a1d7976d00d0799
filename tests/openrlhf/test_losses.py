"""OpenRLHF's policy loss is that of a RunSpec, in value and gradient, where its table says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from openrlhf.models.loss import PolicyLoss as TheirLoss
from torch import Tensor

from gem_train.experiment.losses import PolicyLoss, policy_loss

ROWS = [6, 3]
"""Sampled tokens of each row."""
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip_high": {"clip_high": 0.6},
    "dual clip": {"clip_high": 0.6, "dual_clip": 2.0},
    "rows": {"loss_aggregation": "row-mean-token-mean"},
    "sequence": {"ratio": "sequence", "loss_aggregation": "row-mean-token-mean", "clip_high": 0.1},
}


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Old log-probabilities, new ones, advantages (one a row) and mask, `[rows, tokens]`."""
    torch.manual_seed(0)
    old = -torch.rand(2, 6, dtype=torch.float64) - 0.5
    new = old + torch.tensor([[1.2], [-0.9]]) * torch.rand(2, 6, dtype=torch.float64)
    mask = torch.tensor([[1.0] * n + [0.0] * (6 - n) for n in ROWS], dtype=torch.float64)
    return old, new, torch.tensor([[-1.5], [0.7]]).expand(2, 6).double(), mask


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_the_loss_is_openrlhfs(settings: dict[str, Any]) -> None:
    old, new, advantages, mask = batch()
    how = PolicyLoss(clip=0.2, **settings)
    theirs = TheirLoss(
        clip_eps_low=how.clip,
        clip_eps_high=how.highest,
        dual_clip=how.dual_clip,
        token_level_loss=how.loss_aggregation == "token-mean",
        policy_loss_type="gspo" if how.ratio == "sequence" else "ppo",
    )
    ours_new, their_new = (new.clone().requires_grad_() for _ in range(2))
    wanted, *_ = theirs(their_new, old, advantages, action_mask=mask)

    def means(values: Tensor) -> Tensor:
        sums = (values * mask).sum(-1, keepdim=True)
        return (sums / mask.sum(-1, keepdim=True)).expand_as(values)

    turns = [[0] * n for n in ROWS]
    weights = torch.tensor([[how.weights(row, 6)[0]] * 6 for row in turns], dtype=torch.float64)
    each = policy_loss(ours_new, old, advantages, how, means)
    found = (each * weights * mask).sum() / sum(map(how.units, turns))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    found.backward()
    wanted.backward()
    assert ours_new.grad is not None and their_new.grad is not None
    torch.testing.assert_close(ours_new.grad, their_new.grad, rtol=1e-6, atol=1e-9)
    assert ours_new.grad.abs().sum() > 0
