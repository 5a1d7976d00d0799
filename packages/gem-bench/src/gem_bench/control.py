"""The estimator `control`: a negative control for learning curves."""

from __future__ import annotations

from gem.advantage import Floats, TurnTable
from gem.estimators import Estimator, Options


def control(table: TurnTable, options: Options) -> Floats:
    """Return the advantage 1 for every turn of a valid episode, `[turns]`, whatever it earned.

    A curve that rises with it does not come from the reward.
    """
    return table.valid.astype("float64")


CONTROL = Estimator("control", control)
