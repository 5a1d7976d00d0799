"""Losses as functions of PyTorch's tensors, one value a token or a turn, of any equal shapes.

They are the reference trainer's, and those of adapters whose trainer has no function to call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def policy_loss(new: Tensor, old: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return the clipped surrogate of each token (PPO, arXiv 1707.06347, eq. 7), to be minimised.

    `max(-A * ratio, -A * clamp(ratio, 1 - clip, 1 + clip))` with `ratio = exp(new - old)`. At
    `new == old` its gradient is that of REINFORCE, `-A * grad(new)`.
    """
    ratio = (new - old).exp()
    return (-advantage * ratio).maximum(-advantage * ratio.clamp(1 - clip, 1 + clip))


def sampler_correction(old: Tensor, sampler: Tensor, most: float) -> Tensor:
    """Return the truncated importance weight of each token, `min(exp(old - sampler), most)`.

    `old` is the log-probability before the batch's first update, `sampler` that which the token was
    drawn with (Yao et al., 2025, https://fengyao.notion.site/off-policy-rl).
    """
    return (old - sampler).exp().clamp(max=most)


def kl_penalty(new: Tensor, reference: Tensor) -> Tensor:
    """Return the estimator k3 of the KL divergence to the reference, of each token.

    `exp(d) - 1 - d` with `d = reference - new` (http://joschu.net/blog/kl-approx.html).
    """
    ratio = (reference - new).clamp(-40.0, 40.0)
    return ratio.expm1() - ratio


def value_loss(new: Tensor, old: Tensor, target: Tensor, clip: float) -> Tensor:
    """Return the clipped squared error of each turn's value, as in the original PPO code."""
    clipped = old + (new - old).clamp(-clip, clip)
    return 0.5 * ((new - target) ** 2).maximum((clipped - target) ** 2)
