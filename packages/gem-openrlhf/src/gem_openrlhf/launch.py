"""gem-bench's hook: a RunSpec becomes OpenRLHF's own command, `openrlhf.cli.train_ppo_ray`."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.training.launch import Knob, Launch, parity
from gem.training.runspec import RunSpec
from gem_openrlhf import SUPPORTED_OPENRLHF, check_openrlhf, worker
from gem_openrlhf.dataset import write
from gem_openrlhf.record import EVALUATED
from gem_openrlhf.settings import Settings

AGENT_FILE, TRAIN_FILE, EVAL_FILE = "agent.py", "train.jsonl", "eval.jsonl"

_LOGIT_FLOATS = 2**28
"""Most logits in one forward pass: 1 GiB as fp32."""

CPU_ENV = {
    "GEM_CPU": "1",  # see docs/openrlhf.md for what gem-cpu replaces and what that leaves untested
    "DS_ACCELERATOR": "cpu",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_ADDRESS": "local",  # a cluster of its own, which ends with the launcher
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_prestart_worker_first_driver": "0",  # idle processes, as many as there are CPUs
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment of a run without a GPU."""


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
        flags = {
            **_data(spec, run_dir),
            **_models(spec, run_dir),
            **_algorithm(spec),
            **_optimizer("actor", spec, spec.optimizer.lr),
            **_batches(spec),
            **(_one_cpu() if cpu else _one_gpu()),
        }
        if spec.algorithm.advantage == "gae":
            flags |= _optimizer("critic", spec, spec.algorithm.value_lr)
            flags |= {
                "critic.num_gpus_per_node": 1,
                "critic.value_clip": spec.algorithm.value_clip,
            }
        env = {worker.VARIABLE: worker.HOOK, "RAY_DEDUP_LOGS": "0"}
        if cpu:
            env |= _cpu_env(spec, run_dir)
        if Path(spec.policy.model).exists():
            env["HF_HUB_OFFLINE"] = "1"
        return Launch(
            argv=["python", "-m", "openrlhf.cli.train_ppo_ray", *_arguments(flags)],
            env=env,
            unset=["CUDA_VISIBLE_DEVICES"] if cpu else [],
            files=_files(spec, run_dir),
            state=[EVALUATED],
            parity=parity(spec, _HOW, _departures(spec, cpu)),
        )


adapter = OpenRLHFAdapter()


def _check(spec: RunSpec) -> None:
    """Refuse what OpenRLHF would silently do differently."""
    training, algorithm = spec.training, spec.algorithm
    if spec.policy.context != "chat":
        raise ConfigurationError(
            f"policy.context={spec.policy.context!r} makes several training rows of an episode; "
            "OpenRLHF knows one row per episode: only 'chat' is possible"
        )
    if algorithm.loss_aggregation != "token-mean":
        raise ConfigurationError(
            f"algorithm.loss_aggregation={algorithm.loss_aggregation!r}: OpenRLHF has 'token-mean' "
            "and a mean over rows of token means, but no sum over tokens"
        )
    rows = training.tasks * training.group_size
    if rows % algorithm.minibatches:
        raise ConfigurationError(
            f"algorithm.minibatches: {rows} episodes (training.tasks * training.group_size) do "
            f"not divide into {algorithm.minibatches} minibatches"
        )
    if spec.policy.lora_rank:
        raise ConfigurationError(
            f"policy.lora_rank={spec.policy.lora_rank}: gem-openrlhf trains all weights; set it "
            "to 0"
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
        "data.max_len": spec.policy.prompt_tokens + spec.policy.response_tokens,
        "train.seed": spec.seed,
    }
    if spec.eval:
        flags |= {
            "eval.dataset": str(run_dir / EVAL_FILE),
            "eval.steps": math.gcd(*(part.every for part in spec.eval)),
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
    size = spec.training
    rows = size.tasks * size.group_size
    step = rows // spec.algorithm.minibatches
    longest = spec.policy.prompt_tokens + spec.policy.response_tokens
    fitting = max(1, _LOGIT_FLOATS // (_vocabulary(spec.policy.model) * longest))
    micro = next(n for n in range(min(step, fitting), 0, -1) if step % n == 0)
    return {
        "rollout.batch_size": size.tasks,
        "rollout.n_samples_per_prompt": size.group_size,
        "rollout.micro_batch_size": micro,
        "train.batch_size": step,
        "train.micro_batch_size": micro,
        "train.num_episodes": 1,
    }


def _one_gpu() -> dict[str, Any]:
    """Everything on one GPU, one after the other."""
    return {
        "train.colocate_all": True,
        "vllm.enable_sleep": True,
        "ds.enable_sleep": True,
        "vllm.gpu_memory_utilization": 0.4,
        "vllm.sync_backend": "nccl",
    }


def _one_cpu() -> dict[str, Any]:
    return {
        "vllm.enforce_eager": True,
        "vllm.gpu_memory_utilization": 0.1,
        "vllm.sync_backend": "gloo",
    }


def _cpu_env(spec: RunSpec, run_dir: Path) -> dict[str, str]:
    # OpenRLHF takes a slot for each model and engine; they are only bookkeeping here.
    slots = 2 + (spec.algorithm.kl_coef > 0) + (spec.algorithm.advantage == "gae")
    # Ray's sockets live below this folder and their paths must stay under 108 characters.
    short = hashlib.sha256(str(run_dir).encode()).hexdigest()[:8]
    env = CPU_ENV | {
        "GEM_CPU_DTYPE": "float32" if spec.training.precision == "fp32" else "bfloat16",
        "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 8, "GPU": slots}),
        "RAY_TMPDIR": str(Path(tempfile.gettempdir()) / f"gem-{short}"),
        "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"),
    }
    # The folder is only named here: what lies in it is gem-cpu's.
    found = importlib.util.find_spec("gem_cpu")
    if found is None or found.origin is None:
        raise ConfigurationError("a run without a GPU needs gem-cpu: pip install gem-cpu")
    startup = Path(found.origin).with_name("startup")
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(startup), os.environ.get("PYTHONPATH")]))
    return env


def _vocabulary(model: str) -> int:
    config = Path(model) / "config.json"
    if not config.exists():
        return 2**17
    return int(json.loads(config.read_text(encoding="utf-8")).get("vocab_size", 2**17))


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
    if spec.sampling.top_k != 1:
        yield Knob("seed", "emulated", _HOW["seed"])
    if algorithm.kl_coef:
        how = "as a term of the loss (k3 estimator), not of the reward"
        yield Knob("algorithm.kl_coef", "emulated", how)
    if algorithm.minibatches > 1:
        how = "OpenRLHF draws the rows of a minibatch at random"
        yield Knob("algorithm.minibatches", "emulated", how)
    if spec.optimizer.weight_decay:
        how = "OpenRLHF leaves biases and norms out"
        yield Knob("optimizer.weight_decay", "emulated", how)
    if algorithm.advantage == "gae":
        how = "all tokens of a turn are trained towards the turn's target, not where it begins"
        yield Knob("algorithm.value_clip", "emulated", how)
        how = "a random linear layer, where the reference starts from zero"
        yield Knob("critic's initial head", "unmatched", how)
    if spec.training.precision == "fp32":
        how = "GEM_CPU_DTYPE of gem-cpu" if cpu else "OpenRLHF knows bf16 and fp16: trained in bf16"
        yield Knob("training.precision", "emulated" if cpu else "unmatched", how)
    else:
        how = "bf16 weights and gradients, fp32 in the optimiser (the reference: autocast)"
        yield Knob("training.precision", "emulated", how)
    common = math.gcd(*(part.every for part in spec.eval))
    for index, _ in enumerate(spec.eval):
        how = f"on everything at once every {common} iterations; not before the first"
        yield Knob(f"eval.{index}.every", "emulated", how)
