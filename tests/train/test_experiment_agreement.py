"""How far a trainer's log-probabilities are from its sampler's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gem_train.experiment.agreement import NAMES, Agreement

SAMPLER = [-1.0, -2.0, -0.5, -3.0]
GAPS = [0.0, 0.25, -1.0, 5.0]
SAMPLED = [1, 1, 1, 0]


def of(first: int = 0, last: int = 4) -> Agreement:
    place = slice(first, last)
    trainer = [p + gap for p, gap in zip(SAMPLER, GAPS, strict=True)]
    return Agreement.of(trainer[place], SAMPLER[place], SAMPLED[place])


def test_metrics_are_those_of_sampled_tokens() -> None:
    assert of().metrics() == {
        "logprob_difference_max": 1.0,
        "logprob_difference_mean": pytest.approx(1.25 / 3),
        # r - 1 - log r, with r = p(trainer) / p(sampler).
        "sampler_kl": pytest.approx(sum(math.exp(g) - 1 - g for g in GAPS[:3]) / 3),
        "mismatched_tokens": 1.0,
    }
    assert tuple(of().metrics()) == NAMES


def test_the_estimator_is_of_the_divergence_of_the_sampler_from_the_trainer() -> None:
    sampler, trainer = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    # Every token as often as the sampler draws it.
    drawn = np.repeat(np.arange(3), (sampler * 10).round().astype(int))
    found = Agreement.of(np.log(trainer)[drawn], np.log(sampler)[drawn]).metrics()["sampler_kl"]
    assert found == pytest.approx(float((sampler * np.log(sampler / trainer)).sum()))


@pytest.mark.parametrize("cut", range(5))
def test_parts_add_up_to_the_whole(cut: int) -> None:
    assert sum([of(0, cut), of(cut, 4)], Agreement()).metrics() == pytest.approx(of().metrics())


def test_without_a_token_nothing_is_said() -> None:
    assert Agreement.of([-1.0], [-2.0], [0]).metrics() == {}
    assert Agreement().metrics() == {}


def test_a_token_is_mismatched_from_twice_the_probability_on() -> None:
    trainer = np.log([0.5, 0.49, 0.25, 0.26, math.nan])
    sampler = np.log([0.25, 0.25, 0.5, 0.5, 0.5])
    assert Agreement.of(trainer, sampler).mismatched == 3


def test_what_is_no_number_is_not_lost() -> None:
    assert math.isnan((of() + Agreement.of([math.nan], [-1.0])).largest)
    assert math.isnan((Agreement.of([math.nan], [-1.0]) + of()).largest)
