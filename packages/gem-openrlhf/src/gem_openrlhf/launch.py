"""gem-bench's hook: a RunSpec becomes OpenRLHF's own command, `openrlhf.cli.train_ppo_ray`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from gem.training import platforms
from gem.training.launch import (
    Knob,
    Launch,
    all_weights,
    forward_tokens,
    loss_departures,
    parity,
    refuse,
    sampling_departure,
    whole_minibatches,
)
from gem.training.platforms import Platform
from gem.training.runspec import RunSpec
from gem_openrlhf import worker
from gem_openrlhf.dataset import write
from gem_openrlhf.record import EVALUATED
from gem_openrlhf.settings import Settings
from gem_openrlhf.version import SUPPORTED_OPENRLHF, check_openrlhf

AGENT_FILE, TRAIN_FILE, EVAL_FILE = "agent.py", "train.jsonl", "eval.jsonl"


class OpenRLHFAdapter:
    """Compiles RunSpecs for OpenRLHF."""

    trainer = "openrlhf"
    supported = SUPPORTED_OPENRLHF
    venv = "openrlhf"

    def compile(self, spec: RunSpec, *, run_dir: Path, cpu: bool) -> Launch:
        """Return OpenRLHF's command for a spec; see `gem.training.launch.Adapter`.

        Raises:
            ConfigurationError: OpenRLHF cannot run this spec; the message names the key.
            MissingExtraError: OpenRLHF is not installed.
            UnsupportedVersionError: OpenRLHF is of an unsupported version.
        """
        check_openrlhf()
        _check(spec)
        platform = platforms.cpu("openrlhf", spec, run_dir) if cpu else _ONE_GPU
        flags = {
            **_data(spec, run_dir),
            **_models(spec, run_dir),
            **_algorithm(spec),
            **_optimizer("actor", spec, spec.optimizer.lr),
            **_batches(spec),
            **platform.settings,
        }
        if spec.algorithm.advantage == "gae":
            flags |= _optimizer("critic", spec, spec.algorithm.value_lr)
            flags |= {
                "critic.num_gpus_per_node": 1,
                "critic.value_clip": spec.algorithm.value_clip,
            }
        return Launch.of(
            spec,
            ["python", "-m", "openrlhf.cli.train_ppo_ray", *_arguments(flags)],
            platform,
            {worker.VARIABLE: worker.HOOK, "RAY_DEDUP_LOGS": "0"},
            files=_files(spec, run_dir),
            state=[EVALUATED],
            parity=parity(spec, _HOW, _departures(spec, cpu)),
        )


adapter = OpenRLHFAdapter()


def _check(spec: RunSpec) -> None:
    """Refuse what OpenRLHF would silently do differently."""
    refuse(
        spec,
        (
            "policy.context",
            spec.policy.context != "chat",
            "OpenRLHF knows one training row an episode, others than 'chat' make several",
        ),
        (
            "algorithm.loss_aggregation",
            spec.algorithm.loss_aggregation != "token-mean",
            "OpenRLHF has 'token-mean' and a mean over rows of token means, but no sum over tokens",
        ),
        whole_minibatches(spec),
        all_weights(spec),
    )


def _files(spec: RunSpec, run_dir: Path) -> dict[str, str]:
    files = {
        AGENT_FILE: _agent_file(spec, run_dir),
        TRAIN_FILE: write([spec.task_set.uri], evaluation=False),
    }
    if spec.eval:
        files[EVAL_FILE] = write([source.text for source in spec.evaluations], evaluation=True)
    return files


def _agent_file(spec: RunSpec, run_dir: Path) -> str:
    policy = spec.policy
    settings = Settings(
        advantage=spec.algorithm.advantage,
        task_order="file",
        system_prompt=policy.system_prompt,
        prompt_tokens=policy.prompt_tokens,
        turn_tokens=policy.turn_tokens,
        turns=policy.turns,
        top_k=spec.sampling.top_k,
        seed=spec.seed,
        max_failed_fraction=spec.training.max_failed_fraction,
        record_dir=str(run_dir),
    )
    known = {field.name: field.default for field in fields(Settings)}
    given = {key: getattr(settings, key) for key in known if getattr(settings, key) != known[key]}
    lines = "".join(f"        {key}={value!r},\n" for key, value in given.items())
    return (
        "from gem_openrlhf import GemAgentExecutor, Settings\n\n\n"
        "class AgentExecutor(GemAgentExecutor):\n"
        f"    settings = Settings(\n{lines}    )\n"
    )


def _data(spec: RunSpec, run_dir: Path) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "train.agent_func_path": str(run_dir / AGENT_FILE),
        "data.prompt_dataset": str(run_dir / TRAIN_FILE),
        "data.label_key": "label",
        "data.max_len": spec.policy.tokens,
        "train.seed": spec.seed,
    }
    if spec.eval:
        flags |= {
            "eval.dataset": str(run_dir / EVAL_FILE),
            "eval.steps": spec.eval_every,
            "eval.n_samples_per_prompt": 1,
            "ckpt.best_metric_key": "none",
        }
    return flags


def _models(spec: RunSpec, run_dir: Path) -> dict[str, Any]:
    return {
        "actor.model_name_or_path": spec.policy.model,
        # Flash attention is an extra that not every machine has; PyTorch's own always works.
        "ds.attn_implementation": "sdpa",
        "ds.zero_stage": 2,
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "vllm.tensor_parallel_size": 1,
        "rollout.temperature": spec.sampling.temperature,
        "rollout.top_p": spec.sampling.top_p,
        "ckpt.output_dir": str(run_dir / "model"),
        "ckpt.path": str(run_dir / "checkpoints"),
        "logger.tensorboard_dir": str(run_dir / "tensorboard"),
        "logger.wandb.run_name": spec.name,
    }


def _algorithm(spec: RunSpec) -> dict[str, Any]:
    algorithm = spec.algorithm
    flags: dict[str, Any] = {
        "algo.advantage.estimator": "gae" if algorithm.advantage == "gae" else "reinforce",
        "algo.advantage.gamma": algorithm.gamma,
        "algo.advantage.lambd": algorithm.lam,
        "actor.eps_clip": algorithm.clip,
        "actor.loss_agg_mode": algorithm.loss_aggregation,
        "train.max_epochs": algorithm.epochs,
        "algo.kl.init_coef": algorithm.kl_coef,
        # Weight 0 leaves the loss alone and logs the entropy.
        "actor.entropy_coef": algorithm.entropy_coef,
    }
    if algorithm.kl_coef:
        flags |= {"algo.kl.use_loss": True, "algo.kl.estimator": "k3"}
    return flags


def _optimizer(model: str, spec: RunSpec, lr: float) -> dict[str, Any]:
    o = spec.optimizer
    return {
        f"{model}.adam.lr": lr,
        f"{model}.adam.betas": [o.beta1, o.beta2],
        f"{model}.adam.eps": o.eps,
        f"{model}.adam.weight_decay": o.weight_decay,
        f"{model}.max_norm": o.grad_clip,
        f"{model}.lr_scheduler": "constant",
        f"{model}.lr_warmup_ratio": 0.0,
    }


def _batches(spec: RunSpec) -> dict[str, Any]:
    step = spec.episodes // spec.algorithm.minibatches
    fitting = max(1, forward_tokens(spec.policy.model) // spec.policy.tokens)
    micro = next(n for n in range(min(step, fitting), 0, -1) if step % n == 0)
    return {
        "rollout.batch_size": spec.training.tasks,
        "rollout.n_samples_per_prompt": spec.training.group_size,
        "rollout.micro_batch_size": micro,
        "train.batch_size": step,
        "train.micro_batch_size": micro,
        "train.num_episodes": 1,
    }


_ONE_GPU = Platform(
    {
        "train.colocate_all": True,
        "vllm.enable_sleep": True,
        "ds.enable_sleep": True,
        "vllm.gpu_memory_utilization": 0.4,
        "vllm.sync_backend": "nccl",
    }
)
"""Everything on one GPU, one after the other."""


def _arguments(flags: dict[str, Any]) -> list[str]:
    """Write flags as OpenRLHF's command line."""
    out = []
    for key, value in flags.items():
        if isinstance(value, bool):
            out += [f"--{key}"] if value else []
        elif isinstance(value, list):
            out += [f"--{key}", *map(str, value)]
        else:
            out += [f"--{key}", str(value)]
    return out


_HOW = {
    "name": "logger.wandb.run_name",
    "seed": "agent file: every turn is sampled with a seed of its own; other random numbers than "
    "in other trainers",
    "env": "data.prompt_dataset, agent file: task_order='file'",
    "eval": "eval.dataset",
    "policy.model": "actor.model_name_or_path",
    "policy.prompt_tokens": "agent file",
    "policy.response_tokens": "data.max_len less policy.prompt_tokens",
    "policy.turn_tokens": "agent file",
    "policy.turns": "agent file",
    "policy.context": "agent file",
    "policy.system_prompt": "agent file",
    "policy.lora_rank": "all weights",
    "policy.lora_alpha": "no adapters",
    "policy.lora_init": "no adapters",
    "sampling": "rollout.temperature, rollout.top_p",
    "sampling.top_k": "agent file",
    "algorithm.advantage": "agent file; algo.advantage.estimator decides whether there is a critic",
    "algorithm.gamma": "algo.advantage.gamma, per turn",
    "algorithm.lam": "algo.advantage.lambd, per turn",
    "algorithm.clip": "actor.eps_clip",
    "algorithm.epochs": "train.max_epochs",
    "algorithm.minibatches": "train.batch_size",
    "algorithm.loss_aggregation": "actor.loss_agg_mode",
    "algorithm.kl_coef": "algo.kl.init_coef",
    "algorithm.entropy_coef": "actor.entropy_coef",
    "algorithm.value_lr": "critic.adam.lr",
    "algorithm.value_clip": "critic.value_clip",
    "optimizer": "actor.adam, actor.max_norm, actor.lr_scheduler=constant",
    "training.iterations": "rows of data.prompt_dataset",
    "training.tasks": "rollout.batch_size",
    "training.group_size": "rollout.n_samples_per_prompt",
    "training.precision": "ds.param_dtype",
    "training.max_failed_fraction": "agent file",
}


def _departures(spec: RunSpec, cpu: bool) -> Iterator[Knob]:
    algorithm = spec.algorithm
    yield from sampling_departure(spec, _HOW["seed"])
    yield from loss_departures(spec)
    if algorithm.minibatches > 1:
        how = "OpenRLHF draws the rows of a minibatch at random"
        yield Knob("algorithm.minibatches", "emulated", how)
    if spec.optimizer.weight_decay:
        how = "OpenRLHF leaves biases and norms out"
        yield Knob("optimizer.weight_decay", "emulated", how)
    if algorithm.advantage == "gae":
        how = "all tokens of a turn are trained towards the turn's target, not where it begins"
        yield Knob("algorithm.value_clip", "emulated", how)
    if spec.training.precision == "fp32":
        how = "GEM_CPU_DTYPE of gem-cpu" if cpu else "OpenRLHF knows bf16 and fp16: trained in bf16"
        yield Knob("training.precision", "emulated" if cpu else "unmatched", how)
    else:
        how = "bf16 weights and gradients, fp32 in the optimiser (the reference: autocast)"
        yield Knob("training.precision", "emulated", how)
    for index, _ in enumerate(spec.eval):
        how = f"on everything at once every {spec.eval_every} iterations; not before the first"
        yield Knob(f"eval.{index}.every", "emulated", how)
