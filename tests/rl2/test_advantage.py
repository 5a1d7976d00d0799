"""The seam on RL2's own tensors. That its numbers are gem.advantage's: tests/conformance."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gem.advantage import gae, rebn
from gem.errors import RolloutError
from gem.trajectory import turn_table
from gem_rl2.advantage import compute, engine_metrics, read, repeat, trained_rows
from gem_rl2.rollout import TAG
from gem_train.testing.golden import golden_batch, golden_turn_rows

KEYS = ("+gem.advantage=rebn", "+gem.prompt_tokens=100", "+gem.max_failed_fraction=0.5")


def batch(world: Any, make: Any = golden_batch) -> tuple[Any, list[int], list[Any]]:
    played = make()
    tensors, edges = world.tensors(played)
    return tensors, edges.tolist(), played


@pytest.mark.parametrize("make", [golden_batch, golden_turn_rows])
def test_what_is_trained_on_is_what_was_sampled(world: Any, make: Any) -> None:
    tensors, edges, played = batch(world, make)
    episodes = read(tensors, edges, played)
    compute(world.settings(*KEYS), world.keys(*KEYS), tensors, episodes)
    for episode in episodes:
        trajectory = episode.trajectory
        rows = trajectory.training_rows()
        shown = trained_rows(tensors, episode)
        assert [r.prompt_ids for r in shown] == [r.prompt_ids for r in rows]
        assert [r.response_ids for r in shown] == [r.response_ids for r in rows]
        assert [r.mask for r in shown] == [r.mask for r in rows]
        for row, given in zip(rows, shown, strict=True):
            assert given.rewards == pytest.approx(row.token_rewards(trajectory.rewards))


def test_episodes_are_told_apart_in_any_order(world: Any) -> None:
    played = golden_batch()
    order = [4, 5, 0, 1, 6, 7, 2, 3]
    tensors, edges = world.tensors(played)
    places = {number: range(edges[number], edges[number + 1]) for number in order}
    rows = [place for number in order for place in places[number]]
    mixed = {key: value[rows] for key, value in tensors.items()}
    boundaries = [0]
    for number in order:
        boundaries.append(boundaries[-1] + len(places[number]))
    episodes = read(mixed, boundaries, played)
    found = [episode.trajectory for episode in episodes]
    assert found == [played[i] for i in order if played[i].valid] + [played[7]]
    assert not mixed["rewards"][:, TAG - 1].any()


def test_a_failed_episode_takes_no_part(world: Any) -> None:
    tensors, edges, played = batch(world)
    per_turn = compute(
        world.settings(*KEYS), world.keys(*KEYS), tensors, read(tensors, edges, played)
    )
    assert per_turn[-1] == [0.0, 0.0]
    table = turn_table([t for t in played if t.valid])
    expected = rebn(table, 1.0)
    assert [a for split in per_turn[:-1] for a in split] == expected.tolist()


def test_too_many_failures_stop_the_run(world: Any) -> None:
    tensors, edges, played = batch(world)
    strict = world.settings("+gem.advantage=rebn", "+gem.max_failed_fraction=0.1")
    with pytest.raises(RolloutError, match="1 of 8 episodes of this batch failed.*server gone"):
        compute(strict, world.keys(), tensors, read(tensors, edges, played))


@pytest.mark.parametrize("key", ["states", "action_mask"])
def test_rows_that_hold_other_tokens_stop_the_run(world: Any, key: str) -> None:
    tensors, edges, played = batch(world)
    tensors[key][0, 4] = 1 - tensors[key][0, 4]
    with pytest.raises(RolloutError, match="row 0 .*does not hold the tokens that were sampled"):
        read(tensors, edges, played)


def test_a_batch_that_lost_an_episode_stops_the_run(world: Any) -> None:
    tensors, edges, played = batch(world)
    kept = {key: value[:-1] for key, value in tensors.items()}
    with pytest.raises(RolloutError, match="1 of 8 episodes are not in RL2's batch"):
        read(kept, edges[:-2], played)


def test_rows_of_nobody_stop_the_run(world: Any) -> None:
    tensors, edges, played = batch(world)
    tensors["rewards"][0, TAG - 1] = 99.0
    with pytest.raises(RolloutError, match="are no episode of GEM"):
        read(tensors, edges, played)


def test_a_penalty_in_the_rewards_reaches_the_turns(world: Any) -> None:
    keys = (*KEYS, "actor.kl.coef=0.5", "actor.kl.type=reward")
    tensors, edges, played = batch(world)
    episodes = read(tensors, edges, played)
    tensors["rewards"] -= 0.5 * 0.25 * tensors["action_mask"]  # RL2's KL of each sampled token
    settings = world.settings("+gem.advantage=reinforce", "+gem.max_failed_fraction=0.5")
    per_turn = compute(settings, world.keys(*keys), tensors, episodes)
    for episode, found in zip(episodes, per_turn, strict=True):
        left = 0.0
        for turn, value in reversed(list(zip(episode.trajectory.turns, found, strict=True))):
            left += turn.reward - 0.125 * len(turn.response_ids)
            if episode.trajectory.valid:
                assert value == pytest.approx(left, abs=1e-6)


def test_the_critic_is_trained_towards_the_turns_targets(world: Any) -> None:
    keys = ("adv.estimator=gae", "critic.max_length_per_device=500", "adv.lamda=0.5")
    settings = world.settings("+gem.advantage=gae", "+gem.max_failed_fraction=0.5")
    tensors, edges, played = batch(world)
    world.critic(tensors, played, lambda episode, turn: 0.5)
    episodes = read(tensors, edges, played)
    compute(settings, world.keys(*keys), tensors, episodes)
    values = [[0.5] * len(e.trajectory.turns) for e in episodes]
    table = turn_table([e.trajectory for e in episodes], values)
    _, targets = gae(table, 1.0, 0.5)
    for episode, wanted in zip(episodes, table.split(targets), strict=True):
        for row in episode.rows:
            for span in row.tokens.spans:
                found = tensors["returns"][row.place, row.columns][span.start : span.end]
                assert torch.equal(found, torch.full_like(found, wanted[span.turn]))


def test_more_parts_than_rows_are_refused_with_the_cause(world: Any) -> None:
    tensors, edges, played = batch(world)
    keys = world.keys("actor.update_per_rollout=6")
    with pytest.raises(RolloutError, match="cannot divide the 7 rows.*into 6 parts"):
        compute(world.settings(*KEYS), keys, tensors, read(tensors, edges, played))


def test_stale_log_probabilities_are_seen(world: Any) -> None:
    tensors, _, _ = batch(world)
    assert engine_metrics(tensors) == {}
    tensors["old_logps"] = tensors["llm_logps"].clone()
    assert set(engine_metrics(tensors).values()) == {0.0}
    place = int(tensors["action_mask"][0].argmax())
    tensors["old_logps"][0, place] += 0.75
    tokens = int(tensors["action_mask"].sum())
    assert engine_metrics(tensors) == {
        "logprob_difference_max": pytest.approx(0.75),
        "logprob_difference_mean": pytest.approx(0.75 / tokens),
        "sampler_kl": pytest.approx((math.exp(0.75) - 1.75) / tokens, rel=1e-4),
        "mismatched_tokens": 1.0,
    }


def test_passes_over_a_batch_are_consecutive_parts_of_what_rl2_gets(world: Any) -> None:
    tensors, _, _ = batch(world)
    once = {key: value.clone() for key, value in tensors.items()}
    repeat(tensors, 1)
    assert all(torch.equal(tensors[key], once[key]) for key in once)
    repeat(tensors, 3)
    for key, value in tensors.items():
        assert all(torch.equal(part, once[key]) for part in value.chunk(3))
