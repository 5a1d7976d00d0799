"""gem-bench's hook: a RunSpec becomes verl's own command, `python -m verl.trainer.main_ppo ...`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.experiment.hardware import Hardware
from gem.experiment.runspec import RunSpec
from gem.experiment.tasksets import Source
from gem.tasks import TaskSet
from gem.training import launch, platforms
from gem.training.pairs import COMPUTED, ON_CPU, pairs
from gem.training.platforms import Platform
from gem_verl import SUPPORTED_VERL, check_verl
from gem_verl.settings import CRITIC, FLASH, SPLIT, Settings, fuses

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_CORRECTION = "algorithm.rollout_correction"


def _both(name: str) -> tuple[str, str]:
    """Name a setting of policy and critic; those of the critic are given only where there is one.

    Args:
        name: `{part}` is the network, `{fsdp}` its FSDP, `{model}` its model.
    """
    fsdp, model = f"{_ACTOR}.fsdp_config", "actor_rollout_ref.model"
    return (
        name.format(part=_ACTOR, fsdp=fsdp, model=model),
        name.format(part="critic", fsdp="critic.fsdp", model="critic.model"),
    )


def compile_spec(spec: RunSpec, *, run_dir: Path, hardware: Hardware) -> launch.Launch:
    """Return verl's command for a spec; see `gem.training.launch.Adapter`.

    Raises:
        ConfigurationError: verl cannot run this spec; the message names the key.
        MissingExtraError: verl is not installed.
        UnsupportedVersionError: verl is of an unsupported version.
    """
    check_verl()
    _check(spec, hardware)
    fused = fuses(spec.policy.model)
    settings = _ALWAYS | launch.copied(spec, _NAMES, hardware, fused=fused)
    settings |= _policy(spec) | _run(spec, run_dir, hardware)
    if not spec.algorithm.estimator.needs_critic:
        settings = {k: v for k, v in settings.items() if not k.lstrip("+").startswith("critic")}
    platform = platforms.of("verl", spec, run_dir, hardware, Platform())
    settings = launch.with_native(settings | platform.settings, hardware, "verl")
    overrides = [_override(key, value) for key, value in settings.items()]
    return launch.Launch.of(
        spec,
        ["python", "-m", "verl.trainer.main_ppo", *overrides],
        platform,
        {"HYDRA_FULL_ERROR": "1", "RAY_DEDUP_LOGS": "0"},
        parity=launch.parity(spec, _NAMES | _HOW, _departures(spec, hardware), hardware, "verl"),
        state=[_CHECKPOINTS],
    )


PAIRS = (
    pairs(
        "learner.sequence_parallel",
        "sdpa",
        "refused",
        f"{SPLIT.format('sdpa')}, or set sequence_parallel to 1",
    ),
    pairs("critic", "sdpa", "refused", f"{CRITIC}; {FLASH}", on_gpus=True),
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs({"nodes", "gpus_per_node"}, {"gpus_per_node", "sdpa", "fp32"}, "runs", "test_ranks.py"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in verl."""

adapter = launch.Adapter(
    "verl", SUPPORTED_VERL, "verl", compile_spec, all_seats=True, keeps_state=True, pairs=PAIRS
)


def _check(spec: RunSpec, hardware: Hardware) -> None:
    """Refuse what verl would silently do differently."""
    tasks, parts = spec.training.tasks, spec.algorithm.minibatches
    uneven = f"verl cuts a batch between tasks; training.tasks={tasks} does not divide into so many"
    launch.refuse(
        spec,
        ("algorithm.minibatches", tasks % parts > 0, uneven),
        launch.whole_rows(spec, "verl"),
        launch.all_weights(spec),
    )
    launch.check_hardware(spec, hardware, {"learner.tensor_parallel": "that is Megatron's"})


_CHECKPOINTS = "checkpoints"
"""Folder in that of the run. verl goes on from what is there (`trainer.resume_mode=auto`)."""

_ALWAYS: dict[str, Any] = {
    "data.custom_cls.path": "pkg://gem_verl.dataset",
    "data.custom_cls.name": "GemDataset",
    "data.shuffle": False,
    "data.dataloader_num_workers": 0,  # rows are made in a moment
    f"{_ACTOR}.shuffle": False,
    f"{_ACTOR}.use_dynamic_bsz": True,
    # No second clip of bad actions, which the plain surrogate does not have.
    f"{_ACTOR}.clip_ratio_c": 1e9,
    f"{_ROLLOUT}.name": "vllm",
    f"{_ROLLOUT}.agent.default_agent_loop": "gem",
    f"{_ROLLOUT}.calculate_log_probs": True,
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": True,
    f"{_ROLLOUT}.val_kwargs.temperature": 1.0,  # each evaluation has its own
    "reward.num_workers": 1,  # rewards come from environments
    "trainer.v1.trainer_mode": "gem_sync",
    "trainer.total_epochs": 1,
    "trainer.project_name": "gem",
    "critic.enable": True,
    "critic.loss_agg_mode": "token-mean",  # of one token per turn: a mean over turns
    **dict.fromkeys((*_both("{part}.strategy"), *_both("{fsdp}.strategy")), "fsdp2"),
    **dict.fromkeys(_both("{model}.use_remove_padding"), True),
    **dict.fromkeys(_both("{part}.optim.optimizer"), "AdamW"),
    **dict.fromkeys(_both("{part}.optim.lr_scheduler_type"), "constant"),
    **dict.fromkeys(_both("{part}.optim.lr_warmup_steps"), 0),
}

_NAMES: dict[str, launch.Names] = {
    **launch.namesakes(Settings, "+gem.{}"),
    "name": "trainer.experiment_name",
    "seed": ("+gem.seed", "data.seed", f"{_ROLLOUT}.seed", *_both("{fsdp}.seed")),
    "policy.model": (*_both("{model}.path"), "critic.model.tokenizer_path"),
    "policy.prompt_tokens": "data.max_prompt_length",
    "policy.response_tokens": "data.max_response_length",
    "policy.tokens": f"{_ROLLOUT}.max_model_len",
    "sampling.temperature": f"{_ROLLOUT}.temperature",
    "sampling.top_p": f"{_ROLLOUT}.top_p",
    "sampling.top_k": f"{_ROLLOUT}.top_k",
    "algorithm.gamma": "algorithm.gamma",
    "algorithm.lam": "algorithm.lam",
    "algorithm.clip": tuple(f"{_ACTOR}.clip_ratio{end}" for end in ("", "_low", "_high")),
    "algorithm.epochs": f"{_ACTOR}.ppo_epochs",
    "algorithm.kl_coef": f"{_ACTOR}.kl_loss_coef",
    "algorithm.entropy_coef": f"{_ACTOR}.entropy_coeff",
    "algorithm.tis_clip": f"{_CORRECTION}.rollout_is_threshold",
    "algorithm.value_lr": "critic.optim.lr",
    "algorithm.value_clip": "critic.cliprange_value",
    "optimizer.lr": f"{_ACTOR}.optim.lr",
    "optimizer.betas": _both("{part}.optim.betas"),
    "optimizer.eps": _both("+{part}.optim.override_optimizer_config.eps"),
    "optimizer.weight_decay": _both("{part}.optim.weight_decay"),
    "optimizer.grad_clip": _both("{part}.optim.clip_grad"),
    "training.iterations": "trainer.total_training_steps",
    "training.tasks": "data.train_batch_size",
    "training.group_size": f"{_ROLLOUT}.n",
    "hardware.nodes": "trainer.nnodes",
    "hardware.gpus_per_node": "trainer.n_gpus_per_node",
    "hardware.engine.tensor_parallel": f"{_ROLLOUT}.tensor_model_parallel_size",
    "hardware.engine.memory_share": f"{_ROLLOUT}.gpu_memory_utilization",
    "hardware.learner.pass_tokens": (
        *_both("{part}.ppo_max_token_len_per_gpu"),
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
    ),
    "hardware.learner.sequence_parallel": _both("{fsdp}.ulysses_sequence_parallel_size"),
    "hardware.learner.offload": _both("{fsdp}.optimizer_offload"),
    "hardware.learner.checkpointing": _both("{model}.enable_gradient_checkpointing"),
    "hardware.learner.attention": _both("+{model}.override_config.attn_implementation"),
    "hardware.checkpoint_every": "trainer.save_freq",
}
"""Settings that have the value of a setting of the spec."""

_COMPUTED = ("param", "reduce", "buffer")
_LOSSES = {"token-mean": "token-mean", "row-mean-token-sum": "seq-mean-token-sum"}

_HOW = {
    **launch.ALL_WEIGHTS,
    **launch.SHARED_GPUS,
    "env": "data.train_files, data.shuffle=False",
    "eval": "data.val_files",
    "algorithm.advantage": "algorithm.adv_estimator",
    "algorithm.clip": "actor.clip_ratio, actor.clip_ratio_c=1e9 (no dual clip)",
    "algorithm.minibatches": "actor.ppo_mini_batch_size",
    "algorithm.loss_aggregation": "actor.loss_agg_mode",
    "algorithm.value_clip": "critic.cliprange_value, trained where turns begin",
    "optimizer": "actor.optim",
    "training.precision": "fsdp_config.mixed_precision, rollout.dtype",
    "hardware.logger": "trainer.logger",
}
"""Parity of the other settings, and of those of which there is more to say."""


def _run(spec: RunSpec, run_dir: Path, hardware: Hardware) -> dict[str, Any]:
    """verl's settings of the data, of the whole run and of its folders."""
    train = spec.task_set
    # verl wants validation data even if it never validates.
    first = train[0]
    none = Source(TaskSet(first.env_id, 1, first.seed, first.params), "none")
    return {
        "data.train_files": train.uri,
        "data.val_files": [source.text for source in spec.evaluations or [none]],
        "trainer.val_before_train": bool(spec.eval),
        "trainer.test_freq": spec.eval_every or -1,
        "trainer.logger": ["console", *filter(None, [hardware.logger])],
        "+gem.record_dir": str(run_dir),
        "trainer.default_local_dir": str(run_dir / _CHECKPOINTS),
        "hydra.run.dir": str(run_dir / "hydra"),
    }


def _policy(spec: RunSpec) -> dict[str, Any]:
    """verl's settings of the networks, of their optimisers and losses and of the engine."""
    algorithm, tokens = spec.algorithm, spec.policy.tokens
    settings = {
        "algorithm.adv_estimator": f"gem_{algorithm.advantage}",
        f"{_ACTOR}.ppo_mini_batch_size": _mini_batch(spec),
        f"{_ACTOR}.loss_agg_mode": _LOSSES[algorithm.loss_aggregation],
        f"{_ACTOR}.use_kl_loss": algorithm.kl_coef > 0,
        f"{_ROLLOUT}.max_num_batched_tokens": max(8192, tokens),
        # Without them and without flash attention verl takes one token after the other.
        "actor_rollout_ref.model.use_fused_kernels": fuses(spec.policy.model),
    }
    if algorithm.tis_clip is not None:
        settings[f"{_CORRECTION}.rollout_is"] = "token"
    if spec.training.precision == "fp32":
        reference = ["actor_rollout_ref.ref.fsdp_config"] if algorithm.kl_coef else []
        settings[f"{_ROLLOUT}.dtype"] = "float32"
        for fsdp in (*_both("{fsdp}"), *reference):
            types = (f"+{fsdp}.mixed_precision.{part}_dtype" for part in _COMPUTED)
            settings |= dict.fromkeys(types, "fp32")
    return settings


def _mini_batch(spec: RunSpec) -> int:
    """verl's minibatch size in tasks; its rows are `group_size` times as many."""
    tasks = spec.training.tasks * launch.most_agents(spec)
    if spec.policy.one_row:
        return tasks // spec.algorithm.minibatches
    if spec.policy.turns is None:
        raise ConfigurationError(
            f"policy.turns: {spec.policy.shown} makes a row per turn, and verl must know how many "
            "there can be; set it to the environment's limit"
        )
    # Rows are turns. verl fills batches up to a multiple of this: one that no batch exceeds
    # makes one update per batch out of them.
    return tasks * spec.policy.turns


def _override(key: str, value: Any) -> str:
    # verl resolves its configuration twice: an escaped reference would be one the second time.
    if "${" in str(value):
        raise ConfigurationError(f"verl would take '${{' for a reference to another key: {value!r}")
    return f"{key}={launch.hydra_value(value)}"


def _departures(spec: RunSpec, hardware: Hardware) -> Iterator[launch.Parity]:
    yield from launch.departures(
        spec,
        weights=launch.optimizer_weights(
            "fsdp_config.model_dtype=fp32, AdamW on FSDP's shards",
            hardware.native.get("verl"),
            *_both("{fsdp}.model_dtype"),
        ),
        bf16="autocast in training, bf16 weights in rollouts",
    )
    if spec.algorithm.loss_aggregation == "row-mean-token-sum" and not spec.policy.one_row:
        how = "verl counts the rows it fills batches up with: the loss is scaled down"
        yield launch.Parity("algorithm.loss_aggregation", "emulated", how)
