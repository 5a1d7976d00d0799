"""gem-bench's hook: a RunSpec becomes oat's own kind of command, `python -m gem_oat --flags`."""

from __future__ import annotations

import json
from itertools import starmap
from pathlib import Path
from typing import Any

from gem.experiment.hardware import Hardware, logit_scales
from gem.experiment.runspec import RunSpec, SamplingPart
from gem.training import launch, platforms
from gem.training.pairs import COMPUTED, ON_CPU, pairs
from gem.training.settings import Settings
from gem_oat import SUPPORTED_OAT, check_oat


def compile_spec(spec: RunSpec, *, run_dir: Path, hardware: Hardware) -> launch.Launch:
    """Return oat's command for a spec; see `gem.training.launch.Adapter`.

    Raises:
        ConfigurationError: oat cannot run this spec; the message names the key.
        MissingExtraError: oat is not installed.
        UnsupportedVersionError: oat is of an unsupported version.
    """
    check_oat()
    _check(spec, hardware)
    platform = platforms.of("oat", spec, run_dir, hardware, _SHARED_GPUS)
    flags = _computed(spec, run_dir, hardware) | platform.settings
    fused = bool(flags["use_fused_lm_head"])
    copied = launch.copied(spec, _NAMES, hardware, fused=fused)
    flags = launch.with_native(flags | copied, hardware, "oat")
    argv = ["python", "-m", "gem_oat", *starmap(_argument, flags.items())]
    how = launch.ALL_WEIGHTS | launch.SHARED_GPUS | _NAMES | _HOW
    departures = launch.departures(
        spec,
        weights=launch.optimizer_weights("DeepSpeed's ZeRO keeps them beside those in bf16"),
        bf16=_BF16,
        undecayed="biases and norms",
    )
    parity = launch.parity(spec, how, departures, hardware, "oat")
    return launch.Launch.of(spec, argv, platform, parity=parity, state=["oat/checkpoints"])


PAIRS = (
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs("gpus_per_node", {"sdpa", "fp32"}, "runs", "test_real_runs.py, on the CPU"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in oat."""

adapter = launch.Adapter("oat", SUPPORTED_OAT, "oat", compile_spec, True, pairs=PAIRS)


def _check(spec: RunSpec, hardware: Hardware) -> None:
    """Refuse what oat would silently do differently."""
    no_bonus = "oat's loss has no entropy bonus; set it to 0"
    raw = "oat's engine reports log-probabilities at temperature 1, before top-k and top-p"
    launch.refuse(
        spec,
        launch.whole_minibatches(spec),
        launch.all_weights(spec),
        ("algorithm.entropy_coef", spec.algorithm.entropy_coef != 0, no_bonus),
        ("optimizer.eps", spec.optimizer.eps != 1e-8, "oat's optimiser has 1e-8, and no flag"),
        launch.no_correction(spec, raw, spec.sampling != SamplingPart()),
    )
    launch.check_hardware(spec, hardware, _LACKING)


_BF16 = "bf16 weights and gradients, fp32 in the optimiser"
_LACKING = {
    "nodes": "groups of nodes are started by hand (--group_rank, --master_addr)",
    "engine.tensor_parallel": "oat has an engine on each GPU",
    "learner.tensor_parallel": "DeepSpeed's ZeRO divides no matrices",
    "learner.sequence_parallel": "oat's learner takes whole rows",
}

_NAMES: dict[str, launch.Names] = {
    **launch.namesakes(Settings, "gem_{}"),
    "name": "wb_run_name",
    "seed": ("gem_seed", "seed"),
    "policy.model": "pretrain",
    "policy.prompt_tokens": "prompt_max_length",
    "policy.turn_tokens": ("generate_max_length", "eval_generate_max_length"),
    "sampling.temperature": "temperature",
    "sampling.top_p": "top_p",
    "sampling.top_k": "top_k",
    "algorithm.advantage": "gem_advantage",
    "algorithm.gamma": "gamma",
    "algorithm.lam": "lam",
    "algorithm.clip": "cliprange",
    "algorithm.epochs": "num_ppo_epochs",
    "algorithm.loss_aggregation": "gem_loss_aggregation",
    "algorithm.kl_coef": "beta",
    "algorithm.tis_clip": "tis_c",
    "algorithm.value_lr": "critic_learning_rate",
    "algorithm.value_clip": "cliprange_value",
    "optimizer.lr": "learning_rate",
    "optimizer.beta1": "adam_beta_1",
    "optimizer.beta2": "adam_beta_2",
    "optimizer.weight_decay": "l2",
    "optimizer.grad_clip": "max_norm",
    "training.tasks": "rollout_batch_size",
    "training.group_size": "num_samples",
    "hardware.gpus_per_node": "gpus",
    "hardware.engine.memory_share": "vllm_gpu_ratio",
    "hardware.learner.pass_tokens": "gem_forward_tokens",
    "hardware.learner.checkpointing": "gradient_checkpointing",
    "hardware.learner.offload": "adam_offload",
    "hardware.checkpoint_every": "save_steps",
}
"""oat's or GEM's flags that have the value of a setting of the spec."""

_HOW = {
    "env": "gem_tasks",
    "eval": "gem_eval, eval_steps",
    "policy.response_tokens": "max_model_len less prompt_max_length",
    "algorithm.advantage": "gem_advantage; critic_type decides whether there is a critic",
    "algorithm.minibatches": "train_batch_size",
    "algorithm.entropy_coef": "no bonus",
    "optimizer": "oat's own, lr_scheduler=constant",
    "training.iterations": "max_train",
    "training.precision": "bf16",
    "hardware.checkpoint_every": "save_steps, gem_resume",
    "hardware.learner.attention": "flash_attn",
    "hardware.logger": "use_wb",
}
"""How the other settings reach oat, and more about some."""


def _computed(spec: RunSpec, run_dir: Path, hardware: Hardware) -> dict[str, Any]:
    """Return the flags whose values are computed, or the same in every run."""
    size = spec.training
    flags = {
        "gem_tasks": spec.task_set.uri,
        "max_model_len": spec.policy.tokens,
        "critic_type": "ppo" if spec.algorithm.estimator.needs_critic else "drgrpo",
        "tis_c": "None",
        "lr_scheduler": "constant",
        "lr_warmup_ratio": 0,
        "zero_stage": 2,
        "max_train": size.tasks * size.iterations,
        "train_batch_size": spec.episodes // spec.algorithm.minibatches,
        "collocate": True,
        "use_fused_lm_head": not logit_scales(spec.policy.model),
        "flash_attn": launch.attention(spec, hardware) == "flash_attention_2",
        "gem_resume": hardware.checkpoint_every is not None,
        "use_wb": hardware.logger == "wandb",
        "bf16": size.precision == "bf16",
        "eval_steps": spec.eval_every or -1,
        "gem_record_dir": run_dir,
        "save_path": run_dir / "oat",
    }
    if spec.eval:
        flags["gem_eval"] = " ".join(source.text for source in spec.evaluations)
    return flags


_SHARED_GPUS = platforms.Platform(
    {"vllm_sleep": True, "vllm_gpu_ratio": 0.45, "enable_prefix_caching": True}
)
"""Actors and learners on the same GPUs, one after the other."""


def _argument(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"
