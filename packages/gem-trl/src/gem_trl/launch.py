"""gem-bench's hook: the command that runs a RunSpec in TRL, and parity setting by setting."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

from gem.training import launch, platforms
from gem.training.launch import Launch, Names, Parity
from gem.training.platforms import Platform
from gem.training.runspec import RunSpec
from gem_trl import SUPPORTED_TRL, check_trl
from gem_trl.adapters import BEGINNING
from gem_trl.experiment import CHECKPOINTS, FIELDS, SETTINGS, check_spec

SPEC_FILE = "spec.json"

_SEEDS = "seed: one stream of random numbers in a process; others than in other trainers"
_HOW: dict[str, Names] = {
    **FIELDS,
    **{key: f"GemSettings.{name}" for key, name in SETTINGS.items()},
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
}


class TRLAdapter:
    """Compiles RunSpecs for TRL."""

    trainer = "trl"
    supported = SUPPORTED_TRL
    venv = "dev"

    def compile(self, spec: RunSpec, *, run_dir: Path, cpu: bool) -> Launch:
        """Return the command of a run; see `gem.training.launch.Adapter`.

        Raises:
            ConfigurationError: TRL cannot run this spec; the message names the key.
            MissingExtraError: TRL is not installed.
            UnsupportedVersionError: TRL is of an unsupported version.
        """
        check_trl()
        check_spec(spec)
        platform = platforms.cpu("trl", spec, run_dir) if cpu else _gpu(spec)
        path = run_dir / SPEC_FILE
        given = [f"{key}={json.dumps(value)}" for key, value in platform.settings.items()]
        return Launch.of(
            spec,
            ["python", "-m", "gem_trl.train", str(path), "--record", str(run_dir), *given],
            platform,
            files={SPEC_FILE: json.dumps(spec.to_mapping(), indent=2) + "\n"},
            state=[CHECKPOINTS],
            parity=launch.parity(spec, _HOW, _departures(spec)),
        )


adapter = TRLAdapter()


def _gpu(spec: RunSpec) -> Platform:
    """Return one GPU's settings; vLLM, which samples in bf16, shares it with the trainer."""
    vllm = spec.training.precision == "bf16" and importlib.util.find_spec("vllm") is not None
    length = {"vllm_max_model_length": spec.policy.tokens} if vllm else {}
    return Platform({"gradient_checkpointing": True, "use_vllm": vllm, **length})


def _departures(spec: RunSpec) -> Iterator[Parity]:
    yield from launch.sampling_departure(spec, _SEEDS)
    yield from launch.loss_departures(spec, undecayed="biases and norms")
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
    yield from launch.evaluation_departures(spec)
    correction = "vllm_importance_sampling_correction"
    yield Parity(correction, "matched", "off, although on by default in TRL where vLLM samples")
