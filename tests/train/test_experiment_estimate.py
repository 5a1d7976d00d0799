"""Advantages of a batch by turn are those of its table."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gem.errors import ConfigurationError
from gem.estimators import BUILT_IN, Options, estimator
from gem.trajectory import Trajectory, turn_table
from gem_train.experiment.estimate import Shaping, turn_advantages
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
    shaping = Shaping(group_std=scale)
    found = turn_advantages(name, BATCH, shaping, gamma=0.9, lam=0.8, values=VALUES)
    assert found == (table.split(expected.advantages), table.split(expected.targets))


def test_scaled_rewards_scale_returns() -> None:
    once, _ = turn_advantages("reinforce", BATCH, gamma=0.5)
    twice, _ = turn_advantages("reinforce", BATCH, Shaping(reward_scale=2.0), gamma=0.5)
    assert twice == [[2 * a for a in turns] for turns in once]
    assert any(a for turns in once for a in turns)


def with_rewards(*rewards: float) -> list[Trajectory]:
    """One episode of the golden batch with other rewards."""
    [first, *_] = [t for t in BATCH if len(t.turns) >= len(rewards)]
    turns = [replace(t, reward=r) for t, r in zip(first.turns, rewards, strict=False)]
    return [replace(first, turns=turns)]


def test_a_reward_is_scaled_then_clipped_then_added_to() -> None:
    batch = with_rewards(0.25, -4.0)
    shaping = Shaping(reward_scale=2.0, reward_clip=1.0)
    found, _ = turn_advantages("reinforce", batch, shaping, gamma=0.0, added=[[10.0, 20.0]])
    assert found == [[10.5, 19.0]]
    with pytest.raises(ValueError, match="zip"):
        turn_advantages("reinforce", batch, gamma=0.0, added=[])


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_clipping_does_not_hide_a_reward_that_is_not_finite(reward: float) -> None:
    with pytest.raises(ConfigurationError, match=r"reward of episode 0, turn 1 is -?(inf|nan)"):
        turn_advantages("reinforce", with_rewards(0.5, reward), Shaping(reward_clip=1.0), gamma=1.0)


def test_whitened_advantages_have_mean_0_and_deviation_1_over_valid_turns() -> None:
    plain, _ = turn_advantages("gae", BATCH, gamma=0.9, lam=0.8, values=VALUES)
    found, targets = turn_advantages(
        "gae", BATCH, Shaping(whiten=True), gamma=0.9, lam=0.8, values=VALUES
    )
    valid = np.array([a for t, of in zip(BATCH, plain, strict=True) if t.valid for a in of])
    white = np.array([a for t, of in zip(BATCH, found, strict=True) if t.valid for a in of])
    np.testing.assert_allclose(white, (valid - valid.mean()) / valid.std(), rtol=1e-12)
    assert all(a == 0 for t, of in zip(BATCH, found, strict=True) if not t.valid for a in of)
    # What the critic is trained towards stays as it is.
    assert targets == turn_advantages("gae", BATCH, gamma=0.9, lam=0.8, values=VALUES)[1]


@pytest.mark.parametrize("name", ["reinforce", "rebn", "grpo", "rloo"])
def test_whitening_is_within_the_parts_that_normalise_says(name: str) -> None:
    batch = [replace(t, agent="first") for t in BATCH]
    for t in BATCH:
        larger = [replace(turn, reward=3 * turn.reward) for turn in t.turns]
        batch.append(replace(t, agent="second", turns=larger))

    def white(normalise: str) -> dict[str, list[float]]:
        shaping = Shaping(whiten=True, normalise=normalise, group_std=False)
        found, _ = turn_advantages(name, batch, shaping, gamma=0.9)
        return {
            agent: [
                a
                for t, of in zip(batch, found, strict=True)
                if t.agent == agent and t.valid
                for a in of
            ]
            for agent in ("first", "second")
        }

    by_role, together = white("role"), white("batch")
    assert all(abs(np.mean(of_agent)) < 1e-12 for of_agent in by_role.values())
    assert abs(np.mean([a for of_agent in together.values() for a in of_agent])) < 1e-12
    assert not np.allclose(by_role["first"], together["first"])


def test_advantages_are_clipped_last() -> None:
    white, _ = turn_advantages("reinforce", BATCH, Shaping(whiten=True), gamma=0.9)
    shaping = Shaping(whiten=True, advantage_clip=0.75)
    found, _ = turn_advantages("reinforce", BATCH, shaping, gamma=0.9)
    assert found == [[max(-0.75, min(0.75, a)) for a in of] for of in white]
    assert found != white


def test_what_is_changed_is_named() -> None:
    assert Shaping().changed == []
    assert Shaping(whiten=True, reward_clip=1.0).changed == ["reward_clip", "whiten"]


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
        turn_advantages("rebn", in_a_game(), Shaping(normalise=normalise), gamma=0.9)[0]
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
