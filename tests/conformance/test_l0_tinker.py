"""Level L0 for Tinker: golden trajectories become datums, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from golden_rows import DEFECTS, GAMMA, expected

pytest.importorskip("tinker", reason="needs the tinker environment: make env-tinker")

from gem.advantage import ADVANTAGES
from gem.testing.golden import golden_batch, golden_turn_rows
from gem.trajectory import Trajectory
from gem_tinker.advantage import Objective, batch_rows, to_datums, trained_rows

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


def right(batch: list[Trajectory], name: str) -> list[Any]:
    """One float32 array for each row that has a sampled token."""
    rows = [row for t in batch for row in t.training_rows()]
    wanted = zip(rows, expected(name, batch), strict=True)
    return [np.array(out, np.float32) for row, out in wanted if any(row.mask)]


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.aggregation}-{o.server}")
def test_datums_hold_gems_advantages(
    name: str, batch: Callable[[], list[Trajectory]], objective: Objective
) -> None:
    found, wanted = sent(batch(), name, GAMMA, objective), right(batch(), name)
    assert any(array.any() for array in wanted)
    assert all(array.dtype == np.float32 for array, _ in found)
    assert same(found, wanted)


@pytest.mark.parametrize("batch", BATCHES)
def test_the_record_shows_what_was_sent(batch: Callable[[], list[Trajectory]]) -> None:
    episodes = batch()
    rows, _ = batch_rows(episodes, "rebn", GAMMA)
    to_datums(rows, Objective("token-mean", "skyrl_jax"))
    shown = [row for of_episode in trained_rows(rows, episodes) for row in of_episode]
    wanted = [r for t in episodes for r in t.training_rows() if any(r.mask)]
    assert len(shown) == len(wanted) > 0
    for row, right in zip(shown, wanted, strict=True):
        assert (row.prompt_ids, row.response_ids) == (right.prompt_ids, right.response_ids)
        assert row.mask == right.mask
        assert len(row.advantages) == len(right.mask)


def same(found: list[Any], wanted: list[Any]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(np.array_equal(array, row * factor) for (array, factor), row in pairs)


@pytest.mark.parametrize("broken", DEFECTS)
def test_a_defect_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = right(golden_batch(), "rebn")
    DEFECTS[broken](monkeypatch)
    assert not same(sent(golden_batch(), "rebn", GAMMA, OBJECTIVES[0]), wanted)


def test_another_discount_is_noticed() -> None:
    found = sent(golden_batch(), "rebn", 1.0, OBJECTIVES[0])
    assert not same(found, right(golden_batch(), "rebn"))
