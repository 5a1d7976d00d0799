"""Losses as functions of PyTorch's tensors, one value a token or a turn, of any equal shapes.

They are the reference trainer's, and those of adapters whose trainer has no function to call.
`PolicyLoss` and `Correction` have the settings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gem.tables import setting

if TYPE_CHECKING:
    from torch import Tensor

AGGREGATIONS = (
    "token-mean",
    "row-mean-token-sum",
    "row-mean-token-mean",
    "row-mean-token-sum-norm",
    "turn-mean",
)
"""How the losses of tokens become one number; see `PolicyLoss.units`."""

RowSum: TypeAlias = "Callable[[Tensor], Tensor]"
"""Takes a value of each token, returns the sum over the sampled tokens of the token's row."""
RowMean: TypeAlias = "Callable[[Tensor], Tensor]"
"""Takes a value of each token, returns the mean over the sampled tokens of the token's row."""


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """The policy's loss: surrogate, ratio, clip ranges, and how tokens are added up."""

    loss: str = setting(
        "`ppo`, the clipped surrogate (arXiv 1707.06347, equation 7), `cispo`, REINFORCE weighted "
        "with a clipped ratio (arXiv 2506.13585), or `sapo`, whose soft gate takes the place of "
        "clipping (arXiv 2511.20347)",
        "ppo",
        choices=("ppo", "cispo", "sapo"),
    )
    clip: float = setting("clip range of the probability ratio below 1", 0.2, above=0)
    clip_high: float | None = setting(
        "clip range above 1 (arXiv 2503.14476); by default that of `clip`", None, above=0
    )
    dual_clip: float | None = setting(
        "largest weight of a negative advantage (arXiv 1912.09729); by default there is no limit",
        None,
        above=1,
    )
    sapo_positive: float = setting(
        "how fast `sapo` fades ratios out where the advantage is positive", 1.0, above=0
    )
    sapo_negative: float = setting("the same where it is not positive", 1.05, above=0)
    ratio: str = setting(
        "probability ratio of each `token`, or of each `sequence`: the geometric mean over the "
        "sampled tokens of a row (GSPO-token, arXiv 2507.18071, equation 13)",
        "token",
        choices=("token", "sequence"),
    )
    loss_aggregation: str = setting(
        "mean over sampled tokens; or mean over rows of their tokens' sum, mean, or sum divided by "
        "`policy.response_tokens` (Dr. GRPO, arXiv 2503.20783); or mean over turns of their "
        "tokens' mean",
        AGGREGATIONS[0],
        choices=AGGREGATIONS,
    )
    kl_estimator: str = setting(
        "of the KL penalty: k1, k2 or k3 (http://joschu.net/blog/kl-approx.html)",
        "k3",
        choices=("k1", "k2", "k3"),
    )

    @property
    def highest(self) -> float:
        """The clip range above 1."""
        return self.clip if self.clip_high is None else self.clip_high

    def units(self, turns: Sequence[int]) -> int:
        """Return what a row counts in the mean: its sampled tokens, itself, or its turns.

        Args:
            turns: The turn of each sampled token of the row; at least one.
        """
        if self.loss_aggregation == "token-mean":
            return len(turns)
        return len(set(turns)) if self.loss_aggregation == "turn-mean" else 1

    def weights(self, turns: Sequence[int], longest: int) -> defaultdict[int, float]:
        """Return the weight of a row's sampled tokens within their unit, by turn; else 0.

        The loss of a batch is the weighted sum over its tokens, divided by the sum of `units`.

        Args:
            turns: See `units`.
            longest: `policy.response_tokens`.
        """
        counts = Counter(turns)
        if self.loss_aggregation == "turn-mean":
            return defaultdict(float, {turn: 1 / count for turn, count in counts.items()})
        sizes = {"row-mean-token-mean": len(turns), "row-mean-token-sum-norm": longest}
        weight = 1 / sizes.get(self.loss_aggregation, 1)
        return defaultdict(float, dict.fromkeys(counts, weight))


@dataclass(frozen=True, kw_only=True)
class Correction:
    """What is done where sampler and trainer give a token different probabilities.

    With `p` the trainer's probability before the batch's first update and `q` that which the token
    was drawn with, the ratio of a token is `p / q`.
    """

    tis_clip: float | None = setting(
        "most weight of a token in truncated importance sampling, whose weights are the ratios "
        "between sampler and trainer; by default there is none",
        None,
        above=0,
    )
    tis_floor: float | None = setting(
        "least weight of a token in importance sampling; by default there is none", None, above=0
    )
    tis_level: str = setting(
        "ratio that the weight is: of each `token`, or of a `sequence`, the product over the "
        "sampled tokens of a row (https://richardli.xyz/rl-collapse)",
        "token",
        choices=("token", "sequence"),
    )
    tis_outside: str = setting(
        "weight of a ratio outside of `tis_floor` and `tis_clip`: the bound (`clip`), or `zero`, "
        "masked importance sampling (IcePop, arXiv 2510.18855)",
        "clip",
        choices=("clip", "zero"),
    )
    reject_low: float | None = setting(
        "rejection sampling: leave tokens out whose ratio between sampler and trainer is below; by "
        "default there is no bound",
        None,
        above=0,
    )
    reject_high: float | None = setting(
        "the same for ratios above; means of the loss count the tokens all the same", None, above=0
    )
    reject_level: str = setting(
        "ratio that decides: of each `token`; or of a row, for all of its tokens, the product over "
        "its sampled tokens (`sequence`) or their geometric mean (`mean`)",
        "token",
        choices=("token", "sequence", "mean"),
    )

    @property
    def weighs(self) -> bool:
        """Whether there are weights."""
        return self.tis_clip is not None or self.tis_floor is not None

    @property
    def rejects(self) -> bool:
        """Whether tokens are left out."""
        return self.reject_low is not None or self.reject_high is not None

    @property
    def corrects(self) -> bool:
        """Whether the sampler's probabilities are used at all."""
        return self.weighs or self.rejects


def policy_loss(
    new: Tensor, old: Tensor, advantage: Tensor, how: PolicyLoss, row_mean: RowMean
) -> Tensor:
    """Return the loss of each token, to be minimised, with `r = exp(new - old)`.

    - `ppo`: `max(-A * r, -A * clamp(r, 1 - clip, 1 + clip_high))`; where A is negative at most
      `-A * dual_clip`. At `new == old` its gradient is that of REINFORCE, `-A * grad(new)`.
    - `cispo`: `-A * new * min(r, 1 + clip_high)`, without a gradient through the minimum.
    - `sapo`: `-A * 4 / t * sigmoid(t * (r - 1))`, with `t = sapo_positive` where A > 0, else
      `sapo_negative`. At `new == old` its gradient is that of REINFORCE.

    With `ratio = "sequence"`, `r` is `exp(row_mean(new - old))`, and its gradient is
    `r * grad(new)`.
    """
    ratio = probability_ratio(new, old, how, row_mean)
    most = 1 + how.highest
    if how.loss == "cispo":
        return -advantage * new * ratio.detach().clamp(max=most)
    if how.loss == "sapo":
        positive = ratio.new_tensor(how.sapo_positive)
        speed = positive.where(advantage > 0, ratio.new_tensor(how.sapo_negative))
        return -advantage * (speed * (ratio - 1)).sigmoid() * 4 / speed
    loss = (-advantage * ratio).maximum(-advantage * ratio.clamp(1 - how.clip, most))
    if how.dual_clip is None:
        return loss
    return loss.where(advantage >= 0, loss.minimum(-advantage * how.dual_clip))


def probability_ratio(new: Tensor, old: Tensor, how: PolicyLoss, row_mean: RowMean) -> Tensor:
    """Return the probability ratio of each token; see `policy_loss`."""
    difference = new - old
    if how.ratio == "sequence":
        difference = new - new.detach() + row_mean(difference).detach()
    return difference.exp()


def clipped(ratio: Any, advantage: Any, how: PolicyLoss) -> Any:
    """Return whether the loss of each token is clipped.

    The clipped surrogate is where a good action's ratio is above the range or a bad one's below,
    as in all trainers here; CISPO's weight is above the range, and SAPO clips nothing. The second
    clip (`dual_clip`) does not count. NumPy's arrays will do, too.
    """
    below, above = ratio < 1 - how.clip, ratio > 1 + how.highest
    if how.loss == "ppo":
        return (below & (advantage < 0)) | (above & (advantage > 0))
    return above if how.loss == "cispo" else above & False


def importance_weights(old: Tensor, sampler: Tensor, how: Correction, row_sum: RowSum) -> Tensor:
    """Return the factor of each token's policy loss, without a gradient.

    With `d = old - sampler` it is `exp(d)`, or `exp(row_sum(d))` with `tis_level = "sequence"`;
    outside of `tis_floor` and `tis_clip` it is the bound, or 0 with `tis_outside = "zero"`. Without
    bounds it is 1. For a token that is not `kept` it is 0: its ratio may be infinite.

    Args:
        old: Log-probability before the batch's first update.
        sampler: Log-probability which the token was drawn with.
        how: Bounds and levels.
        row_sum: Over the sampled tokens of each token's row.

    Sources: Yao et al., 2025, https://fengyao.notion.site/off-policy-rl;
    https://richardli.xyz/rl-collapse; arXiv 2510.18855.
    """
    difference = (old - sampler).detach()
    if not how.weighs:
        return difference.new_ones(difference.shape)
    ratio = (row_sum(difference) if how.tis_level == "sequence" else difference).exp()
    left_out = ~kept(old, sampler, how, row_sum)
    if how.tis_outside == "clip":
        ratio = ratio.clamp(how.tis_floor, how.tis_clip)
    else:
        left_out |= ~_within(ratio, how.tis_floor, how.tis_clip)
    # Not a product: the ratio of a long row may be infinite, and infinity times 0 is NaN.
    return ratio.masked_fill(left_out & ~ratio.isnan(), 0.0)


def bounded(old: Tensor, sampler: Tensor, how: Correction, row_sum: RowSum) -> Tensor:
    """Return whether the ratio of each token is outside of `tis_floor` and `tis_clip`."""
    difference = (old - sampler).detach()
    ratio = (row_sum(difference) if how.tis_level == "sequence" else difference).exp()
    return ~_within(ratio, how.tis_floor, how.tis_clip)


def kept(old: Tensor, sampler: Tensor, how: Correction, row_sum: RowSum) -> Tensor:
    """Return whether each token stays in the loss (rejection sampling).

    With `d = old - sampler` its ratio is `exp(d)`, `exp(row_sum(d))` with `reject_level =
    "sequence"`, or `exp` of the mean of `d` over the row with "mean". It stays if that is within
    `reject_low` and `reject_high`. See `importance_weights` for the arguments.
    """
    difference = (old - sampler).detach()
    if how.reject_level != "token":
        total = row_sum(difference)
        count = row_sum(difference.new_ones(difference.shape)).clamp(min=1)
        difference = total if how.reject_level == "sequence" else total / count
    return _within(difference.exp(), how.reject_low, how.reject_high)


def _within(ratio: Tensor, low: float | None, high: float | None) -> Tensor:
    inside = ratio.new_ones(ratio.shape).bool()
    if low is not None:
        inside &= ratio >= low
    return inside if high is None else inside & (ratio <= high)


def kl_penalty(new: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Return an estimator of the KL divergence to the reference, of each token.

    With `d = reference - new`: k1 is `-d`, k2 is `d**2 / 2`, k3 is `exp(d) - 1 - d`
    (http://joschu.net/blog/kl-approx.html).
    """
    d = reference - new
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return d.square() / 2
    d = d.clamp(-40.0, 40.0)
    return d.expm1() - d


def value_loss(new: Tensor, old: Tensor, target: Tensor, clip: float) -> Tensor:
    """Return the clipped squared error of each turn's value, as in the original PPO code."""
    within = old + (new - old).clamp(-clip, clip)
    return 0.5 * ((new - target) ** 2).maximum((within - target) ** 2)
