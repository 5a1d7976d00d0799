"""Advantages of a batch by turn are those of its table."""

from __future__ import annotations

import pytest

from gem.advantage import ADVANTAGES, advantages
from gem.errors import ConfigurationError
from gem.experiment.estimate import adjusted_rewards, turn_advantages
from gem.testing.golden import golden_batch
from gem.trajectory import turn_table

BATCH = list(golden_batch())
VALUES = [[0.25 * (k + 1) for k, _ in enumerate(t.turns)] for t in BATCH]


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("scale", [True, False])
def test_advantages_and_targets_are_split_by_episode(name: str, scale: bool) -> None:
    if not scale and name != "grpo":
        return
    table = turn_table(BATCH, VALUES)
    expected = advantages(name, table, gamma=0.9, lam=0.8, scale=scale)
    found = turn_advantages(name, BATCH, gamma=0.9, lam=0.8, scale=scale, values=VALUES)
    assert found == tuple(table.split(each) for each in expected)


def test_other_rewards_take_the_place_of_the_episodes() -> None:
    doubled = [[2 * r for r in t.rewards] for t in BATCH]
    once, _ = turn_advantages("reinforce", BATCH, gamma=0.5)
    twice, _ = turn_advantages("reinforce", BATCH, gamma=0.5, rewards=doubled)
    assert twice == [[2 * a for a in turns] for turns in once]
    assert any(a for turns in once for a in turns)


def test_what_is_added_is_added_turn_by_turn() -> None:
    added = [[float(k) for k, _ in enumerate(t.turns)] for t in BATCH]
    found = adjusted_rewards(BATCH, added)
    assert found == [[r + k for k, r in enumerate(t.rewards)] for t in BATCH]
    with pytest.raises(ValueError, match="zip"):
        adjusted_rewards(BATCH, added[:-1])


def test_gae_without_values_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="gae needs a value"):
        turn_advantages("gae", BATCH, gamma=1.0)


def test_parts_reach_the_table() -> None:
    parts = [k % 2 for k, _ in enumerate(BATCH)]
    table = turn_table(BATCH, parts=parts)
    found, _ = turn_advantages("rebn", BATCH, gamma=0.9, parts=parts)
    assert found == table.split(advantages("rebn", table, gamma=0.9)[0])
    assert found != turn_advantages("rebn", BATCH, gamma=0.9)[0]
