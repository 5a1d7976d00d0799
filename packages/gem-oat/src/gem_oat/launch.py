"""gem-bench's hook: a RunSpec becomes oat's own kind of command, `python -m gem_oat --flags`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.training import platforms
from gem.training.launch import (
    Knob,
    Launch,
    all_weights,
    evaluation_departures,
    loss_departures,
    parity,
    refuse,
    sampling_departure,
    whole_minibatches,
)
from gem.training.platforms import Platform
from gem.training.runspec import RunSpec
from gem_oat import SUPPORTED_OAT, check_oat

EPS = 1e-8
"""Of oat's optimiser, which has no flag for it."""


class OatAdapter:
    """Compiles RunSpecs for oat."""

    trainer = "oat"
    supported = SUPPORTED_OAT
    venv = "oat"

    def compile(self, spec: RunSpec, *, run_dir: Path, cpu: bool) -> Launch:
        """Return oat's command for a spec; see `gem.training.launch.Adapter`.

        Raises:
            ConfigurationError: oat cannot run this spec; the message names the key.
            MissingExtraError: oat is not installed.
            UnsupportedVersionError: oat is of an unsupported version.
        """
        check_oat()
        _check(spec)
        platform = platforms.cpu("oat", spec, run_dir) if cpu else _one_gpu(spec)
        flags = {
            **_gem(spec, run_dir),
            **_policy(spec),
            **_algorithm(spec),
            **_optimizer(spec),
            **_batches(spec),
            **_machine(spec, run_dir),
            **platform.settings,
        }
        argv = ["python", "-m", "gem_oat", *_arguments(flags)]
        departures = parity(spec, _HOW, _departures(spec))
        return Launch.of(spec, argv, platform, parity=departures)


adapter = OatAdapter()


def _check(spec: RunSpec) -> None:
    """Refuse what oat would silently do differently."""
    refuse(
        spec,
        whole_minibatches(spec),
        all_weights(spec),
        (
            "algorithm.entropy_coef",
            spec.algorithm.entropy_coef != 0,
            "oat's loss has no entropy bonus; set it to 0",
        ),
        (
            "optimizer.eps",
            spec.optimizer.eps != EPS,
            f"oat's optimiser has no flag for it; set it to {EPS:g}",
        ),
    )


def _gem(spec: RunSpec, run_dir: Path) -> dict[str, Any]:
    evals = [source.text for source in spec.evaluations]
    flags: dict[str, Any] = {
        "gem_tasks": spec.task_set.uri,
        "gem_advantage": spec.algorithm.advantage,
        "gem_loss_aggregation": spec.algorithm.loss_aggregation,
        "gem_context": spec.policy.context,
        "gem_seed": spec.seed,
        "gem_max_failed_fraction": spec.training.max_failed_fraction,
        "gem_record_dir": str(run_dir),
        "eval_steps": spec.eval_every if evals else -1,
    }
    if evals:
        flags["gem_eval"] = " ".join(evals)
    if spec.policy.turns is not None:
        flags["gem_turns"] = spec.policy.turns
    if spec.policy.system_prompt is not None:
        flags["gem_system_prompt"] = spec.policy.system_prompt
    return flags


def _policy(spec: RunSpec) -> dict[str, Any]:
    policy, sampling = spec.policy, spec.sampling
    return {
        "pretrain": policy.model,
        "prompt_max_length": policy.prompt_tokens,
        "max_model_len": policy.tokens,
        "generate_max_length": policy.turn_tokens,
        "eval_generate_max_length": policy.turn_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": spec.seed,
    }


def _algorithm(spec: RunSpec) -> dict[str, Any]:
    algorithm = spec.algorithm
    return {
        "critic_type": "ppo" if algorithm.advantage == "gae" else "drgrpo",
        "gamma": algorithm.gamma,
        "lam": algorithm.lam,
        "cliprange": algorithm.clip,
        "cliprange_value": algorithm.value_clip,
        "critic_learning_rate": algorithm.value_lr,
        "num_ppo_epochs": algorithm.epochs,
        "beta": algorithm.kl_coef,
        "tis_c": "None",
    }


def _optimizer(spec: RunSpec) -> dict[str, Any]:
    o = spec.optimizer
    return {
        "learning_rate": o.lr,
        "lr_scheduler": "constant",
        "lr_warmup_ratio": 0,
        "adam_beta_1": o.beta1,
        "adam_beta_2": o.beta2,
        "l2": o.weight_decay,
        "max_norm": o.grad_clip,
        "zero_stage": 2,
    }


def _batches(spec: RunSpec) -> dict[str, Any]:
    size = spec.training
    return {
        "rollout_batch_size": size.tasks,
        "num_samples": size.group_size,
        "max_train": size.tasks * size.iterations,
        "train_batch_size": spec.episodes // spec.algorithm.minibatches,
    }


def _machine(spec: RunSpec, run_dir: Path) -> dict[str, Any]:
    return {
        "gpus": 1,
        "collocate": True,
        "bf16": spec.training.precision == "bf16",
        "save_path": str(run_dir / "oat"),
        "wb_run_name": spec.name,
    }


def _one_gpu(spec: RunSpec) -> Platform:
    bf16 = spec.training.precision == "bf16"
    flash = bf16 and importlib.util.find_spec("flash_attn") is not None
    return Platform({"flash_attn": flash, "vllm_sleep": True, "vllm_gpu_ratio": 0.45})


def _arguments(flags: dict[str, Any]) -> list[str]:
    """Write flags as oat's command line."""
    out = []
    for key, value in flags.items():
        if isinstance(value, bool):
            out.append(f"--{key}" if value else f"--no-{key}")
        else:
            out.append(f"--{key}={value}")
    return out


_HOW = {
    "name": "wb_run_name",
    "seed": "gem_seed: every turn is sampled with a seed of its own; other random numbers than in "
    "other trainers",
    "env": "gem_tasks",
    "eval": "gem_eval, eval_steps",
    "policy.model": "pretrain",
    "policy.prompt_tokens": "prompt_max_length",
    "policy.response_tokens": "max_model_len less prompt_max_length",
    "policy.turn_tokens": "generate_max_length",
    "policy.turns": "gem_turns",
    "policy.context": "gem_context",
    "policy.system_prompt": "gem_system_prompt",
    "policy.lora_rank": "all weights",
    "policy.lora_alpha": "no adapters",
    "policy.lora_init": "no adapters",
    "sampling": "temperature, top_p, top_k",
    "algorithm.advantage": "gem_advantage; critic_type decides whether there is a critic",
    "algorithm.gamma": "gamma, per turn",
    "algorithm.lam": "lam, per turn",
    "algorithm.clip": "cliprange",
    "algorithm.epochs": "num_ppo_epochs",
    "algorithm.minibatches": "train_batch_size",
    "algorithm.loss_aggregation": "gem_loss_aggregation",
    "algorithm.kl_coef": "beta",
    "algorithm.entropy_coef": "no bonus",
    "algorithm.value_lr": "critic_learning_rate",
    "algorithm.value_clip": "cliprange_value",
    "optimizer": "learning_rate, adam_beta_1, adam_beta_2, l2, max_norm, lr_scheduler=constant",
    "optimizer.eps": "oat's own",
    "training.iterations": "max_train",
    "training.tasks": "rollout_batch_size",
    "training.group_size": "num_samples",
    "training.precision": "bf16",
    "training.max_failed_fraction": "gem_max_failed_fraction",
}


def _departures(spec: RunSpec) -> Iterator[Knob]:
    yield from sampling_departure(spec, _HOW["seed"])
    yield from loss_departures(spec)
    if spec.optimizer.weight_decay:
        yield Knob("optimizer.weight_decay", "emulated", "oat leaves biases and norms out")
    if spec.training.precision == "bf16":
        how = "bf16 weights and gradients, fp32 in the optimiser (the reference: autocast)"
        yield Knob("training.precision", "emulated", how)
    yield from evaluation_departures(spec)
