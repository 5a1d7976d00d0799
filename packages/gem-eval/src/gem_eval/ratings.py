"""`rate`: strengths of players on Elo's scale, from matches of pairs (Bradley and Terry 1952)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gem.errors import ConfigurationError

Floats = NDArray[np.float64]

SCALE = 400 / math.log(10)
"""Points of Elo's scale for each unit of log-strength: 400 points are odds of ten to one."""
PRIOR = 1.0
"""Virtual draws of each pair that met; keeps the rating of who won everything finite."""
RESAMPLES = 1000
_STEPS, _LONGEST, _CLOSE = 1_000, 1.0, 1e-10


@dataclass(frozen=True)
class Score:
    """The result of one match."""

    task: int
    """Number of the task; the matches of one task are not independent."""
    first: str
    second: str
    points: float
    """Of the first player: 1 for a win, 0.5 for a draw, 0 for a loss."""


@dataclass(frozen=True)
class Rating:
    """How strong a player is."""

    player: str
    elo: float
    """Points on Elo's scale; the mean of the pool is 0."""
    low: float | None
    """95 % interval, with `high`; None with a single task."""
    high: float | None
    matches: int
    bound: str = ""
    """`at least` if it lost no point, `at most` if it won none, `prior` of all others if a group of
    players lost no point to the others: then the prior decides how far they are apart."""


def rate(scores: Sequence[Score], *, prior: float = PRIOR, seed: int = 0) -> list[Rating]:
    """Rate all players of a pool, the strongest first.

    Maximum of the likelihood of Bradley and Terry 1952 (Biometrika 39, 324-345), in which i beats j
    with the probability `1 / (1 + exp(s_j - s_i))`; a draw counts as half a win of each, as in
    Elo's system. Without virtual draws the maximum does not exist if a group of players lost no
    point to the others (Ford 1957; Hunter 2004, Annals of Statistics 32, 384-406). Intervals are
    percentiles of a bootstrap over tasks: all matches of a task are drawn together.

    Args:
        scores: The matches.
        prior: Virtual draws, above 0, of each pair that met.
        seed: Of the bootstrap.

    Raises:
        ConfigurationError: There is no match, or two groups of players have none between them.
    """
    if not 0 < prior < math.inf:
        raise ConfigurationError(f"prior must be above 0 and finite, got {prior!r}")
    names = sorted({name for each in scores for name in (each.first, each.second)})
    tasks = sorted({each.task for each in scores})
    place, row = ({key: n for n, key in enumerate(keys)} for keys in (names, tasks))
    won: Floats = np.zeros((len(tasks), len(names), len(names)))
    for each in scores:
        one, other = place[each.first], place[each.second]
        if one == other or not 0 <= each.points <= 1:
            raise ConfigurationError(f"no match of two players with points in [0, 1]: {each}")
        won[row[each.task], one, other] += each.points
        won[row[each.task], other, one] += 1 - each.points
    total = won.sum(0)
    met = (total + total.T) > 0
    _require_connected(names, met)
    virtual = prior / 2 * met
    elo = SCALE * _strengths((total + virtual)[None])[0]
    low: Floats | None = None
    high: Floats | None = None
    if len(tasks) > 1:
        rng = np.random.Generator(np.random.PCG64(seed))
        drawn = rng.multinomial(len(tasks), [1 / len(tasks)] * len(tasks), RESAMPLES)
        sums = np.tensordot(drawn.astype(np.float64), won, 1)
        low, high = np.quantile(SCALE * _strengths(sums + virtual), [0.025, 0.975], 0)
    played, points = (total + total.T).sum(1), total.sum(1)
    otherwise = "" if _strongly_connected(total > 0) else "prior"
    ratings = [
        Rating(
            name,
            float(elo[n]),
            None if low is None else float(low[n]),
            None if high is None else float(high[n]),
            round(float(played[n])),
            "at least" if points[n] == played[n] else otherwise if points[n] else "at most",
        )
        for n, name in enumerate(names)
    ]
    return sorted(ratings, key=lambda each: (-each.elo, each.player))


def _strengths(won: Floats) -> Floats:
    """Return the log-strengths, with mean 0, of tables of points `[tables, players, players]`.

    Newton's method with bounded steps; the log-likelihood is concave.
    """
    count = won.shape[1]
    played, points = won + won.swapaxes(1, 2), won.sum(2)
    strength: Floats = np.zeros(won.shape[:2])
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(strength[:, None, :] - strength[:, :, None]))
        gradient = points - (played * chance).sum(2)
        weight = played * chance * (1 - chance)
        # The ones fix the mean, which the likelihood leaves open.
        curvature = np.eye(count) * weight.sum(2)[:, None, :] - weight + 1 / count
        step = np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
        size = np.abs(step).max(1, keepdims=True)
        strength += step * np.minimum(1, _LONGEST / np.maximum(size, _LONGEST))
        if size.max() < _CLOSE:
            break
    centred: Floats = strength - strength.mean(1, keepdims=True)
    return centred


def _strongly_connected(took: NDArray[np.bool_]) -> bool:
    """Whether each player took a point from each other, or from one who did, and so on."""
    reached = took | np.eye(len(took), dtype=bool)
    for _ in took:
        reached = reached @ reached
    return bool(reached.all())


def _require_connected(names: Sequence[str], met: NDArray[np.bool_]) -> None:
    if not names:
        raise ConfigurationError("ratings need at least one match")
    reached = {0}
    while more := {int(n) for each in reached for n in np.flatnonzero(met[each])} - reached:
        reached |= more
    if len(reached) < len(names):
        apart = (_listed(names, reached), _listed(names, set(range(len(names))) - reached))
        raise ConfigurationError(
            f"ratings of one pool need matches that connect it; none is between {apart[0]} "
            f"and {apart[1]}"
        )


def _listed(names: Sequence[str], which: Iterable[int]) -> str:
    return ", ".join(names[n] for n in sorted(which))
