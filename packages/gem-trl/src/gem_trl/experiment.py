"""A RunSpec in TRL's terms: what is refused, the trainer's settings, and its GRPOConfig."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.experiment.hardware import Hardware
from gem.experiment.runspec import RunSpec
from gem.training import launch
from gem.training.settings import check_group_size
from gem_trl.settings import NO_CRITIC, ONE_ROW, GemSettings

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints, in the record's."""

PEFT = "low-rank adapters are PEFT's: pip install 'gem-trl[peft]'"
OWN = "TRL corrects what vLLM samples, and here its own model does"
BASE = "with an adapter to begin with, TRL's penalty is to the model without it; set it to 0"

FIELDS: dict[str, launch.Names] = {
    "seed": "seed",
    "sampling.temperature": "temperature",
    "sampling.top_p": "top_p",
    "policy.turn_tokens": "max_completion_length",
    "algorithm.clip": "epsilon",
    "algorithm.epochs": "num_iterations",
    "algorithm.kl_coef": "beta",
    "algorithm.entropy_coef": "entropy_coef",
    "algorithm.tis_clip": "vllm_importance_sampling_clip_max",
    "optimizer.lr": "learning_rate",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.eps": "adam_epsilon",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.grad_clip": "max_grad_norm",
}
"""GRPOConfig's fields with the value of a setting."""

SETTINGS = launch.namesakes(GemSettings)
"""Settings of the trainer with the value of a setting."""


def check_spec(spec: RunSpec) -> None:
    """Refuse what TRL cannot do, or would silently do differently.

    Raises:
        ConfigurationError: The message names the key.
    """
    policy, algorithm = spec.policy, spec.algorithm
    launch.refuse(
        spec,
        *policy.several_rows(ONE_ROW, "policy."),
        ("policy.lora_rank", policy.lora_rank > 0 and find_spec("peft") is None, PEFT),
        ("algorithm.advantage", algorithm.estimator.needs_critic, NO_CRITIC),
        ("algorithm.kl_coef", policy.lora_init is not None and algorithm.kl_coef > 0, BASE),
        ("training.tasks", spec.episodes < 2, "TRL refuses a batch of one episode"),
        launch.token_mean(spec, "TRL"),
        launch.whole_minibatches(spec),
    )
    check_group_size(algorithm.advantage, "training.group_size", spec.training.group_size)


def gem_settings(spec: RunSpec, folder: Path) -> GemSettings:
    """Return the trainer's settings of an experiment with its record in a folder."""
    corrected = spec.algorithm.tis_clip is not None
    copied = launch.copied(spec, SETTINGS)
    return GemSettings(record_dir=str(folder), importance_sampling=corrected, **copied)


def grpo_config(spec: RunSpec, folder: Path, processes: int, given: Mapping[str, Any]) -> Any:
    """Return the GRPOConfig of an experiment.

    Args:
        spec: The experiment, which `check_spec` accepts.
        folder: Of the record.
        processes: Number of processes that train.
        given: Further fields, which have no effect on what is learned. A
            `per_device_train_batch_size` is the most episodes of a forward pass.

    Raises:
        ConfigurationError: The episodes of a batch do not divide among processes and minibatches,
            a field is unknown or follows from the experiment, or GRPOConfig refuses a value.
    """
    from trl import GRPOConfig

    launch.refuse(spec, launch.no_correction(spec, OWN, not given.get("use_vllm")))
    most = launch.pass_tokens(spec, Hardware()) // spec.policy.tokens
    values = {
        "output_dir": str(folder / CHECKPOINTS),
        "report_to": [],
        "disable_tqdm": True,
        "save_steps": 10 * optimiser_steps(spec),
        "save_total_limit": 1,
        "per_device_train_batch_size": most,
        "per_device_eval_batch_size": 64,
        **given,
    }
    decided = _decided(spec, processes, values.pop("per_device_train_batch_size"))
    if both := ", ".join(values.keys() & decided.keys()):
        raise ConfigurationError(f"GRPOConfig: the experiment decides {both}; leave it out")
    try:
        return GRPOConfig(**values, **decided)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"GRPOConfig: {error}") from error


def optimiser_steps(spec: RunSpec) -> int:
    """Return the optimiser steps of an iteration."""
    return spec.algorithm.epochs * spec.algorithm.minibatches


def _decided(spec: RunSpec, processes: int, most: int) -> dict[str, Any]:
    """Return the fields that follow from an experiment; `most` episodes fit a forward pass."""
    minibatches, size = spec.algorithm.minibatches, spec.training.group_size
    rows, left = divmod(spec.episodes, processes * minibatches)
    if left:
        raise ConfigurationError(
            f"training.tasks * training.group_size: {spec.episodes} episodes do not divide into "
            f"{minibatches} minibatches for {processes} processes"
        )
    forward = next(n for n in range(min(rows, most), 0, -1) if rows % n == 0)
    fields: dict[str, Any] = {
        **launch.copied(spec, FIELDS),
        # TRL refuses groups of one; GemGRPOTrainer corrects it when GRPOConfig is made.
        "num_generations": size if size > 1 else spec.episodes,
        "num_generations_eval": 1,
        "per_device_train_batch_size": forward,
        "gradient_accumulation_steps": rows // forward,
        "steps_per_generation": minibatches * rows // forward,
        "max_steps": spec.training.iterations * optimiser_steps(spec),
        "top_k": max(spec.sampling.top_k, 0),
        "bf16": spec.training.precision == "bf16",
        "loss_type": "dapo",  # the token mean of a batch, over all forward passes and processes
        "optim": "adamw_torch",
        "lr_scheduler_type": "constant",
        "shuffle_dataset": False,
        "disable_dropout": True,
        "use_bias_correction_kl": False,
        "vllm_importance_sampling_correction": spec.algorithm.tis_clip is not None,
        "vllm_importance_sampling_mode": "token_truncate",
        "logging_steps": 1,
    }
    if spec.eval:
        fields |= {"eval_strategy": "steps", "eval_on_start": True}
        fields["eval_steps"] = spec.eval_every * optimiser_steps(spec)
    return fields
