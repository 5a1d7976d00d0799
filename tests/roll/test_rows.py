"""Episodes as rows of ROLL's batch, and the same batch as episodes with advantages again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gem.errors import RolloutError
from gem_roll.rows import compute, engine_metrics, read
from gem_roll.settings import GemSettings
from gem_train.testing.golden import golden_batch

SETTINGS = GemSettings(max_failed_fraction=0.5)


def test_the_order_of_rolls_batch_has_no_effect(batches: Any) -> None:
    """Episodes come back by task and slot, with the same advantages to the last bit."""
    batch = golden_batch()
    found = []
    for order in (range(8), [5, 2, 7, 0, 1, 6, 3, 4]):
        data = batches.batch(batch, order)
        episodes = read(data)
        per_turn = compute(SETTINGS, data, episodes, 0.9, 1.0)
        found.append(([e.trajectory.data for e in episodes], per_turn))
    assert found[0] == found[1]
    assert [e.trajectory.group for e in read(batches.batch(batch))] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("column", ["input_ids", "response_mask"])
def test_a_row_that_is_not_what_was_sampled_stops_the_run(column: str, batches: Any) -> None:
    data = batches.batch(golden_batch())
    # A sampled token of the first row, and one of the environment's.
    place = int(data.batch["response_mask"][0].nonzero()[0]) + (column == "response_mask") * -1
    data.batch[column][0, place] = 9
    with pytest.raises(RolloutError, match="row 0 of ROLL's batch does not hold the tokens"):
        read(data)


def test_a_failed_episode_is_padding_with_advantage_0(batches: Any) -> None:
    batch = golden_batch()
    data = batches.batch(batch)
    episodes = read(data)
    compute(SETTINGS, data, episodes, 0.9, 1.0)
    [failed] = [k for k, trajectory in enumerate(batch) if not trajectory.valid]
    assert episodes[failed].rows == []
    assert data.batch["attention_mask"][failed].sum() == 2
    assert not data.batch["response_mask"][failed].any()
    for name in ("advantages", "returns", "scores", "token_level_rewards"):
        assert not data.batch[name][failed].any()


def test_too_many_failed_episodes_stop_the_run(batches: Any) -> None:
    data = batches.batch(golden_batch())
    with pytest.raises(RolloutError, match="1 of 8 episodes of this batch failed"):
        compute(GemSettings(max_failed_fraction=0.1), data, read(data), 0.9, 1.0)


def test_a_batch_in_which_nothing_was_sampled_stops_the_run(batches: Any) -> None:
    data = batches.batch(golden_batch()[:2])
    episodes = read(data)
    data.batch["response_mask"][:] = False
    with pytest.raises(RolloutError, match="no token of this batch was sampled"):
        compute(SETTINGS, data, episodes, 0.9, 1.0)


def test_the_distance_from_the_engine_is_that_of_sampled_tokens(batches: Any) -> None:
    data = batches.batch(golden_batch())
    sampled = data.batch["response_mask"][:, 1:]
    data.batch["old_log_probs"] = data.batch["infer_logprobs"].clone()
    data.batch["old_log_probs"][~sampled] = 7.0
    assert set(engine_metrics(data).values()) == {0.0}
    data.batch["old_log_probs"][sampled] += torch.where(
        torch.arange(int(sampled.sum())) == 3, -0.75, 0
    )
    tokens = int(sampled.sum())
    assert engine_metrics(data) == {
        "logprob_difference_max": pytest.approx(0.75),
        "logprob_difference_mean": pytest.approx(0.75 / tokens),
        "sampler_kl": pytest.approx((math.exp(-0.75) - 0.25) / tokens, rel=1e-4),
        "mismatched_tokens": 1.0,
    }
