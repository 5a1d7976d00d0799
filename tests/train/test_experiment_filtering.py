"""Dynamic sampling and overlong filtering: what is trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem.errors import ConfigurationError, RolloutError
from gem_train.experiment.estimate import Shaping, turn_advantages
from gem_train.experiment.filtering import Filtering, filtered
from gem_train.experiment.runspec import RunSpec


@dataclass
class Episode:
    """An episode of a batch."""

    group: int
    rewards: Sequence[float]
    valid: bool = True
    environment: str = ""
    agent: str | None = None


def batch(*groups: Sequence[float | None]) -> list[Episode]:
    """Return episodes of one turn by group; None is a failed one, whose reward was 0."""
    return [
        Episode(group, [reward or 0.0], reward is not None)
        for group, rewards in enumerate(groups)
        for reward in rewards
    ]


PLAIN = Shaping()


def chosen(episodes: Sequence[Episode], most: int = 9, shaping: Shaping = PLAIN) -> list[int]:
    """Return the groups that are trained on."""
    found = filtered(episodes, most, shaping)
    groups = {e.group for e, counts in zip(episodes, found.trained, strict=True) if counts}
    for episode, counts in zip(episodes, found.trained, strict=True):
        assert counts == (episode.group in groups)
    assert found.groups == len(groups)
    return sorted(groups)


def test_a_group_is_trained_on_if_its_returns_differ() -> None:
    assert chosen(batch([0, 0], [0, 1], [1, 1], [1, 0.5])) == [1, 3]


def test_a_failed_episode_is_no_return_of_0() -> None:
    """Failed ones do not make a group of equals look different, nor one of two alike."""
    assert chosen(batch([1, None, 1], [0, None], [1, None, 0], [None, None])) == [2]
    found = filtered(batch([1, None, 1], [0, None], [1, None, 0], [None, None]), 9, Shaping())
    assert found.metrics == {
        "played_groups": 4,
        "equal_groups": 1,
        "void_groups": 2,
        "trained_groups": 1,
    }


def test_the_first_groups_are_taken_and_the_excess_is_counted() -> None:
    found = filtered(batch([0, 1], [1, 1], [0, 1], [1, 0]), 2, Shaping())
    assert found.trained == [True, True, False, False, True, True, False, False]
    assert found.metrics["played_groups"] == 4
    assert found.metrics["trained_groups"] == 2


def test_returns_are_those_of_shaped_rewards() -> None:
    episodes = batch([1, 2], [0.5, 2])
    assert chosen(episodes) == [0, 1]
    assert chosen(episodes, shaping=Shaping(reward_clip=1.0)) == [1]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.randoms())
def test_the_order_of_rewards_makes_no_difference(rewards: list[float], drawn: object) -> None:
    shuffled = list(rewards)
    drawn.shuffle(shuffled)  # type: ignore[attr-defined]
    assert chosen([Episode(0, rewards), Episode(0, shuffled)]) == []


@pytest.mark.parametrize("reward", [math.nan, math.inf])
@pytest.mark.parametrize("first", [True, False])
def test_a_reward_that_is_no_number_is_not_left_out_without_a_word(
    reward: float, first: bool
) -> None:
    episodes = batch([reward, reward] if first else [1, reward, 1], [0, 1])
    found = filtered(episodes, 9, Shaping())
    with pytest.raises(ConfigurationError, match=f"reward of episode {0 if first else 1}"):
        turn_advantages("grpo", episodes, gamma=1.0, trained=found.trained)


def test_what_is_left_out_is_in_no_statistic() -> None:
    episodes = batch([0, 1], [1, 1], [5, 9])
    found = filtered(episodes, 2, Shaping())
    several, _ = turn_advantages("rebn", episodes, gamma=1.0, trained=found.trained)
    alone, _ = turn_advantages("rebn", batch([0, 1], [5, 9]), gamma=1.0)
    assert several == [*alone[:2], [0.0], [0.0], *alone[2:]]


def test_a_batch_without_such_a_group_is_an_error() -> None:
    filtered(batch([0, 1]), 1, Shaping()).check()
    with pytest.raises(RolloutError, match=r"extra_batches: none of 2 groups .* in 1 .*, 1 have"):
        filtered(batch([1, 1], [0, None]), 2, Shaping()).check()


def played(*ends: tuple[str, int]) -> list[Any]:
    """Episodes with their end and number of turns that a token limit cut."""
    return [
        SimpleNamespace(valid=end != "failed", end=end, length_stops=stops) for end, stops in ends
    ]


def test_overlong_episodes_are_left_out_of_the_loss_only() -> None:
    ends = ("terminated", 0), ("terminated", 1), ("token_budget", 0), ("truncated", 0)
    episodes = played(*ends, ("turn_budget", 0))
    assert Filtering().in_loss(episodes) == [True] * 5
    masked = Filtering(mask_overlong=True)
    assert masked.in_loss(episodes) == [True, False, False, True, True]
    counted = [False, True, True, True, False]
    assert masked.in_loss(episodes, counted) == [False, False, False, True, False]


def test_a_batch_of_overlong_episodes_is_an_error() -> None:
    masked = Filtering(mask_overlong=True)
    with pytest.raises(RolloutError, match=r"mask_overlong: a token limit cut each of 2 episodes"):
        masked.in_loss(played(("terminated", 1), ("token_budget", 0)))
        masked.in_loss(played(("terminated", 1), ("token_budget", 0), ("failed", 0)))
    # Without a valid episode there is nothing to train on, either; that is told elsewhere.
    assert masked.in_loss(played(("failed", 0))) == [False]


MATCH = {
    "name": "test",
    "env": {"id": "multi:KuhnPoker-v0", "params": {"seat": "all"}},
    "policy": {"model": "m", "prompt_tokens": 64, "response_tokens": 64, "turn_tokens": 8},
    "algorithm": {"advantage": "rebn"},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 4, "tasks": 8, "group_size": 2},
}


def test_a_match_is_no_group() -> None:
    RunSpec.from_mapping(MATCH)
    training = {**MATCH["training"], "extra_batches": 1}  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match=r"training\.extra_batches: the agents of a match"):
        RunSpec.from_mapping({**MATCH, "training": training})


def test_further_tasks_come_after_those_of_the_run_with_the_parameters_of_the_iteration() -> None:
    env = {
        "id": "game:GuessTheNumber-v0-easy",
        "seed": 100,
        "schedule": [{"iteration": 2, "params": {"max_number": 20}}],
    }
    training = {"iterations": 4, "tasks": 8, "group_size": 2, "extra_batches": 2}
    spec = RunSpec.from_mapping({**MATCH, "env": env, "training": training})
    played = [
        (iteration, batch, task)
        for iteration in range(4)
        for batch in range(3)
        for task in spec.train_tasks(iteration, batch=batch)
    ]
    assert sorted(task.seed for _, _, task in played) == [*range(100, 100 + 4 * 3 * 8)]
    for iteration, batch, task in played:
        assert (task.seed < 132) == (batch == 0)
        assert task.params.get("max_number") == (20 if iteration >= 2 else None)
