"""gem-bench's hook: a RunSpec becomes a direct run, `python -m gem_tinker.train ...`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.training import platforms
from gem.training.launch import (
    Knob,
    Launch,
    evaluation_departures,
    parity,
    refuse,
    sampling_departure,
)
from gem.training.platforms import Platform
from gem.training.runspec import RunSpec
from gem_tinker import SUPPORTED_TINKER, check_tinker
from gem_tinker.checkpoints import CHECKPOINTS

ALPHA = 32.0
"""Every Tinker server scales adapters by 32 / rank."""


class TinkerAdapter:
    """Compiles RunSpecs for Tinker servers."""

    trainer = "tinker"
    supported = SUPPORTED_TINKER
    venv = "tinker"

    def compile(self, spec: RunSpec, *, run_dir: Path, cpu: bool) -> Launch:
        """Return the command of a direct run; see `gem.training.launch.Adapter`.

        With `cpu` the run gets a server of its own on this machine. Otherwise it talks to the
        server that `TINKER_BASE_URL` names, by default the hosted service.

        Raises:
            ConfigurationError: A Tinker server cannot run this spec; the message names the key.
            MissingExtraError: The SDK is not installed.
            UnsupportedVersionError: The SDK is of an unsupported version.
        """
        check_tinker()
        _check(spec)
        platform = platforms.cpu("tinker", spec, run_dir) if cpu else Platform()
        settings = {**_settings(spec), "record_dir": str(run_dir), **platform.settings}
        arguments = [f"{key}={_text(value)}" for key, value in settings.items()]
        return Launch.of(
            spec,
            ["python", "-m", "gem_tinker.train", *arguments],
            platform,
            state=[CHECKPOINTS],
            parity=parity(spec, _HOW, _departures(spec, cpu)),
        )


adapter = TinkerAdapter()


def _check(spec: RunSpec) -> None:
    """Refuse what a Tinker server cannot do, or would silently do differently."""
    policy, algorithm, sampling = spec.policy, spec.algorithm, spec.sampling
    refuse(
        spec,
        (
            "policy.lora_rank",
            policy.lora_rank == 0,
            "a Tinker server trains adapters, never all weights; set it to 8 or more",
        ),
        (
            "policy.lora_alpha",
            policy.lora_alpha != ALPHA,
            f"it is {ALPHA:g} on every Tinker server",
        ),
        (
            "policy.lora_init",
            policy.lora_init is not None and not policy.lora_init.startswith("tinker://"),
            "a Tinker server begins with weights that it has saved itself, tinker://...",
        ),
        (
            "algorithm.advantage",
            algorithm.advantage == "gae",
            "a Tinker server has no value head to train a critic with; choose rebn, grpo, rloo or "
            "reinforce",
        ),
        (
            "algorithm.kl_coef",
            algorithm.kl_coef != 0,
            "the server's losses have no KL penalty; set it to 0",
        ),
        (
            "algorithm.entropy_coef",
            algorithm.entropy_coef != 0,
            "the server's losses have no entropy bonus; set it to 0",
        ),
        (
            "sampling.temperature",
            sampling.temperature != 1,
            "the server's losses take log-probabilities at temperature 1",
        ),
    )


def _settings(spec: RunSpec) -> dict[str, Any]:
    policy, algorithm, optimizer, size = spec.policy, spec.algorithm, spec.optimizer, spec.training
    evals = [source.text for source in spec.evaluations]
    settings: dict[str, Any] = {
        "model": policy.model,
        "train": spec.task_set.uri,
        "iterations": size.iterations,
        "tasks": size.tasks,
        "group_size": size.group_size,
        "max_failed_fraction": size.max_failed_fraction,
        "context": policy.context,
        "prompt_tokens": policy.prompt_tokens,
        "response_tokens": policy.response_tokens,
        "turn_tokens": policy.turn_tokens,
        "seed": spec.seed,
        "top_p": spec.sampling.top_p,
        "top_k": spec.sampling.top_k,
        "lora_rank": policy.lora_rank,
        "lora_seed": spec.seed,
        "advantage": algorithm.advantage,
        "gamma": algorithm.gamma,
        "loss_fn": "ppo",
        "clip": algorithm.clip,
        "loss_aggregation": algorithm.loss_aggregation,
        "epochs": algorithm.epochs,
        "minibatches": algorithm.minibatches,
        "lr": optimizer.lr,
        "beta1": optimizer.beta1,
        "beta2": optimizer.beta2,
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "grad_clip": optimizer.grad_clip,
    }
    optional = {
        "turns": policy.turns,
        "system_prompt": policy.system_prompt,
        "init": policy.lora_init,
    }
    settings |= {key: value for key, value in optional.items() if value is not None}
    if evals:
        settings |= {"eval": " ".join(evals), "eval_every": spec.eval_every}
    return settings


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_HOW = {
    "name": "in run.json",
    "seed": "seed: every turn is sampled with a seed of its own; other random numbers than in "
    "other trainers",
    "env": "train",
    "eval": "eval, eval_every",
    "policy.model": "model",
    "policy.prompt_tokens": "prompt_tokens",
    "policy.response_tokens": "response_tokens",
    "policy.turn_tokens": "turn_tokens",
    "policy.turns": "turns",
    "policy.context": "context",
    "policy.system_prompt": "system_prompt",
    "policy.lora_rank": "lora_rank",
    "policy.lora_alpha": "the server's own",
    "policy.lora_init": "init",
    "sampling": "temperature, top_p, top_k",
    "algorithm.advantage": "advantage",
    "algorithm.gamma": "gamma, per turn",
    "algorithm.lam": "gae only",
    "algorithm.clip": "loss_fn=ppo with clip",
    "algorithm.epochs": "epochs",
    "algorithm.minibatches": "minibatches",
    "algorithm.loss_aggregation": "a factor in the advantages of each datum",
    "algorithm.kl_coef": "no penalty",
    "algorithm.entropy_coef": "no bonus",
    "algorithm.value_lr": "gae only",
    "algorithm.value_clip": "gae only",
    "optimizer": "AdamParams",
    "training.iterations": "iterations",
    "training.tasks": "tasks",
    "training.group_size": "group_size",
    "training.precision": "of the model's files, on gem-cpu's server",
    "training.max_failed_fraction": "max_failed_fraction",
}


def _departures(spec: RunSpec, cpu: bool) -> Iterator[Knob]:
    yield from sampling_departure(spec, _HOW["seed"])
    if spec.sampling.top_k != 1:
        how = "ratios are to the sampler's log-probabilities, not to recomputed ones"
        if spec.sampling.top_p < 1 or spec.sampling.top_k > 1:
            yield Knob("algorithm.clip", "emulated", how)
    if spec.policy.lora_init is None:
        how = "the server's own, from the same seed; another one than the reference's"
        yield Knob("policy.lora_init", "unmatched", how)
    if not cpu:
        how = "the server decides"
        yield Knob("training.precision", "unmatched", how)
        how = "AdamParams.grad_clip_norm, which SkyRL 0.4 ignores (gem-cpu's server does not)"
        yield Knob("optimizer.grad_clip", "emulated", how)
    elif spec.training.precision == "bf16":
        how = "the server computes in the precision of the model's files"
        yield Knob("training.precision", "unmatched", how)
    yield from evaluation_departures(spec)
