"""gem-bench's hook: a RunSpec becomes `python -m gem_trl.train key=value ...`."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.training import launch, platforms
from gem.training.launch import Knob, Launch, Names
from gem.training.platforms import Platform
from gem.training.runspec import RunSpec
from gem_trl import SUPPORTED_TRL, check_trl
from gem_trl.config import CHECKPOINTS
from gem_trl.settings import NO_CRITIC


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
        _check(spec)
        platform = platforms.cpu("trl", spec, run_dir) if cpu else _gpu(spec)
        settings = {
            **launch.copied(spec, _NAMES),
            **_ALWAYS,
            **_computed(spec, run_dir),
            **platform.settings,
        }
        arguments = [f"{key}={_text(value)}" for key, value in settings.items()]
        return Launch.of(
            spec,
            ["python", "-m", "gem_trl.train", *arguments],
            platform,
            state=[CHECKPOINTS],
            parity=launch.parity(spec, _HOW, _departures(spec, settings)),
        )


adapter = TRLAdapter()


def _check(spec: RunSpec) -> None:
    """Refuse what TRL cannot do, or would silently do differently."""
    policy, algorithm, training = spec.policy, spec.algorithm, spec.training
    rows = "TRL's batches have one row per episode, other contexts than 'chat' make several"
    alone = f"{algorithm.advantage} compares the episodes of a task; set it to 2 or more"
    comparing = algorithm.advantage in ("grpo", "rloo")
    launch.refuse(
        spec,
        ("policy.context", policy.context != "chat", rows),
        ("algorithm.advantage", algorithm.advantage == "gae", NO_CRITIC),
        ("training.group_size", comparing and training.group_size < 2, alone),
        ("training.tasks", spec.episodes < 2, "TRL refuses a batch of one episode"),
        launch.token_mean(spec, "TRL"),
        launch.whole_minibatches(spec),
        launch.all_weights(spec),
    )


_NAMES: dict[str, Names] = {
    "seed": "trl.seed",
    "policy.model": "model",
    "sampling.temperature": "trl.temperature",
    "sampling.top_p": "trl.top_p",
    "algorithm.clip": "trl.epsilon",
    "algorithm.kl_coef": "trl.beta",
    "algorithm.entropy_coef": "trl.entropy_coef",
    "optimizer.lr": "trl.learning_rate",
    "optimizer.beta1": "trl.adam_beta1",
    "optimizer.beta2": "trl.adam_beta2",
    "optimizer.eps": "trl.adam_epsilon",
    "optimizer.weight_decay": "trl.weight_decay",
    "optimizer.grad_clip": "trl.max_grad_norm",
    **{
        f"{table}.{key}": key
        for table, keys in {
            "policy": "prompt_tokens response_tokens turn_tokens turns context system_prompt",
            "algorithm": "advantage gamma epochs minibatches",
            "training": "iterations tasks group_size max_failed_fraction",
        }.items()
        for key in keys.split()
    },
}
"""Keys of a run that have the value of a setting of the spec."""

_ALWAYS = {
    "trl.loss_type": "dapo",  # the token mean over a whole batch and all processes
    "trl.lr_scheduler_type": "constant",
    "trl.optim": "adamw_torch",
    "trl.disable_dropout": True,
    "trl.use_bias_correction_kl": False,
    "trl.vllm_importance_sampling_correction": False,
    "trl.save_total_limit": 1,
    "trl.disable_tqdm": True,
}
"""Keys of every run. TRL's defaults for some of them would train on something else."""

_SEEDS = "trl.seed: one stream of random numbers in a process; others than in other trainers"
_HOW: dict[str, Names] = {
    **launch.ALL_WEIGHTS,
    **_NAMES,
    "name": "in run.json",
    "seed": _SEEDS,
    "env": "train",
    "eval": "eval, eval_every",
    "sampling.top_k": "trl.top_k",
    "algorithm.lam": "gae only",
    "algorithm.loss_aggregation": "trl.loss_type=dapo",
    "algorithm.kl_coef": "trl.beta, trl.use_bias_correction_kl=false",
    "algorithm.value_lr": "gae only",
    "algorithm.value_clip": "gae only",
    "optimizer.type": "trl.optim=adamw_torch, trl.lr_scheduler_type=constant",
    "training.precision": "trl.bf16",
}


def _computed(spec: RunSpec, run_dir: Path) -> dict[str, Any]:
    """Return the keys whose values are not in the spec as they are."""
    settings = {
        "train": spec.task_set.uri,
        "record_dir": str(run_dir),
        "forward_rows": max(1, launch.forward_tokens(spec.policy.model) // spec.policy.tokens),
        "trl.top_k": max(0, spec.sampling.top_k),
        "trl.bf16": spec.training.precision == "bf16",
    }
    if spec.eval:
        evals = [source.text for source in spec.evaluations]
        settings |= {"eval": " ".join(evals), "eval_every": spec.eval_every}
    return settings


def _gpu(spec: RunSpec) -> Platform:
    """One GPU: vLLM, if it is there, in the trainer's process; it serves weights in bf16."""
    vllm = spec.training.precision == "bf16" and importlib.util.find_spec("vllm") is not None
    settings = {"trl.gradient_checkpointing": True, "trl.use_vllm": vllm}
    if vllm:
        settings["trl.vllm_max_model_length"] = spec.policy.tokens
    return Platform(settings)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _departures(spec: RunSpec, settings: dict[str, Any]) -> Iterator[Knob]:
    yield from launch.sampling_departure(spec, _SEEDS)
    yield from launch.loss_departures(spec, undecayed="biases and norms")
    if spec.algorithm.minibatches > 1:
        how = (
            "TRL draws the rows of a minibatch at random, and divides its loss by the batch's "
            "tokens over the number of minibatches"
        )
        yield Knob("algorithm.minibatches", "emulated", how)
    step = spec.episodes // spec.algorithm.minibatches
    if spec.algorithm.entropy_coef and settings["forward_rows"] < step:
        how = "the bonus is a mean over forward passes, not over tokens"
        yield Knob("algorithm.entropy_coef", "emulated", how)
    yield from launch.evaluation_departures(spec)
    if settings.get("trl.use_vllm"):
        how = "off: trl.vllm_importance_sampling_correction=false, which is on by default in TRL"
        yield Knob("importance sampling correction", "matched", how)
