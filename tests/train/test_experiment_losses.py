"""Losses of the policy: their formulas, and the weights of tokens."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem_train.experiment.losses import (
    AGGREGATIONS,
    Correction,
    PolicyLoss,
    bounded,
    clipped,
    importance_weights,
    kept,
    kl_penalty,
    policy_loss,
    probability_ratio,
)

torch = pytest.importorskip("torch")

RATIOS = [0.25, 0.75, 1.0, 1.25, 1.75, 4.0]


def each(values: Any) -> Any:
    """The mean over a row of one token."""
    return values


def of(ratio: float, advantage: float, **settings: Any) -> tuple[float, float]:
    """Loss of a token and its gradient."""
    old = torch.tensor([-3.0], dtype=torch.float64)
    new = (old + torch.tensor([ratio], dtype=torch.float64).log()).requires_grad_()
    how = PolicyLoss(clip=0.5, **settings)
    loss = policy_loss(new, old, torch.tensor([advantage], dtype=torch.float64), how, each)
    loss.sum().backward()
    loss = loss.detach()
    return loss.item(), new.grad.item()


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("advantage", [-2.0, 0.0, 3.0])
@pytest.mark.parametrize("high", [None, 0.3, 1.0])
def test_the_surrogate_is_the_pessimistic_one(
    ratio: float, advantage: float, high: float | None
) -> None:
    most = 1.5 if high is None else 1 + high
    within = min(max(ratio, 0.5), most)
    wanted = max(-advantage * ratio, -advantage * within)
    loss, gradient = of(ratio, advantage, clip_high=high)
    assert loss == pytest.approx(wanted)
    free = wanted == -advantage * ratio
    assert gradient == pytest.approx(-advantage * ratio if free else 0.0)


@pytest.mark.parametrize("ratio", RATIOS)
def test_the_second_clip_bounds_the_weight_of_negative_advantages_alone(ratio: float) -> None:
    assert of(ratio, 2.0, dual_clip=3.0) == of(ratio, 2.0)
    loss, gradient = of(ratio, -2.0, dual_clip=3.0)
    if ratio > 3:
        assert (loss, gradient) == (6.0, 0.0)
    else:
        assert (loss, gradient) == of(ratio, -2.0)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("advantage", [-2.0, 3.0])
def test_cispo_is_reinforce_with_a_bounded_weight(ratio: float, advantage: float) -> None:
    _, gradient = of(ratio, advantage, loss="cispo", clip_high=0.3)
    assert gradient == pytest.approx(-advantage * min(ratio, 1.3))


def test_the_ratio_of_a_sequence_is_its_geometric_mean_and_turns_keep_their_advantages() -> None:
    ratios, advantages = [0.5, 2.0, 1.6], [1.0, -1.0, 0.5]
    new = torch.tensor(ratios, dtype=torch.float64).log().requires_grad_()
    old, how = torch.zeros(3, dtype=torch.float64), PolicyLoss(clip=0.5, ratio="sequence")

    def whole(values: Any) -> Any:
        return values.mean().expand_as(values)

    shared = (0.5 * 2.0 * 1.6) ** (1 / 3)
    found = probability_ratio(new, old, how, whole)
    assert found.tolist() == pytest.approx([shared] * 3)
    a = torch.tensor(advantages, dtype=torch.float64)
    policy_loss(new, old, a, how, whole).sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-shared * each for each in advantages])


@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_a_loss_is_clipped_where_its_value_is_that_of_the_bound(
    advantage: float, loss: str
) -> None:
    """As in trainers: where the surrogate within the range is below the one without."""
    how = PolicyLoss(clip=0.5, clip_high=0.2, loss=loss)
    ratio = torch.tensor(RATIOS)
    found = clipped(ratio, torch.full(ratio.shape, advantage), how)
    within = ratio.clamp(1 - how.clip if loss == "ppo" else 0.0, 1 + how.highest)
    expected = within * advantage < ratio * advantage if loss == "ppo" else within < ratio
    assert torch.equal(found, expected)
    as_arrays = clipped(ratio.numpy(), np.full(len(RATIOS), advantage), how)
    assert as_arrays.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"), [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", None, None)]
)
def test_estimators_of_the_penalty(
    estimator: str, value: float | None, gradient: float | None
) -> None:
    new = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    found = kl_penalty(new, torch.tensor([-1.5], dtype=torch.float64), estimator)
    found.sum().backward()
    e = float(torch.exp(torch.tensor(-0.5, dtype=torch.float64)))
    assert found.detach().item() == pytest.approx(e - 1 + 0.5 if value is None else value)
    assert float(new.grad) == pytest.approx(1 - e if gradient is None else gradient)


turns = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=8).map(sorted), min_size=1, max_size=5
)


@given(rows=turns, aggregation=st.sampled_from(AGGREGATIONS))
def test_weights_of_a_constant_loss_add_up_to_it_where_the_aggregation_is_a_mean(
    rows: list[list[int]], aggregation: str
) -> None:
    how = PolicyLoss(loss_aggregation=aggregation)
    units = sum(how.units(row) for row in rows)
    total = sum(how.weights(row, 10)[turn] for row in rows for turn in row) / units
    tokens = sum(map(len, rows))
    wanted = {
        "row-mean-token-sum": tokens / len(rows),
        "row-mean-token-sum-norm": tokens / len(rows) / 10,
    }
    assert total == pytest.approx(wanted.get(aggregation, 1.0))


def test_weights_of_one_batch_in_every_aggregation() -> None:
    row, other = [0, 0, 0, 1], [0]
    expected = {
        "token-mean": (4, {0: 1.0, 1: 1.0}),
        "row-mean-token-sum": (1, {0: 1.0, 1: 1.0}),
        "row-mean-token-mean": (1, {0: 0.25, 1: 0.25}),
        "row-mean-token-sum-norm": (1, {0: 0.1, 1: 0.1}),
        "turn-mean": (2, {0: 1 / 3, 1: 1.0}),
    }
    assert expected.keys() == set(AGGREGATIONS)
    for name, (units, weights) in expected.items():
        how = PolicyLoss(loss_aggregation=name)
        assert (how.units(row), dict(how.weights(row, 10))) == (units, weights)
        assert how.units(other) == 1
        assert how.weights(row, 10)[7] == 0


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("advantage", [-2.0, 0.0, 3.0])
def test_sapo_fades_ratios_out_instead_of_clipping_them(ratio: float, advantage: float) -> None:
    loss, gradient = of(ratio, advantage, loss="sapo", sapo_positive=2.0, sapo_negative=5.0)
    speed = 2.0 if advantage > 0 else 5.0
    gate = 1 / (1 + math.exp(-speed * (ratio - 1)))
    assert loss == pytest.approx(-advantage * gate * 4 / speed)
    # arXiv 2511.20347, equation 6: a weight of 4 p (1 - p) in the place of the clip's 0 or 1.
    assert gradient == pytest.approx(-advantage * ratio * 4 * gate * (1 - gate))
    if ratio == 1:
        assert gradient == pytest.approx(-advantage)


def test_sapo_clips_nothing() -> None:
    ratio = torch.tensor(RATIOS)
    assert not clipped(ratio, torch.ones(len(RATIOS)), PolicyLoss(loss="sapo", clip=0.1)).any()


ROWS = [[-1.0, -0.2, -2.0], [-3.0], [-0.5, -0.6, -0.1, -0.4]]
"""Log-probabilities of three rows before the first update."""
DRAWN = [[-0.4, -0.9, -2.1], [-1.0], [-0.5, -0.2, -0.9, -0.4]]
"""Those that the tokens were drawn with."""
CORRECTIONS: list[dict[str, Any]] = [
    {"tis_clip": 1.05},
    {"tis_clip": 1.05, "tis_floor": 0.7},
    {"tis_floor": 0.7},
    {"tis_clip": 1.5, "tis_floor": 0.7, "tis_outside": "zero"},
    {"tis_clip": 1.05, "tis_level": "sequence"},
    {"tis_clip": 1.5, "tis_floor": 0.2, "tis_level": "sequence", "tis_outside": "zero"},
    {"reject_low": 0.7, "reject_high": 1.5},
    {"reject_low": 0.7, "reject_high": 1.5, "reject_level": "sequence"},
    {"reject_low": 0.95, "reject_level": "mean"},
    {"reject_high": 1.02, "reject_level": "mean", "tis_clip": 1.05},
]


def corrected(how: Correction, row: list[float], drawn: list[float]) -> list[tuple[float, bool]]:
    """Weight of each token of a row and whether it stays, by the definitions of the settings."""
    ratios = [math.exp(p - q) for p, q in zip(row, drawn, strict=True)]
    product = math.prod(ratios)
    found = []
    for ratio in ratios:
        weight = ratio if how.tis_level == "token" else product
        low, high = how.tis_floor or 0.0, how.tis_clip or math.inf
        outside = not low <= weight <= high
        if not how.weighs:
            weight = 1.0
        elif outside:
            weight = 0.0 if how.tis_outside == "zero" else min(max(weight, low), high)
        mean = product ** (1 / len(ratios))
        decides = {"token": ratio, "sequence": product, "mean": mean}[how.reject_level]
        stays = (how.reject_low or 0) <= decides <= (how.reject_high or math.inf)
        found.append((weight if stays or not how.weighs else 0.0, stays))
    return found


@pytest.mark.parametrize("settings", CORRECTIONS, ids=str)
def test_a_correction_weighs_or_rejects_by_the_ratio_of_trainer_to_sampler(
    settings: dict[str, Any],
) -> None:
    how, lengths = Correction(**settings), [len(row) for row in ROWS]
    row = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    old, drawn = (torch.tensor([*chain(*rows)], dtype=torch.float64) for rows in (ROWS, DRAWN))

    def row_sum(values: Any) -> Any:
        return torch.zeros(3, dtype=values.dtype).index_add(0, row, values)[row]

    old.requires_grad_()
    weights, stays = importance_weights(old, drawn, how, row_sum), kept(old, drawn, how, row_sum)
    expected = [pair for each in zip(ROWS, DRAWN, strict=True) for pair in corrected(how, *each)]
    assert weights.tolist() == pytest.approx([weight for weight, _ in expected])
    assert stays.tolist() == [stay for _, stay in expected]
    assert not weights.requires_grad
    # Some tokens are affected, others are not.
    if how.rejects:
        assert 0 < sum(stay for _, stay in expected) < len(expected)
    if how.weighs:
        beyond = bounded(old, drawn, how, row_sum)
        assert 0 < int(beyond.sum()) < len(expected)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    "bounds",
    [{"tis_clip": 2.0, "tis_outside": "zero"}, {"tis_floor": 0.1, "reject_high": 2.0}],
    ids=str,
)
def test_a_ratio_beyond_what_a_float_holds_has_no_weight_either(
    bounds: dict[str, Any], level: str
) -> None:
    old, drawn = torch.tensor([0.0, 0.0]), torch.tensor([-200.0, 0.0])
    how = Correction(**bounds, tis_level=level, reject_level=level)
    weights = importance_weights(old, drawn, how, lambda d: d.sum().expand(2))
    assert weights.tolist() == [0.0, 1.0 if level == "token" else 0.0]
    unknown = importance_weights(torch.tensor([math.nan, 0.0]), drawn, how, lambda d: d)
    assert unknown[0].isnan()


def test_without_a_correction_nothing_changes() -> None:
    old, drawn = torch.tensor([-1.0, -9.0]), torch.tensor([-5.0, -0.1])
    none = Correction()
    assert not none.corrects
    assert importance_weights(old, drawn, none, torch.sum).tolist() == [1, 1]
    assert kept(old, drawn, none, torch.sum).all()
