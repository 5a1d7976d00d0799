"""Which configurations of verl are accepted, and what is said of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import verl
from hydra import compose as compose_config
from hydra import initialize_config_dir

from gem.errors import ConfigurationError
from gem_verl.settings import ATTENTION, Settings, check_config

BASE = [
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.agent.default_agent_loop=gem",
    "algorithm.adv_estimator=gem_rebn",
]

ASYNC = [
    ["trainer.v1.trainer_mode=colocate_async"],
    ["trainer.v1.trainer_mode=gem_colocate_async"],
    [
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=1",
    ],
]
SEVERAL_ROWS = [
    ["actor_rollout_ref.rollout.agent.default_agent_loop=gem_turns"],
    ["+gem.context=concat"],
    ["+gem.thinking=drop"],
]
SDPA = f"+{ATTENTION}=sdpa"
SPLIT = [f"actor_rollout_ref.actor.{t}ulysses_sequence_parallel_size" for t in ("fsdp_config.", "")]


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
        *(
            ([f"+gem.{given}", f"trainer.v1.trainer_mode={mode}"], rf"^gem\.{name}: only GEM's tr")
            for name, given in {
                "max_failed_fraction": "max_failed_fraction=0.2",
                "record": "record=all",
                "info_metrics": "info_metrics=hints",
                "poll_interval_s": "poll_interval_s=1",
            }.items()
            for mode in ("sync", "colocate_async")
        ),
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
        (
            [
                "trainer.v1.trainer_mode=gem_sync",
                "algorithm.rollout_correction.bypass_mode=True",
                "algorithm.rollout_correction.rollout_rs=token_k1",
            ],
            r"rollout_rs: .* bypass_mode=True; set \+actor_rollout_ref.actor.policy_loss.rollout_c",
        ),
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
        (["algorithm.adv_estimator=grpo"], "reward 0, .* cannot stop at it; set trainer.v1"),
        *(
            ([*rows, *own], "adv_estimator=grpo takes the last one's rewards for those of all")
            for rows in SEVERAL_ROWS
            for own in [["algorithm.adv_estimator=grpo", "trainer.v1.trainer_mode=gem_sync"]]
        ),
        (
            ["actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"],
            "loss_mode: it gives all tokens of a row the mean of its advantages",
        ),
        (["reward.custom_reward_function.path=mine.py"], "rewards come from the environments"),
        (["reward.reward_model.enable=True"], "rewards come from the environments"),
        (["reward.reward_manager.name=dapo"], "rewards come from the environments"),
        (
            ["actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3"],
            "max_assistant_turns: the agent loops of gem-verl do not read it; set gem.turns",
        ),
        *((["+gem.seed=1", *mode], "^gem.seed: a turn that verl interrupts") for mode in ASYNC),
        *(
            ([f"{key}=2", SDPA], f"^{key}: verl shares .* sdpa .* wrong; .*, got 2$")
            for key in SPLIT
        ),
        (["critic.enable=True"], "^critic.enable: verl loads critics with flash attention only"),
        (
            ["algorithm.adv_estimator=gae", "trainer.v1.trainer_mode=gem_sync"],
            "^critic.enable: verl loads critics with flash attention only",
        ),
    ],
)
def test_what_would_not_do_as_told_is_refused(
    compose: Any, overrides: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEM_CPU", raising=False)
    with pytest.raises(ConfigurationError, match=reason):
        check_config(compose([*BASE, *overrides]))


@pytest.mark.parametrize(
    "given",
    [
        ["actor_rollout_ref.rollout.full_determinism=True", "+gem.seed=1"],
        [
            "algorithm.rollout_correction.bypass_mode=True",
            "actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode",
            "+actor_rollout_ref.actor.policy_loss.rollout_correction.rollout_is=token",
        ],
        ["trainer.log_val_generations=4", "trainer.validation_data_dir=generations"],
        ["distillation.enabled=True"],
        ["skip.rollout_tq.enable=True"],
    ],
)
def test_what_does_as_told_with_one_row_and_beside_others_is_accepted(
    compose: Any, given: list[str]
) -> None:
    check_config(compose([*BASE, *given]))


def test_the_rows_of_seats_need_an_estimator_of_gem(compose: Any) -> None:
    mode = "trainer.v1.trainer_mode=gem_sync"
    assert check_config(compose([*BASE, mode]), seats=True) == Settings()
    with pytest.raises(ConfigurationError, match="one training row per agent, and"):
        check_config(compose([*BASE, mode, "algorithm.adv_estimator=rloo"]), seats=True)
    taught = compose([*BASE, mode, "distillation.enabled=True"])
    with pytest.raises(ConfigurationError, match="^distillation.enabled: seat=all makes .* teach"):
        check_config(taught, seats=True)


def test_a_mean_of_advantages_is_fine_where_all_turns_have_the_same(compose: Any) -> None:
    mean = "actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"
    check_config(compose([*BASE, "algorithm.adv_estimator=gem_grpo", mean]))


@pytest.mark.parametrize("attention", ["flash_attention_3", None])
def test_a_row_is_shared_where_attention_is_flash_attention(
    compose: Any, attention: str | None
) -> None:
    chosen = [f"+{ATTENTION}={attention}"] if attention else []  # verl's default is flash attention
    check_config(compose([*BASE, *chosen, f"{SPLIT[0]}=2"]))


def test_verls_own_estimators_work_with_a_trainer_that_stops_at_a_failed_episode(
    compose: Any,
) -> None:
    check_config(
        compose([*BASE, "trainer.v1.trainer_mode=gem_sync", "algorithm.adv_estimator=grpo"])
    )


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ('{"final_logit_softcapping": 30.0}', "the model's final_logit_softcapping would be left"),
        ('{"tie_word_embeddings": false}', "FSDP2 shards a head that is not tied"),
        ('{"model_type": "qwen3"}', "FSDP2 shards a head that is not tied"),
        ('{"tie_word_embeddings": true}', None),
    ],
)
def test_fused_kernels_are_refused_for_models_that_they_cannot_train(
    compose: Any, tmp_path: Path, about: str, message: str | None
) -> None:
    model = f"actor_rollout_ref.model.path={tmp_path}"
    fused = "actor_rollout_ref.model.use_fused_kernels=True"
    fsdp2 = "actor_rollout_ref.actor.strategy=fsdp2"
    tmp_path.joinpath("config.json").write_text(about)
    check_config(compose([*BASE, model, fsdp2]))
    if message is None:
        check_config(compose([*BASE, model, fsdp2, fused]))
        return
    with pytest.raises(ConfigurationError, match=f"use_fused_kernels: {message}"):
        check_config(compose([*BASE, model, fsdp2, fused]))


@pytest.mark.parametrize(
    ("about", "given", "most"),
    [
        ('{"max_position_embeddings": 127}', [], 127),
        ('{"text_config": {"max_position_embeddings": 127}}', [], 127),
        ('{"max_position_embeddings": 128}', [], None),
        ('{"max_position_embeddings": 127}', ["+{}.max_position_embeddings=128"], None),
        ("{}", [], None),
    ],
)
def test_episodes_that_are_longer_than_the_model_are_refused(
    compose: Any, tmp_path: Path, about: str, given: list[str], most: int | None
) -> None:
    """verl would cut a turn at the model's end, and say that it is complete."""
    tmp_path.joinpath("config.json").write_text(about)
    sizes = ["data.max_prompt_length=100", "data.max_response_length=28"]
    model = "actor_rollout_ref.model"
    changed = [each.format(f"{model}.override_config") for each in given]
    config = compose([*BASE, f"{model}.path={tmp_path}", *sizes, *changed])
    if most is None:
        check_config(config)
        return
    with pytest.raises(ConfigurationError, match=f"max_model_len: .* 128 tokens .* most {most}"):
        check_config(config)


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        ("fully_async_policy/config/fully_async_ppo_trainer", "fully-async"),
        ("one_step_off_policy/config/one_step_off_ppo_trainer", "one-step-off"),
    ],
)
def test_verls_other_launchers_are_refused_by_name(launcher: str, name: str) -> None:
    """Their own configurations, as verl composes them."""
    folder, _, config = launcher.rpartition("/")
    experimental = Path(verl.__file__).parent / "experimental"
    search = f"hydra.searchpath=[file://{Path(verl.__file__).parent / 'trainer' / 'config'}]"
    with initialize_config_dir(str(experimental / folder), version_base=None):
        composed = compose_config(config, overrides=[search, *BASE])
    with pytest.raises(ConfigurationError, match=f"{name} launcher .*=gem_colocate_async"):
        check_config(composed)
