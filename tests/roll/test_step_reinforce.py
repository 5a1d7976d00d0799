"""ROLL's own batch-normalised returns of turns, `step_reinforce`, beside GEM's ReBN."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gem_train.experiment.estimate import turn_advantages

GAMMA = 0.9
PROMPT, TOKENS, LENGTH = 5, 10, 12


def episodes() -> list[list[float]]:
    """Rewards of each turn of 32 episodes."""
    rng = random.Random(0)
    lengths = [rng.randint(1, 5) for _ in range(32)]
    return [[rng.choice([0.0, 0.5, -0.1]) for _ in range(n)] + [rng.random()] for n in lengths]


def rolls(imported: Any, played: list[list[float]]) -> list[float]:
    """The advantage of each turn by ROLL's functions, in the order in which ROLL calls them."""
    torch = imported("torch")
    pipeline = imported("roll.pipeline.agentic.agentic_pipeline")
    normalised = imported("roll.pipeline.agentic.agentic_config").RewardNormalizationConfig(
        norm_mean_type="batch", norm_std_type="batch"
    )
    config = SimpleNamespace(
        adv_estimator="step_reinforce", reward_normalization=normalised, reward_clip=None,
        kl_penalty="kl", add_token_level_kl=False,
    )  # fmt: skip
    turns = [(e, k, r) for e, rewards in enumerate(played) for k, r in enumerate(rewards)]
    n = len(turns)
    ones = torch.ones(n, LENGTH, dtype=torch.long)
    place = torch.arange(LENGTH).expand(n, LENGTH)
    tensors = {
        "input_ids": ones,
        "attention_mask": (place < TOKENS).long(),
        "position_ids": place.clone(),
        "response_mask": (place >= PROMPT) & (place < TOKENS),
        "old_log_probs": torch.zeros(n, LENGTH - 1),
        "ref_log_probs": torch.zeros(n, LENGTH - 1),
    }
    columns = {
        "traj_id": [f"episode {e}" for e, _, _ in turns],
        "step": [k for _, k, _ in turns],
        "step_scores": [r for *_, r in turns],
    }
    data = imported("roll.distributed.scheduler.protocol").DataProto.from_dict(
        tensors, {name: np.array(values, object) for name, values in columns.items()}
    )
    data = pipeline.compute_discounted_returns(data, "step_reinforce", GAMMA)
    data, _ = pipeline.compute_response_level_rewards(batch=data, pipeline_config=config)
    control = pipeline.get_kl_controller(init_kl_coef=0.0, target_kl=None, kl_horizon=1)
    data, _ = pipeline.compute_token_reward(data, config, control)
    data = pipeline.agentic_compute_advantage(
        data=data, gamma=1.0, lambd=1.0, adv_estimator="step_reinforce", pipeline_config=config
    )
    sampled = data.batch["advantages"][:, PROMPT - 1 : TOKENS - 1]
    assert (sampled == sampled[:, :1]).all()
    return [float(a) for a in sampled[:, 0]]


def test_step_reinforce_is_rebn_with_the_unbiased_standard_deviation(imported: Any) -> None:
    """Every advantage of ROLL's is GEM's times sqrt((n - 1) / n), n turns in the batch."""
    played = episodes()
    theirs = rolls(imported, played)
    batch = [SimpleNamespace(rewards=r, group=e, valid=True) for e, r in enumerate(played)]
    ours, _ = turn_advantages("rebn", batch, gamma=GAMMA)
    n = sum(map(len, played))
    factor = math.sqrt((n - 1) / n)
    assert factor < 0.999  # far from 1 by more than rounding
    mine = [a * factor for of_episode in ours for a in of_episode]
    # ROLL computes in float32 and adds 1e-6 to the standard deviation.
    assert theirs == pytest.approx(mine, rel=2e-5, abs=1e-6)
