"""oat's command line with GEM's arguments: what goes together, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_oat.settings import OATS, GemSettings, parse, shown

Argv = Callable[..., list[str]]


def test_sizes_follow_from_oats_own_flags(argv: Argv) -> None:
    args = parse(argv(rollout_batch_size=8, num_samples=3, train_batch_size=12, max_train=80))
    assert args.iterations == 10
    assert args.episodes == 24
    assert args.minibatches == 2
    assert len(args.train_tasks()) == 80
    assert args.train_tasks()[0].seed == 3
    assert args.rollout_batch_size_per_device == 8
    # oat counts optimiser steps from the number of tasks.
    assert len(args.train_tasks()) * args.max_epochs // args.train_batch_size == 10 * 2


def test_limits_of_an_episode_are_oats_lengths(argv: Argv) -> None:
    budget = parse(argv(gem_turns=5)).budget()
    assert (budget.turn_tokens, budget.response_tokens) == (16, 600)
    assert (budget.prompt_tokens, budget.turns) == (300, 5)


def test_every_setting_of_gem_is_a_flag_unless_oat_has_it(argv: Argv) -> None:
    args = parse(argv(gem_tasks="gem:game:x", gem_turns=5, gem_seed="None"))
    assert args.gem == GemSettings(tasks="gem:game:x", turns=5, tis_clip=args.tis_c)
    theirs = {field.name for field in fields(GemSettings)} - {n[4:] for n in shown(args)}
    assert theirs == set(OATS)
    assert parse(argv(cliprange=0.125, tis_c=3.0)).gem.clip == 0.125
    assert parse(argv(cliprange=0.125, tis_c=3.0)).gem.tis_clip == 3.0


def test_a_flag_given_twice_counts_as_given_last(argv: Argv) -> None:
    assert parse([*argv(gamma=0.9), "--gamma=0.5"]).gamma == 0.5


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no tasks": ({"gem_tasks": None}, "--gem_tasks: a task URI is"),
    "no task uri": ({"gem_tasks": "guess"}, "--gem_tasks: a task URI is"),
    "no length": ({"max_model_len": None}, "--max_model_len: it must be the longest episode"),
    "no room": (
        {"prompt_max_length": 900},
        "--prompt_max_length: it leaves no token .*, got 900",
    ),
    "no iteration": ({"max_train": 3}, "--max_train: less than one iteration of 4 tasks, got 3"),
    "minibatches": ({"train_batch_size": 3}, "--train_batch_size: an iteration of 4 .*, got 3"),
    "per device": (
        {"rollout_batch_size_per_device": 3},
        "--rollout_batch_size_per_device: .* got 3",
    ),
    "critic missing": ({"gem_advantage": "gae"}, "--critic_type: --gem_advantage gae needs ppo"),
    "critic idle": ({"critic_type": "ppo"}, "--critic_type: --gem_advantage rebn needs no critic"),
    "no group": ({"gem_advantage": "grpo"}, "--num_samples: .* at least 2, got 1"),
    "no group either": ({"gem_advantage": "rloo"}, "--num_samples: .* at least 2, got 1"),
    "temperature": ({"temperature": 0.7}, "--temperature: .* --tis_c None, got 0.7"),
    "nucleus": ({"top_p": 0.9}, "--top_p: .* --tis_c None, got 0.9"),
    "candidates": ({"top_k": 5}, "--top_k: .* --tis_c None, got 5"),
    "least likely": ({"gem_min_p": 0.1}, "--gem_min_p: .* --tis_c None, got 0.1"),
    "repetition": ({"gem_repetition_penalty": 1.1}, "--gem_repetition_penalty: .*, got 1.1"),
    "rejection": (
        {"top_p": 0.9, "tis_c": "None", "gem_reject_high": 2.0},
        r"--top_p: .* --gem_reject_\*, .*, got 0.9",
    ),
    "beyond nucleus": ({"top_p": 2, "tis_c": "None"}, "--top_p must be at most 1, got 2.0"),
    "no candidates": ({"top_k": 0, "tis_c": "None"}, "--top_k must be at least 1 or -1, got 0"),
    "no clip": ({"cliprange": 0}, "--cliprange must be above 0, got 0.0"),
    "no weight": ({"tis_c": 0}, "--tis_c must be above 0, got 0.0"),
    "value clip": ({"cliprange_value": -1}, "--cliprange_value: must be above 0, got -1.0"),
    "no pass": ({"num_ppo_epochs": 0}, "--num_ppo_epochs must be at least 1, got 0"),
    "discount": ({"gamma": 3}, "--gamma must be at most 1, got 3.0"),
    "warm-up of a critic": (
        {"gem_advantage": "gae", "critic_type": "ppo", "gem_critic_warmup": 1},
        "--gem_critic_warmup: .* --lr_scheduler constant, got 1",
    ),
    "greedy": ({"temperature": 0, "tis_c": "None"}, "--temperature: must be above 0"),
    "retries": ({"gem_retries": -1}, "--gem_retries must be at least 0"),
    "timeout": ({"gem_step_timeout_s": 0}, "--gem_step_timeout_s must be above 0"),
    "fraction": ({"gem_max_failed_fraction": 2}, "--gem_max_failed_fraction must be at most 1"),
    "negative KL": ({"beta": -1}, "--beta must be at least 0"),
    "no episode": ({"num_samples": 0}, "--num_samples must be at least 1"),
    "context": ({"gem_context": "everything"}, "--gem_context: "),
    "estimator": ({"gem_advantage": "best"}, "--gem_advantage: unknown estimator 'best'"),
    "two evaluations": ({"gem_eval": "gem:game:a gem:game:a"}, "--gem_eval: two evaluations"),
}


@pytest.mark.parametrize("case", WRONG)
def test_flags_that_do_not_fit_are_refused(case: str, argv: Argv) -> None:
    changes, message = WRONG[case]
    with pytest.raises(ConfigurationError, match=message):
        parse(argv(**changes))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"gpus": 4, "rollout_batch_size": 4}, "GPUs available, but 4 required"),
        ({"fp16": True}, "cannot enable both bf16 and fp16"),
        ({"zero_stage": 3, "use_fused_lm_head": True}, "please set --no-use_fused_lm_head"),
    ],
)
def test_what_oat_itself_refuses_is_an_error_of_the_flags(
    flags: dict[str, Any], said: str, argv: Argv
) -> None:
    with pytest.raises(ConfigurationError, match=f"oat refuses the flags: .*{said}"):
        parse(argv(**flags))


def test_tasks_must_divide_over_the_learners(argv: Argv, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="--rollout_batch_size: .* 3 learners, got 4"):
        parse(argv(gpus=3))


def test_importance_correction_can_be_switched_off(argv: Argv) -> None:
    drawn = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "gem_min_p": 0.1}
    assert parse(argv(tis_c="None", gem_repetition_penalty=1.1, **drawn)).tis_c is None


@pytest.mark.parametrize(
    "flags",
    [
        {"seed": 7, "gem_seed": 7},
        {"seed": 7, "gem_advantage": "gae", "critic_type": "ppo"},
        {"seed": 7, "lora_rank": 8},
        {"cliprange_value": "inf"},
        {"algo": "PPO"},
        {"num_samples": 2, "train_batch_size": 8, "pi_buffer_maxlen_per_device": 8},
        {
            "gem_advantage": "gae",
            "critic_type": "ppo",
            "gem_critic_warmup": 1,
            "lr_scheduler": "constant",
        },
    ],
    ids=" ".join,
)
def test_what_is_refused_elsewhere_is_taken_where_it_works(
    flags: dict[str, Any], argv: Argv
) -> None:
    parse(argv(**flags))


def test_a_run_goes_on_only_from_what_is_saved(argv: Argv) -> None:
    assert parse(argv("--gem_resume", save_steps=3)).gem.resume
    with pytest.raises(ConfigurationError, match="^--save_steps: --gem_resume goes on from what"):
        parse(argv("--gem_resume"))


def test_oats_fused_head_is_refused_for_a_model_that_scales_its_logits(
    argv: Argv, tmp_path: Path
) -> None:
    """It computes from the last matrix alone."""
    (tmp_path / "config.json").write_text('{"final_logit_softcapping": 30.0}')
    with pytest.raises(ConfigurationError, match=r"^--use_fused_lm_head: .*softcapping: --no-use"):
        parse(argv("--use_fused_lm_head", pretrain=tmp_path))
    assert not parse(argv("--no-use_fused_lm_head", pretrain=tmp_path)).use_fused_lm_head
