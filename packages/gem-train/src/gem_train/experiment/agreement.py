"""How far a trainer's log-probabilities of the sampled tokens are from those of its sampler.

Both are of the same distribution and the same weights before the first update of a batch, so that
they differ by rounding alone: a larger gap means stale weights, or another distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

MISMATCH = math.log(2)
"""Gap from which a token counts as mismatched: one probability is twice the other, or more."""
NAMES = (
    "logprob_difference_max",
    "logprob_difference_mean",
    "sampler_kl",
    "mismatched_tokens",
)
"""Metrics of a batch; see `Agreement.metrics`."""
_LARGEST = 40.0


@dataclass(frozen=True)
class Agreement:
    """Sums over sampled tokens, with `gap = trainer - sampler`; parts of a batch can be added."""

    tokens: int = 0
    total: float = 0.0
    """Sum of `|gap|`."""
    largest: float = 0.0
    """Largest `|gap|`."""
    kl: float = 0.0
    """Sum of `exp(gap) - 1 - gap`."""
    mismatched: int = 0
    """Tokens with `|gap| >= log 2`."""

    @classmethod
    def of(cls, trainer: ArrayLike, sampler: ArrayLike, sampled: ArrayLike = True) -> Agreement:
        """Compare log-probabilities.

        Args:
            trainer: Of the policy before the batch's first update, of any shape.
            sampler: Those with which tokens were drawn, of the same shape.
            sampled: Whether the policy sampled a token, of the same shape; by default all.
        """
        ours, theirs = np.asarray(trainer, np.float64), np.asarray(sampler, np.float64)
        gap = (ours - theirs)[np.broadcast_to(np.asarray(sampled, bool), ours.shape)]
        if not gap.size:
            return cls()
        size = np.abs(gap)
        bounded = gap.clip(-_LARGEST, _LARGEST)  # as in `gem_train.experiment.losses.kl_penalty`
        return cls(
            gap.size,
            float(size.sum()),
            float(size.max()),
            float((np.expm1(bounded) - bounded).sum()),
            # What is no number does not match either.
            int((~(size < MISMATCH)).sum()),
        )

    def __add__(self, other: Agreement) -> Agreement:
        """Return that of both parts."""
        return Agreement(
            self.tokens + other.tokens,
            self.total + other.total,
            float(np.maximum(self.largest, other.largest)),
            self.kl + other.kl,
            self.mismatched + other.mismatched,
        )

    def metrics(self) -> dict[str, float]:
        """Return metrics under the record's names; nothing without a token.

        Returns:
            `logprob_difference_max` and `logprob_difference_mean` of `|gap|`; `sampler_kl`, the
            mean of `exp(gap) - 1 - gap`: estimator k3 of the divergence of the sampler's
            distribution from the trainer's (http://joschu.net/blog/kl-approx.html);
            `mismatched_tokens`, the number of tokens with `|gap| >= log 2`.
        """
        if not self.tokens:
            return {}
        return {
            "logprob_difference_max": self.largest,
            "logprob_difference_mean": self.total / self.tokens,
            "sampler_kl": self.kl / self.tokens,
            "mismatched_tokens": float(self.mismatched),
        }
