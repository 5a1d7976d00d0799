"""gem-bench's hook: a RunSpec becomes OpenRLHF's own command, `openrlhf.cli.train_ppo_ray`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.experiment.hardware import Hardware
from gem.experiment.runspec import RunSpec
from gem.experiment.tasksets import dataset_text
from gem.training import launch, platforms
from gem.training.pairs import COMPUTED, ON_CPU, pairs
from gem.training.platforms import Platform
from gem_openrlhf import worker
from gem_openrlhf.dataset import line
from gem_openrlhf.record import EVALUATED
from gem_openrlhf.settings import ONE_ROW, Settings
from gem_openrlhf.version import SUPPORTED_OPENRLHF, check_openrlhf

MODELS = ("actor", "critic", "ref")
AGENT_FILE, TRAIN_FILE, EVAL_FILE = "agent.py", "train.jsonl", "eval.jsonl"
CHECKPOINTS = "checkpoints"

FLAGS: dict[str, launch.Names] = {
    "name": "logger.wandb.run_name",
    "seed": "train.seed",
    "policy.model": "actor.model_name_or_path",
    "sampling.temperature": "rollout.temperature",
    "sampling.top_p": "rollout.top_p",
    "algorithm.gamma": "algo.advantage.gamma",
    "algorithm.lam": "algo.advantage.lambd",
    "algorithm.clip": "actor.eps_clip",
    "algorithm.epochs": "train.max_epochs",
    "algorithm.loss_aggregation": "actor.loss_agg_mode",
    "algorithm.kl_coef": "algo.kl.init_coef",
    # Weight 0 leaves the loss alone and logs the entropy.
    "algorithm.entropy_coef": "actor.entropy_coef",
    "algorithm.tis_clip": "algo.advantage.is_correction_threshold",
    "algorithm.value_lr": "critic.adam.lr",
    "algorithm.value_clip": "critic.value_clip",
    "optimizer.lr": "actor.adam.lr",
    "optimizer.betas": ("actor.adam.betas", "critic.adam.betas"),
    "optimizer.eps": ("actor.adam.eps", "critic.adam.eps"),
    "optimizer.weight_decay": ("actor.adam.weight_decay", "critic.adam.weight_decay"),
    "optimizer.grad_clip": ("actor.max_norm", "critic.max_norm"),
    "training.tasks": "rollout.batch_size",
    "training.group_size": "rollout.n_samples_per_prompt",
    "hardware.nodes": tuple(f"{model}.num_nodes" for model in MODELS),
    "hardware.gpus_per_node": tuple(f"{model}.num_gpus_per_node" for model in MODELS),
    "hardware.engine.tensor_parallel": "vllm.tensor_parallel_size",
    "hardware.engine.engines": "vllm.num_engines",
    "hardware.engine.memory_share": "vllm.gpu_memory_utilization",
    "hardware.learner.tensor_parallel": "ds.tensor_parallel_size",
    "hardware.learner.sequence_parallel": "ds.ring_attn_size",
    "hardware.learner.checkpointing": "actor.gradient_checkpointing_enable",
    "hardware.learner.offload": "ds.adam_offload",
    "hardware.learner.attention": "ds.attn_implementation",
    "hardware.checkpoint_every": "ckpt.save_steps",
}
"""OpenRLHF's flags with the value of a setting; those of the critic only where there is one."""

AGENT = {**launch.namesakes(Settings), "seed": "seed"}
"""The agent file's setting with the value of a setting."""

OTHERS = {
    "env": "data.prompt_dataset, agent file: task_order='file'",
    "eval": "eval.dataset",
    "policy.response_tokens": "data.max_len less policy.prompt_tokens",
    "algorithm.advantage": "agent file; algo.advantage.estimator decides whether there is a critic",
    "algorithm.minibatches": "train.batch_size",
    "optimizer": "actor.adam, actor.lr_scheduler=constant",
    "training.iterations": "rows of data.prompt_dataset",
    "training.precision": "ds.param_dtype",
    "hardware.learner.pass_tokens": "rollout.max_tokens_per_gpu, train.max_tokens_per_gpu with "
    "flash attention, else rollout.micro_batch_size, train.micro_batch_size",
}
"""Parity of a setting whose value is in no flag as it is, or needs more words."""

HOW: dict[str, launch.Names] = {
    **launch.ALL_WEIGHTS,
    **launch.SHARED_GPUS,
    **FLAGS,
    **{key: f"agent file: {name}" for key, name in AGENT.items()},
    **OTHERS,
}

ALWAYS = {
    "data.label_key": "label",
    "ds.zero_stage": 2,
    "actor.lr_scheduler": "constant",
    "actor.lr_warmup_ratio": 0.0,
    "critic.lr_scheduler": "constant",
    "critic.lr_warmup_ratio": 0.0,
    "train.num_episodes": 1,
}
"""Flags of every run; those of the critic only where there is one."""

SHARED_GPUS = Platform(
    {
        "train.colocate_all": True,
        "vllm.enable_sleep": True,
        "ds.enable_sleep": True,
        "vllm.enable_prefix_caching": True,
        "vllm.gpu_memory_utilization": 0.4,
    }
)
"""Models and engines on the same GPUs, one after the other."""


def compile_spec(spec: RunSpec, *, run_dir: Path, hardware: Hardware) -> launch.Launch:
    """Return OpenRLHF's command for a spec; see `gem.training.launch.Adapter`.

    Raises:
        ConfigurationError: OpenRLHF cannot run this spec; the message names the key.
        MissingExtraError: OpenRLHF is not installed.
        UnsupportedVersionError: OpenRLHF is of an unsupported version.
    """
    check_openrlhf()
    _check(spec, hardware)
    platform = platforms.of("openrlhf", spec, run_dir, hardware, SHARED_GPUS)
    flags = {
        **ALWAYS,
        **platform.settings,
        **launch.copied(spec, FLAGS, hardware),
        **_flags(spec, run_dir, hardware),
    }
    if not spec.algorithm.estimator.needs_critic:
        flags = {key: flags[key] for key in flags if not key.startswith("critic.")}
    flags = launch.with_native(flags, hardware, "openrlhf")
    return launch.Launch.of(
        spec,
        ["python", "-m", "openrlhf.cli.train_ppo_ray", *_arguments(flags)],
        platform,
        {worker.VARIABLE: worker.HOOK, "RAY_DEDUP_LOGS": "0"},
        files=_files(spec, run_dir, hardware),
        state=[EVALUATED, CHECKPOINTS],
        parity=launch.parity(spec, HOW, _departures(spec, hardware), hardware, "openrlhf"),
    )


PAIRS = (
    pairs(
        "learner.sequence_parallel",
        "sdpa",
        "refused",
        "ring attention is flash attention's, which OpenRLHF would choose by itself; install "
        "flash-attn, or set sequence_parallel to 1",
    ),
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs(
        "gpus_per_node",
        {"learner.pass_tokens", "sdpa", "flash attention", "fp32"},
        "runs",
        "test_ranks.py, on the CPU",
    ),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in OpenRLHF."""

adapter = launch.Adapter("openrlhf", SUPPORTED_OPENRLHF, "openrlhf", compile_spec, pairs=PAIRS)


def _check(spec: RunSpec, hardware: Hardware) -> None:
    """Refuse what OpenRLHF would silently do differently."""
    launch.refuse(
        spec,
        *spec.policy.several_rows(ONE_ROW, "policy."),
        launch.token_mean(spec, "OpenRLHF"),
        launch.whole_minibatches(spec),
        launch.all_weights(spec),
    )
    launch.check_hardware(spec, hardware, {})


def _files(spec: RunSpec, run_dir: Path, hardware: Hardware) -> dict[str, str]:
    files = {
        AGENT_FILE: _agent_file(spec, run_dir, hardware),
        TRAIN_FILE: dataset_text(line, [spec.task_set.uri], evaluation=False),
    }
    if spec.eval:
        uris = [source.text for source in spec.evaluations]
        files[EVAL_FILE] = dataset_text(line, uris, evaluation=True)
    return files


def _agent_file(spec: RunSpec, run_dir: Path, hardware: Hardware) -> str:
    given = launch.copied(spec, AGENT, hardware)
    settings = Settings(task_order="file", record_dir=str(run_dir), **given)
    lines = [f"        {name}={value!r},\n" for name, value in settings.given().items()]
    return (
        "from gem_openrlhf import GemAgentExecutor, Settings\n\n\n"
        "class AgentExecutor(GemAgentExecutor):\n"
        f"    settings = Settings(\n{''.join(lines)}    )\n"
    )


def _flags(spec: RunSpec, run_dir: Path, hardware: Hardware) -> dict[str, Any]:
    """Return OpenRLHF's flags whose values are not in the spec as they are."""
    algorithm, policy = spec.algorithm, spec.policy
    step = spec.episodes // algorithm.minibatches
    share = step // hardware.ranks
    tokens = launch.pass_tokens(spec, hardware)
    fitting = tokens // policy.tokens
    micro = next(n for n in range(min(share, fitting), 0, -1) if share % n == 0)
    flags: dict[str, Any] = {
        "train.agent_func_path": run_dir / AGENT_FILE,
        "data.prompt_dataset": run_dir / TRAIN_FILE,
        "data.max_len": policy.tokens,
        "ckpt.output_dir": run_dir / "model",
        "ckpt.path": run_dir / CHECKPOINTS,
        "ckpt.load_enable": hardware.checkpoint_every is not None,
        "logger.tensorboard_dir": run_dir / "tensorboard",
        "algo.advantage.estimator": "gae" if algorithm.estimator.needs_critic else "reinforce",
        "rollout.micro_batch_size": micro,
        "train.batch_size": step,
        "train.micro_batch_size": micro,
    }
    if launch.attention(spec, hardware) == "flash_attention_2":
        # Rows without padding, as many in a forward pass as fit.
        flags |= {"ds.packing_samples": True, "train.dynamic_batch_enable": True}
        flags |= dict.fromkeys(("rollout.max_tokens_per_gpu", "train.max_tokens_per_gpu"), tokens)
    if algorithm.tis_clip is not None:
        correction = "algo.advantage.is_correction"
        flags |= {f"{correction}_level": "token", f"{correction}_mode": "clip"}
    if algorithm.kl_coef:
        flags |= {"algo.kl.use_loss": True, "algo.kl.estimator": "k3"}
    if spec.eval:
        flags |= {
            "eval.dataset": run_dir / EVAL_FILE,
            "eval.steps": spec.eval_every,
            "eval.n_samples_per_prompt": 1,
            "ckpt.best_metric_key": "none",
        }
    return flags


def _arguments(flags: dict[str, Any]) -> list[str]:
    """Write flags as OpenRLHF's command line."""
    out = []
    for key, value in flags.items():
        if isinstance(value, bool):
            out += [f"--{key}"] if value else []
        else:
            out += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    return out


def _departures(spec: RunSpec, hardware: Hardware) -> Iterator[launch.Parity]:
    yield from launch.departures(
        spec,
        weights=launch.optimizer_weights(
            "DeepSpeed's ZeRO keeps them beside those in bf16",
            hardware.native.get("openrlhf"),
            "ds.param_dtype",
        ),
        bf16="bf16 weights and gradients, fp32 in the optimiser",
        undecayed="biases and norms",
        values_on_tokens=True,
        missed="not before the first",
    )
    if spec.algorithm.minibatches > 1:
        how = "OpenRLHF draws the rows of a minibatch at random"
        yield launch.Parity("algorithm.minibatches", "emulated", how)
    how = "OpenRLHF knows bf16 and fp16: trained in bf16"
    yield from launch.bf16_only(spec, how, cpu=hardware.cpu)
