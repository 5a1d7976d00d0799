"""Level L0 for Tinker: golden trajectories become datums, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker", reason="needs the tinker environment: make env-tinker")

from gem import advantage
from gem.advantage import ADVANTAGES, advantages
from gem.testing.golden import golden_batch, golden_turn_rows
from gem.trajectory import Trajectory, turn_table
from gem_tinker.advantage import Objective, batch_rows, to_datums, trained_rows

GAMMA = 0.9
ESTIMATORS = [name for name in ADVANTAGES if name != "gae"]
OBJECTIVES = [
    Objective(aggregation, server)
    for aggregation in ("token-mean", "row-mean-token-sum")
    for server in ("hosted", "skyrl_jax")
]
BATCHES = [golden_batch, golden_turn_rows]


def sent(batch: list[Trajectory], name: str, gamma: float, objective: Objective) -> list[Any]:
    """`(advantages, factor)` of every datum, read back from it."""
    rows, _ = batch_rows(batch, name, gamma)
    datums = to_datums(rows, objective)
    trained = [row for row in rows if row.datum is not None]
    assert [row.datum for row in trained] == datums
    read = [datum.loss_fn_inputs["advantages"].to_numpy() for datum in datums]
    return list(zip(read, [row.factor for row in trained], strict=True))


def expected(batch: list[Trajectory], name: str) -> list[Any]:
    """`gem.advantage` on the trajectories, one float32 array per row that has a sampled token.

    As Tinker aligns them: the first target is the second token of the prompt.
    """
    table = turn_table(batch)
    per_turn, _ = advantages(name, table, gamma=GAMMA)
    found = []
    for trajectory, values in zip(batch, table.split(per_turn), strict=True):
        for row in trajectory.sequences() if trajectory.valid else []:
            if any(row.mask):
                out = [0.0] * (len(row.prompt_ids) - 1) + row.spread(values)
                found.append(np.array(out, np.float32))
    return found


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.aggregation}-{o.server}")
def test_datums_hold_gems_advantages(
    name: str, batch: Callable[[], list[Trajectory]], objective: Objective
) -> None:
    right = expected(batch(), name)
    found = sent(batch(), name, GAMMA, objective)
    assert len(found) == len(right)
    assert any(array.any() for array in right)
    for (array, factor), wanted in zip(found, right, strict=True):
        assert array.dtype == np.float32
        assert np.array_equal(array, wanted * factor)


@pytest.mark.parametrize("batch", BATCHES)
def test_the_record_shows_what_was_sent(batch: Callable[[], list[Trajectory]]) -> None:
    episodes = batch()
    rows, _ = batch_rows(episodes, "rebn", GAMMA)
    to_datums(rows, Objective("token-mean", "skyrl_jax"))
    shown = [row for of_episode in trained_rows(rows, episodes) for row in of_episode]
    wanted = [r for t in episodes if t.valid for r in t.sequences() if any(r.mask)]
    assert len(shown) == len(wanted) > 0
    for row, right in zip(shown, wanted, strict=True):
        assert (row.prompt_ids, row.response_ids) == (right.prompt_ids, right.response_ids)
        assert row.mask == right.mask
        assert len(row.advantages) == len(right.mask)


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], float]] = {
    "gamma": lambda patch: 1.0,
    "unbiased standard deviation": lambda patch: _ddof(patch),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_the_comparison_notices(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = expected(golden_batch(), "rebn")
    gamma = BREAKS[broken](monkeypatch)
    found = sent(golden_batch(), "rebn", gamma, Objective("token-mean", "hosted"))
    same = [np.array_equal(a, w * f) for (a, f), w in zip(found, right, strict=True)]
    assert not all(same)


def _ddof(patch: pytest.MonkeyPatch) -> float:
    def unbiased(x: Any, valid: Any, all_reduce: Any) -> Any:
        result = np.zeros_like(x)
        result[valid] = (x[valid] - x[valid].mean()) / x[valid].std(ddof=1)
        return result

    patch.setattr(advantage, "_normalise", unbiased)
    return GAMMA
