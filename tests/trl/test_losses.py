"""TRL's ratio of sequences is that of a RunSpec where a row's turns share an advantage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gem_train.experiment.losses import PolicyLoss, policy_loss

HOW = PolicyLoss(
    clip=0.02, clip_high=0.05, ratio="sequence", loss_aggregation="row-mean-token-mean"
)


def test_the_gradient_of_a_sequence_s_ratio_is_trls(make_trainer: Callable[..., Any]) -> None:
    trainer = make_trainer(
        script=lambda turn, seed: "end" if turn == seed % 3 else "on",
        advantage="grpo",
        args={
            "importance_sampling_level": "sequence",
            "epsilon": HOW.clip,
            "epsilon_high": HOW.highest,
            "loss_type": "grpo",
        },
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer._generate_and_score_completions(trainer.train_dataset.to_list()[:8])
    mask = (inputs["completion_mask"] * inputs["tool_mask"]).float()
    torch.manual_seed(0)
    rows = torch.randn(len(mask), 1)
    inputs["advantages"] = rows * mask

    def logprobs() -> Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        found, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, attended, mask.shape[1]
        )
        return found

    # Some rows' ratios are outside the clip ranges, some within.
    old = logprobs().detach() + 0.06 * torch.randn(len(mask), 1)
    inputs["old_per_token_logps"] = old

    def gradient(loss: Tensor) -> Tensor:
        trainer.model.zero_grad()
        loss.backward()
        found = [p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]
        return torch.cat(found).clone()

    theirs = gradient(trainer._compute_loss(trainer.model, inputs))

    def means(values: Tensor) -> Tensor:
        return ((values * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).expand_as(
            values
        )

    each = policy_loss(logprobs(), old, rows.expand_as(mask), HOW, means) * mask
    ours = gradient((each.sum(-1) / mask.sum(-1)).mean())
    assert ours.norm() > 0
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_other_advantages_would_be_mixed() -> None:
    """What the table refuses: turns of a row with different advantages."""
    new = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0])
    # TRL: one ratio for the row, whose gradient is that of the mean.
    (-(new - new.detach()).mean().exp() * advantages).mean().backward()
    assert new.grad is not None and new.grad.tolist() == [0.0, 0.0]
    new.grad = None
    how = PolicyLoss(ratio="sequence")
    policy_loss(new, new.detach(), advantages, how, torch.zeros_like).mean().backward()
    assert new.grad.tolist() == pytest.approx([-0.5, 0.5])
