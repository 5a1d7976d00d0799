"""Settings, and the values of GRPOConfig that do not go with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_trl import GemSettings
from gem_trl.settings import GENERATION, check_config, check_length, steps_per_iteration


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"advantage": "gae"}, r"gem\.advantage: gae needs a critic; TRL's GRPOTrainer has"),
        ({"advantage": "ppo"}, "unknown estimator 'ppo'"),
        ({"context": "window:2"}, r"gem\.context: TRL's batches have one row per episode"),
        ({"seed": 0}, r"gem\.seed: TRL's engines take no seed"),
        ({"prompt_tokens": 0}, r"gem\.prompt_tokens"),
        ({"group_size": 0}, r"gem\.group_size"),
        ({"max_failed_fraction": 2.0}, r"gem\.max_failed_fraction"),
    ],
)
def test_wrong_settings_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        GemSettings(**given)


@pytest.mark.parametrize(
    ("fields", "settings", "said"),
    [
        ({}, {"group_size": 3}, r"generation_batch_size: .* whole groups of 3, got 8"),
        ({}, {"advantage": "grpo", "group_size": 1}, "compares the episodes of a task"),
        (
            {"gradient_accumulation_steps": 2, "steps_per_generation": 3},
            {},
            r"steps_per_generation: .* multiple of gradient_accumulation_steps, 2, got 3",
        ),
        (
            {"num_iterations": 2, "save_strategy": "steps", "save_steps": 3},
            {},
            r"save_steps: .* must be a multiple of 2",
        ),
        (
            {"num_iterations": 2, "eval_strategy": "steps", "eval_steps": 3},
            {"record_dir": "r"},
            r"eval_steps: the record has one evaluation .* must be a multiple of 2",
        ),
        ({}, {"importance_sampling": True}, r"gem\.importance_sampling: .* needs use_vllm"),
        (
            {"use_vllm": True, "vllm_importance_sampling_correction": False},
            {"importance_sampling": True},
            r"gem\.importance_sampling: .* set both",
        ),
        ({"logging_steps": 2}, {"record_dir": "r"}, r"logging_steps: .* set it to 1"),
        ({"logging_strategy": "epoch"}, {"record_dir": "r"}, "logging_strategy to 'steps'"),
        (
            {"per_device_eval_batch_size": 6, "eval_strategy": "steps", "eval_steps": 2}
            | {"num_generations_eval": None},
            {"group_size": 4},
            r"per_device_eval_batch_size: .* whole groups of 4; .*, got 6",
        ),
        *(
            ({"loss_type": loss}, chosen, r"loss_type: rows without tokens .*'dapo' or 'cispo'")
            for loss in ("grpo", "dr_grpo", "luspo", "bnpo", "sapo")
            for chosen in ({"mask_overlong": True}, {"extra_batches": 0})
        ),
        ({"mask_truncated_completions": True}, {}, "judges an episode by its last token"),
        ({"use_transformers_continuous_batching": True}, {}, "by generate or by vLLM"),
        (
            {"importance_sampling_level": "sequence"},
            {},
            r"importance_sampling_level: .* 'rebn' has one for each turn; .*, got 'sequence'",
        ),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {}, r"use gem\.template_kwargs"),
        ({"generation_kwargs": {"stop": ["</answer>"]}}, {}, "would count as cut off"),
        ({"use_vllm": True}, {}, r"ask for it with gem\.importance_sampling=True, got True"),
    ],
)
def test_configurations_that_would_train_on_something_else_are_refused(
    make_args: Callable[..., Any], fields: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    args = make_args(**fields)
    with pytest.raises(ConfigurationError, match=said):
        check_config(args, GemSettings(**settings))


@pytest.mark.parametrize("key", GENERATION)
def test_keys_for_the_engine_that_would_do_something_else_are_refused(
    make_args: Callable[..., Any], key: str
) -> None:
    args = make_args(generation_kwargs={"suppress_tokens": [1], key: 1})
    with pytest.raises(ConfigurationError, match=rf"GRPOConfig\.generation_kwargs: .* '{key}' out"):
        check_config(args, GemSettings())


@pytest.mark.parametrize(
    "fields",
    [
        {"generation_kwargs": {"suppress_tokens": [1], "cache_implementation": "static"}},
        {"shuffle_dataset": True},
        {"scale_rewards": True},  # TRL's own "group"
        {"save_strategy": "steps", "save_steps": 0.5},
        {"enable_jit_checkpoint": True},
        {"num_iterations": 2, "eval_strategy": "steps", "eval_steps": 3},  # without a record
        {"num_iterations": 2, "max_steps": -1},
    ],
)
def test_what_works_is_accepted(make_args: Callable[..., Any], fields: dict[str, Any]) -> None:
    check_config(make_args(**fields), GemSettings())


@pytest.mark.parametrize("advantage", ["grpo", "rloo"])
@pytest.mark.parametrize(
    "fields",
    [
        {"importance_sampling_level": "sequence"},
        {"loss_type": "vespo"},
        {"off_policy_mask_threshold": 0.5},
    ],
)
def test_losses_of_episodes_are_fine_where_all_turns_have_the_same_advantage(
    make_args: Callable[..., Any], advantage: str, fields: dict[str, Any]
) -> None:
    check_config(make_args(**fields), GemSettings(advantage=advantage, group_size=2))


@pytest.mark.parametrize(
    ("fields", "settings", "steps", "said"),
    [
        ({"max_steps": 8}, {}, 8, None),
        ({"max_steps": 8}, {"extra_batches": 1}, 8, None),
        (
            {"max_steps": 9},
            {"extra_batches": 1},
            9,
            "max_steps: .* 9 iterations need 36 tasks .* 32",
        ),
        (
            {"max_steps": -1, "num_train_epochs": 1},
            {"extra_batches": 1},
            16,
            "num_train_epochs: .*64",
        ),
        ({"num_iterations": 2, "max_steps": 16}, {"extra_batches": 1}, 16, None),
        (
            {"num_iterations": 2, "max_steps": -1, "num_train_epochs": 0.1},
            {},
            5,
            "num_train_epochs: the run would end inside a batch",
        ),
    ],
)
def test_a_training_ends_with_a_batch_of_the_first_part_of_its_tasks(
    make_args: Callable[..., Any],
    fields: dict[str, Any],
    settings: dict[str, Any],
    steps: int,
    said: str | None,
) -> None:
    args, gem = make_args(**fields), GemSettings(**settings)
    check_config(args, gem)
    if said is None:
        check_length(args, gem, steps, tasks=64)
    else:
        with pytest.raises(ConfigurationError, match=said):
            check_length(args, gem, steps, tasks=64)


@pytest.mark.parametrize("wanted", [False, True])
def test_the_importance_sampling_correction_is_what_was_asked_for(
    make_args: Callable[..., Any], wanted: bool
) -> None:
    args = make_args(use_vllm=True, vllm_importance_sampling_correction=wanted)
    check_config(args, GemSettings(importance_sampling=wanted))


def test_an_iteration_has_steps_for_each_pass_and_minibatch(make_args: Callable[..., Any]) -> None:
    args = make_args(
        per_device_train_batch_size=2,
        steps_per_generation=4,
        gradient_accumulation_steps=2,
        num_iterations=3,
        max_steps=6,
    )
    check_config(args, GemSettings())
    assert steps_per_iteration(args) == 6
