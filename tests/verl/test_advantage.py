"""Estimators: where turns are found, what takes no part, what stops the run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from gem import advantage
from gem.advantage import TurnTable
from gem.errors import ConfigurationError, RolloutError
from gem.trajectory import TurnSpan
from gem_train.rows import EpisodeTurns, RowTurns
from gem_verl.advantage import Batch, given

CONFIG = OmegaConf.create({"gamma": 0.9, "lam": 0.8})


def estimate(name: str, mask: Any, rewards: Any, uid: list[str], **config: Any) -> list[Tensor]:
    estimator = get_adv_estimator_fn(name)
    return list(
        estimator(
            token_level_rewards=torch.tensor(rewards, dtype=torch.float32),
            response_mask=torch.tensor(mask),
            config=OmegaConf.merge(CONFIG, config),
            index=np.array(uid, dtype=object),
        )
    )


def test_a_run_of_ones_in_the_mask_is_a_turn() -> None:
    mask = [[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]]
    rewards = [[0, 0.5, 0, 1, 0, 0], [0, 0, 0, 0, 0, 2]]
    advantages, returns = estimate("gem_reinforce", mask, rewards, ["a", "b"])
    assert returns[0].tolist() == pytest.approx([1.4, 1.4, 0, 1, 0, 0])
    assert returns[1].tolist() == pytest.approx([0, 2, 2, 2, 2, 2])
    assert torch.equal(advantages, returns)


def test_a_reward_between_turns_belongs_to_the_turn_before() -> None:
    _, returns = estimate("gem_reinforce", [[1, 0, 0, 1]], [[0, 0, 0.25, 1]], ["a"])
    assert returns[0].tolist() == pytest.approx([0.25 + 0.9, 0, 0, 1])


def test_verls_padding_rows_do_not_enter_the_statistics() -> None:
    mask, rewards = [[1, 0], [1, 1]], [[1.0, 0], [0, 0.0]]
    alone, _ = estimate("gem_rebn", mask, rewards, ["a", "b"])
    padded, _ = estimate("gem_rebn", [*mask, [0, 0]], [*rewards, [0, 0.0]], ["a", "b", "pad1f"])
    assert torch.equal(padded[:2], alone)
    assert not padded[2].any()
    assert alone[0].tolist() == [1, 0]


def test_a_failed_episode_does_not_enter_its_groups_statistics() -> None:
    n = 20
    mask = [[1, 1]] * n + [[0, 0]]
    rewards = [[0, float(i % 2)] for i in range(n)] + [[0, 0.0]]
    advantages, _ = estimate("gem_grpo", mask, rewards, ["a"] * (n + 1))
    assert advantages[:n].abs().unique().tolist() == [1.0]
    assert not advantages[n].any()


def test_grpo_honours_verls_switch_for_the_division() -> None:
    mask, rewards = [[1], [1]], [[4.0], [0.0]]
    scaled, _ = estimate("gem_grpo", mask, rewards, ["a", "a"])
    plain, _ = estimate("gem_grpo", mask, rewards, ["a", "a"], norm_adv_by_std_in_grpo=False)
    assert scaled.flatten().tolist() == [1, -1]
    assert plain.flatten().tolist() == [2, -2]


def test_too_many_failed_episodes_stop_the_run() -> None:
    with pytest.raises(RolloutError, match="1 of 2 episodes of this batch failed"):
        estimate("gem_rebn", [[1], [0]], [[1.0], [0.0]], ["a", "b"])


def test_a_broken_agent_loop_stops_the_run() -> None:
    mask, rewards = [[1]] * 30 + [[0]], [[1.0]] * 30 + [[math.nan]]
    with pytest.raises(RolloutError, match="agent loop failed"):
        estimate("gem_rebn", mask, rewards, [str(i) for i in range(31)])


def test_gae_without_a_critic_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="gem_sync and critic.enable=True"):
        estimate("gem_gae", [[1]], [[1.0]], ["a"])


def test_gae_reads_the_critic_before_each_turns_first_token() -> None:
    episode = EpisodeTurns(0, [RowTurns(0, [TurnSpan(0, 0, 2), TurnSpan(1, 3, 4)])], [0.5, 1.0])
    values = torch.tensor([[0.25, 9.0, 9.0, -0.5]])
    with given(Batch([episode], values=values)):
        advantages, returns = estimate("gem_gae", [[1, 1, 0, 1]], [[0, 0.5, 0, 1.0]], ["a"])
    table = TurnTable.build([[0.5, 1.0]], values=[[0.25, -0.5]])
    expected, targets = advantage.gae(table, 0.9, 0.8)
    assert advantages[0].tolist() == pytest.approx([expected[0], expected[0], 0, expected[1]])
    assert returns[0].tolist() == pytest.approx([targets[0], targets[0], 0, targets[1]])


def test_an_episode_of_several_rows_is_one_episode() -> None:
    episode = EpisodeTurns(
        0, [RowTurns(1, [TurnSpan(0, 0, 2)]), RowTurns(0, [TurnSpan(1, 0, 1)])], [0.0, 1.0]
    )
    with given(Batch([episode])):
        advantages, _ = estimate("gem_reinforce", [[1, 0], [1, 1]], [[1.0, 0], [0, 0]], ["a", "a"])
    assert advantages.tolist() == [[1, 0], [pytest.approx(0.9), pytest.approx(0.9)]]


def test_a_kl_penalty_in_the_rewards_is_kept() -> None:
    episode = EpisodeTurns(0, [RowTurns(0, [TurnSpan(0, 0, 2)])], [1.0])
    scores = torch.tensor([[0.0, 1.0]])
    with given(Batch([episode], scores=scores)):
        advantages, _ = estimate("gem_reinforce", [[1, 1]], [[-0.25, 0.5]], ["a"])
    assert advantages.tolist() == [[0.25, 0.25]]


def test_the_estimator_hands_back_the_advantage_of_each_turn() -> None:
    episodes = [
        EpisodeTurns(0, [RowTurns(0, [TurnSpan(0, 0, 1), TurnSpan(1, 2, 3)])], [0.0, 1.0]),
        EpisodeTurns(1, [RowTurns(1, [])], [], valid=False),
    ]
    batch = Batch(episodes)
    with given(batch):
        estimate("gem_reinforce", [[1, 0, 1], [0, 0, 0]], [[0, 0, 1.0], [0, 0, 0]], ["a", "b"])
    assert batch.advantages == [[pytest.approx(0.9), 1.0], []]
