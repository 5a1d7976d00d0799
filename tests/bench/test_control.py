"""The negative control: an estimator that is blind to the reward."""

from __future__ import annotations

import numpy as np

from gem.estimators import estimator
from gem.trajectory import turn_table
from gem_train.testing.golden import golden_batch


def test_its_advantages_are_one_whatever_was_earned_and_zero_for_failed_episodes() -> None:
    control = estimator("control")
    table = turn_table(golden_batch())
    assert not table.valid.all() and len(set(table.reward)) > 1
    assert np.array_equal(control(table).advantages, table.valid.astype(float))
