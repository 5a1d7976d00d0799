"""The losses of oat's PPO learner as functions of tensors `[rows, tokens]`, one value a token.

oat computes them in the middle of its `learning_step`, which knows one advantage and one row a
turn and a fixed number of rows; there is no function to call. tests/oat/test_loss.py compares these
with what that method computes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def policy_loss(new: Tensor, old: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Clipped surrogate (PPO, arXiv 1707.06347, equation 7), to be minimised."""
    ratio = (new - old).exp()
    return torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip))


def sampler_correction(old: Tensor, sampler: Tensor, most: float) -> Tensor:
    """Truncated importance weight of the learner's policy over the engine's (oat's `--tis_c`)."""
    return (old - sampler).exp().clamp(max=most)


def kl_penalty(new: Tensor, reference: Tensor) -> Tensor:
    """Estimator k3 of the KL divergence to the reference (http://joschu.net/blog/kl-approx.html)."""
    ratio = (reference - new).clamp(-40.0, 40.0)
    return torch.expm1(ratio) - ratio


def value_loss(new: Tensor, old: Tensor, target: Tensor, clip: float) -> Tensor:
    """Clipped squared error of values, one a turn."""
    clipped = old + (new - old).clamp(-clip, clip)
    return 0.5 * torch.max((new - target) ** 2, (clipped - target) ** 2)
