"""gem-bench's hook: the command that runs a RunSpec in TRL, and parity setting by setting."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.experiment.hardware import Hardware
from gem.experiment.runspec import RunSpec
from gem.training import launch, platforms
from gem.training.launch import Launch, Names, Parity
from gem.training.pairs import COMPUTED, ON_CPU, pairs
from gem.training.platforms import Platform
from gem_trl import SUPPORTED_TRL, check_trl
from gem_trl.adapters import BEGINNING
from gem_trl.experiment import CHECKPOINTS, FIELDS, OWN, SETTINGS, check_spec, optimiser_steps

SPEC_FILE = "spec.json"

_SEEDS = "seed: one stream of random numbers in a process; others than in other trainers"
_HARDWARE: dict[str, Names] = {
    "hardware.engine.tensor_parallel": "vllm_tensor_parallel_size",
    "hardware.engine.memory_share": "vllm_gpu_memory_utilization",
    "hardware.learner.checkpointing": "gradient_checkpointing",
}
_LACKING = {
    "nodes": "torchrun or accelerate launch is started on each by hand",
    "learner.tensor_parallel": "a process has whole matrices",
    "learner.sequence_parallel": "a process has whole rows",
}
_HOW: dict[str, Names] = {
    **launch.SHARED_GPUS,
    **FIELDS,
    **{key: f"GemSettings.{name}" for key, name in SETTINGS.items()},
    "hardware.executor": "GEM_EXECUTOR",
    "name": "in run.json",
    "seed": _SEEDS,
    "env": "train_dataset",
    "eval": "eval_dataset, eval_steps",
    "policy": "peft_config, for adapters",
    "policy.model": "model",
    "sampling.top_k": "top_k",
    "algorithm": "gae only",
    "algorithm.minibatches": "steps_per_generation, gradient_accumulation_steps",
    "algorithm.loss_aggregation": "loss_type=dapo",
    "algorithm.kl_coef": "beta, use_bias_correction_kl=False",
    "optimizer.type": "optim=adamw_torch, lr_scheduler_type=constant",
    "training.iterations": "max_steps",
    "training.tasks": "steps_per_generation",
    "training.precision": "bf16",
    **_HARDWARE,
    "hardware.gpus_per_node": "torchrun --nproc-per-node",
    "hardware.learner.pass_tokens": "per_device_train_batch_size",
    "hardware.learner.attention": "model_init_kwargs",
    "hardware.checkpoint_every": "save_steps",
    "hardware.logger": "report_to",
}


def compile_spec(spec: RunSpec, *, run_dir: Path, hardware: Hardware) -> Launch:
    """Return the command of a run; see `gem.training.launch.Adapter`.

    Raises:
        ConfigurationError: TRL cannot run this spec; the message names the key.
        MissingExtraError: TRL is not installed.
        UnsupportedVersionError: TRL is of an unsupported version.
    """
    check_trl()
    check_spec(spec)
    launch.check_hardware(spec, hardware, _LACKING)
    platform = platforms.of("trl", spec, run_dir, hardware, _gpu(spec))
    path = run_dir / SPEC_FILE
    settings = {**platform.settings, **_settings(spec, hardware)}
    settings = launch.with_native(settings, hardware, "trl")
    launch.refuse(spec, launch.no_correction(spec, OWN, not settings.get("use_vllm")))
    given = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    start = ["python"]
    if hardware.gpus > 1:
        start = ["torchrun", "--standalone", "--nproc-per-node", str(hardware.gpus)]
    return Launch.of(
        spec,
        [*start, "-m", "gem_trl.train", str(path), "--record", str(run_dir), *given],
        platform,
        launch.executor_variable(hardware),
        files={SPEC_FILE: json.dumps(spec.to_mapping(), indent=2) + "\n"},
        state=[CHECKPOINTS],
        parity=launch.parity(spec, _HOW, _departures(spec), hardware, "trl"),
    )


PAIRS = (
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs("gpus_per_node", {"sdpa", "fp32"}, "runs", "test_processes.py, on the CPU"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in TRL."""

adapter = launch.Adapter("trl", SUPPORTED_TRL, "dev", compile_spec, pairs=PAIRS)


def _gpu(spec: RunSpec) -> Platform:
    """Return what GPUs allow: vLLM, which samples in bf16, shares them with the trainer."""
    vllm = spec.training.precision == "bf16" and importlib.util.find_spec("vllm") is not None
    length = {"vllm_max_model_length": spec.policy.tokens} if vllm else {}
    return Platform({"use_vllm": vllm, **length})


def _settings(spec: RunSpec, hardware: Hardware) -> dict[str, Any]:
    """Return the fields of GRPOConfig that hardware decides; see `grpo_config`."""
    fields = launch.copied(spec, _HARDWARE, hardware)
    fitting = launch.pass_tokens(spec, hardware, fused=True)
    fields["per_device_train_batch_size"] = fitting // spec.policy.tokens
    if launch.attention(spec, hardware) != "sdpa":
        fields["model_init_kwargs"] = {"attn_implementation": launch.attention(spec, hardware)}
    fields["report_to"] = [*filter(None, [hardware.logger])]
    if hardware.checkpoint_every is not None:
        fields["save_steps"] = hardware.checkpoint_every * optimiser_steps(spec)
    return fields


def _departures(spec: RunSpec) -> Iterator[Parity]:
    yield from launch.departures(
        spec,
        _SEEDS,
        weights=launch.optimizer_weights("TRL loads them in fp32, passes are under autocast"),
        undecayed="biases and norms",
    )
    if spec.algorithm.minibatches > 1:
        how = (
            "TRL draws the rows of a minibatch at random, and divides by the mean number of tokens "
            "of the batch's minibatches"
        )
        yield Parity("algorithm.minibatches", "emulated", how)
    if spec.algorithm.entropy_coef:
        how = "the bonus is a mean of the forward passes' means, not of the tokens"
        yield Parity("algorithm.entropy_coef", "emulated", how)
    if spec.policy.lora_rank and spec.policy.lora_init is None:
        how = f"PEFT's, of the reference's distribution but another one; kept in {BEGINNING}/"
        yield Parity("policy.lora_init", "unmatched", how)
    if spec.algorithm.tis_clip is None:
        how = "off, although on by default in TRL where vLLM samples"
        yield Parity("vllm_importance_sampling_correction", "matched", how)
