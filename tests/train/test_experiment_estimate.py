"""Advantages of a batch by turn are those of its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gem.errors import ConfigurationError
from gem.estimators import BUILT_IN, Options, estimator
from gem.trajectory import Trajectory, turn_table
from gem_train.experiment.estimate import adjusted_rewards, turn_advantages
from gem_train.testing.golden import golden_batch

BATCH = list(golden_batch())
VALUES = [[0.25 * (k + 1) for k, _ in enumerate(t.turns)] for t in BATCH]


@pytest.mark.parametrize("name", [name for name, each in BUILT_IN.items() if not each.keeps_state])
@pytest.mark.parametrize("scale", [True, False])
def test_advantages_and_targets_are_split_by_episode(name: str, scale: bool) -> None:
    if not scale and name != "grpo":
        return
    table = turn_table(BATCH, VALUES)
    expected = estimator(name)(table, Options(0.9, 0.8, scale))
    found = turn_advantages(name, BATCH, gamma=0.9, lam=0.8, scale=scale, values=VALUES)
    assert found == (table.split(expected.advantages), table.split(expected.targets))


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


def in_a_game() -> list[Trajectory]:
    """The golden batch, played by two agents in turn."""
    return [replace(t, agent=("first", "second")[k % 2]) for k, t in enumerate(BATCH)]


@pytest.mark.parametrize("name", BUILT_IN)
def test_only_statistics_of_the_batch_mix_roles(name: str) -> None:
    played = in_a_game()
    values = VALUES if BUILT_IN[name].needs_critic else None
    together, _ = turn_advantages(name, played, gamma=0.9, values=values)
    for agent in ("first", "second"):
        which = [k for k, t in enumerate(played) if t.agent == agent]
        alone, _ = turn_advantages(
            name,
            [played[k] for k in which],
            gamma=0.9,
            values=values and [values[k] for k in which],
        )
        assert (alone == [together[k] for k in which]) == (name != "rebn")


def test_normalise_decides_what_rebn_compares() -> None:
    together, apart = (
        turn_advantages("rebn", in_a_game(), gamma=0.9, normalise=normalise)[0]
        for normalise in ("batch", "role")
    )
    assert together != apart


def test_a_state_goes_from_batch_to_batch_by_role() -> None:
    state: dict[str, float] = {}
    first, _ = turn_advantages("rae", in_a_game(), gamma=0.9, state=state)
    assert {key.split()[-1] for key in state} == {"first", "second"}
    second, _ = turn_advantages("rae", in_a_game(), gamma=0.9, state=state)
    assert first != second
    # A batch in which one role is missing keeps its baseline.
    before = dict(state)
    turn_advantages("rae", in_a_game()[::2], gamma=0.9, state=state)
    assert [key for key in state if state[key] == before[key]] == [
        key for key in state if key.endswith("second")
    ]
