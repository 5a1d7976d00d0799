"""RLOO with an advantage for each turn; docs/tutorials/own-estimator.md goes through it."""

from __future__ import annotations

import numpy as np

from gem.advantage import Floats, TurnTable, returns
from gem.estimators import Estimator, Options


def rloo_by_turn(table: TurnTable, options: Options) -> Floats:
    """Return `A_t = G_t` minus the mean `G_0` of the task's other episodes, `[turns]`.

    `G_t` is the discounted return from turn t on. An episode without others has advantage 0.
    """
    g = returns(table, options.gamma)
    advantage = np.zeros(len(table))
    first = np.flatnonzero((table.turn == 0) & table.valid)
    task = np.stack([table.part[first], table.group[first]], axis=1)
    for start, mine in zip(first, task, strict=True):
        others = first[(task == mine).all(axis=1) & (first != start)]
        if len(others):
            turns = slice(start, start + table.lengths[table.episode[start]])
            advantage[turns] = g[turns] - g[others].mean()
    return advantage


RLOO_BY_TURN = Estimator("rloo_by_turn", rloo_by_turn, compares="group")
