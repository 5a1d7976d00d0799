"""Which configurations of verl are accepted, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_verl.settings import Settings, check_config

BASE = [
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.agent.default_agent_loop=gem",
    "algorithm.adv_estimator=gem_rebn",
]


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "gem_sync", "gem_colocate_async"])
def test_these_trainer_modes_work(compose: Any, mode: str) -> None:
    assert check_config(compose([*BASE, f"trainer.v1.trainer_mode={mode}"])) == Settings()


@pytest.mark.parametrize(
    "given",
    [
        *(f"algorithm.adv_estimator=gem_{name}" for name in ("grpo", "rloo", "reinforce")),
        "trainer.v1.separate_async.parameter_sync_step=1",
    ],
)
def test_parts_of_a_batch_are_enough_where_nothing_is_normalised_over_all_of_it(
    compose: Any, given: str
) -> None:
    mode = "trainer.v1.trainer_mode=separate_async"
    assert check_config(compose([*BASE, mode, given])) == Settings()


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["trainer.v1.trainer_mode=separate_async"], "parts of a batch"),
        (["trainer.v1.trainer_mode=sink"], "not known to gem-verl"),
        (["trainer.use_v1=False"], "one number per episode"),
        (["+gem.record_dir=/tmp/x"], "cannot record; set trainer.v1.trainer_mode=gem_sync"),
        (["+gem.context=concat"], "one training row per turn"),
        (["+gem.thinking=drop"], "thinking 'drop' makes one training row per turn"),
        (["actor_rollout_ref.rollout.agent.default_agent_loop=gem_turns"], "row per turn"),
        (["algorithm.adv_estimator=gem_gae"], "needs the critic's values"),
        (["algorithm.adv_estimator=gem_rae"], "keep its state"),
        (
            ["algorithm.adv_estimator=gem_gae", "trainer.v1.trainer_mode=gem_sync"],
            "critic.enable=True",
        ),
        (["algorithm.rollout_correction.rollout_rs=token_k1"], "removes tokens from the mask"),
        (["+gem.turn_token=4"], "did you mean gem.turn_tokens"),
        (
            ["+gem.seed=1", "actor_rollout_ref.rollout.name=sglang"],
            "^gem.seed: .*SGLang.*, got 1$",
        ),
        (["actor_rollout_ref.rollout.enable_rollout_routing_replay=True"], "routed; .*, got True$"),
        (
            [
                "trainer.v1.trainer_mode=gem_colocate_async",
                "actor_rollout_ref.rollout.calculate_log_probs=False",
            ],
            "calculate_log_probs: the servers of trainer_mode=gem_colocate_async answer without",
        ),
        (
            [
                "data.max_prompt_length=100",
                "data.max_response_length=28",
                "actor_rollout_ref.rollout.max_model_len=127",
            ],
            "max_model_len: an episode may have 128 tokens .*, got 127$",
        ),
        (
            ["algorithm.filter_groups.enable=True", "trainer.v1.trainer_mode=gem_sync"],
            "filter_groups.enable: it takes a failed episode for one of reward 0",
        ),
    ],
)
def test_what_would_not_do_as_told_is_refused(
    compose: Any, overrides: list[str], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        check_config(compose([*BASE, *overrides]))
