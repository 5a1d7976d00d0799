"""Our losses are those that oat's own learner computes in the middle of its learning step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oat.algorithms.ppo_multiturn import PPOMultiTurnLearner
from oat.utils.ops import masked_sum

from gem_train.experiment.losses import (
    Correction,
    PolicyLoss,
    importance_weights,
    kl_penalty,
    policy_loss,
    value_loss,
)

CLIP, TIS, BETA = 0.2, 1.1, 0.3
PROMPT, RESPONSE = 3, 5


def oats_loss(
    old: torch.Tensor, new: torch.Tensor, reference: torch.Tensor, sampler: torch.Tensor, a: float
) -> float:
    """The loss of one row in oat's `learning_step`, with log-probabilities of the test's."""
    learner: Any = object.__new__(PPOMultiTurnLearner)
    learner.args = SimpleNamespace(
        reward_scale=1.0,
        train_batch_size_per_device=1,
        temperature=1.0,
        whiten_adv=False,
        critic_type="drgrpo",
        num_ppo_epochs=1,
        reinforce_update=False,
        cliprange=CLIP,
        tis_c=TIS,
        beta=BETA,
        num_samples=1,
    )
    losses: list[float] = []
    learner.model, learner.ref_model = "model", "reference"
    learner.optimizer = learner.scheduler = None
    learner.masked_aggregator = masked_sum
    learner.strategy = SimpleNamespace(
        grad_acc_step=1,
        backward=lambda loss, *_: losses.append(float(loss)),
        optimizer_step=lambda *_: None,
        get_gradient_norm=lambda *_: torch.tensor(0.0),
    )

    def logprobs(model: str, compute_entropy: bool = False, **_: Any) -> Any:
        if model == "reference":
            return reference[None], None
        return (new[None], torch.zeros_like(new)[None]) if compute_entropy else (old[None], None)

    learner.get_batch_logps = logprobs
    n = PROMPT + RESPONSE
    learner.learning_step(
        {
            "input_ids": torch.arange(n)[None],
            "attention_mask": torch.ones(1, n, dtype=torch.long),
            "state_ids": torch.zeros(1, 1),
            "rewards": [0.0],
            "prompt_ids_lens": [PROMPT],
            "action_logprobs": [sampler.tolist()],
            "loss_masks": [1.0],
            "advantages": [a],
        }
    )
    return losses[0]


def whole(values: torch.Tensor) -> torch.Tensor:
    """The mean over a row, which is all of the values."""
    return values.mean().expand_as(values)


@pytest.mark.parametrize("advantage", [-1.5, 0.0, 0.7])
def test_the_policys_loss_is_oats(advantage: float) -> None:
    torch.manual_seed(0)
    old, new, reference = (-torch.rand(PROMPT + RESPONSE - 1) * 3 for _ in range(3))
    sampler = old[PROMPT - 1 :] - torch.tensor([0.5, -0.5, 0.0, 0.05, 0.2])
    theirs = oats_loss(old, new, reference, sampler, advantage)
    o, n, r = (x[PROMPT - 1 :] for x in (old, new, reference))
    ours = policy_loss(n, o, torch.full_like(n, advantage), PolicyLoss(clip=CLIP), whole)
    weights = importance_weights(o, sampler, Correction(tis_clip=TIS), torch.sum)
    ours = ours * weights + BETA * kl_penalty(n, r, "k3")
    assert float(ours.sum()) == pytest.approx(theirs, rel=1e-6)
    assert ((n - o).exp() - 1).abs().max() > CLIP  # some tokens are beyond the clip range


def test_at_the_old_policy_the_gradient_is_reinforces() -> None:
    new = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantage = torch.tensor([0.5, -3.0])
    policy_loss(new, new.detach(), advantage, PolicyLoss(clip=CLIP), whole).sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [-0.5, 3.0]


def test_the_value_loss_is_clipped_as_oats() -> None:
    new, old, target = torch.tensor([1.0, 0.1]), torch.tensor([0.0, 0.0]), torch.tensor([2.0, 2.0])
    wanted = [0.5 * max(1.0, 1.8**2), 0.5 * 1.9**2]
    assert value_loss(new, old, target, 0.2).tolist() == pytest.approx(wanted)
