"""gem-bench's hook: a RunSpec becomes verl's own command, `python -m verl.trainer.main_ppo ...`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.tasks import TaskSet
from gem.training import platforms
from gem.training.launch import (
    Knob,
    Launch,
    evaluation_departures,
    forward_tokens,
    hydra_value,
    loss_departures,
    parity,
    refuse,
    sampling_departure,
)
from gem.training.platforms import Platform
from gem.training.runspec import RunSpec
from gem.training.tasksets import Source
from gem_verl import SUPPORTED_VERL, check_verl


class VerlAdapter:
    """Compiles RunSpecs for verl."""

    trainer = "verl"
    supported = SUPPORTED_VERL
    venv = "verl"

    def compile(self, spec: RunSpec, *, run_dir: Path, cpu: bool) -> Launch:
        """Return verl's command for a spec; see `gem.training.launch.Adapter`.

        Raises:
            ConfigurationError: verl cannot run this spec; the message names the key.
            MissingExtraError: verl is not installed.
            UnsupportedVersionError: verl is of an unsupported version.
        """
        check_verl()
        _check(spec)
        settings: dict[str, Any] = {
            **_data(spec),
            **_model(spec),
            **_actor(spec),
            **_rollout(spec),
            **_trainer(spec, run_dir),
        }
        if spec.algorithm.advantage == "gae":
            settings |= _critic(spec)
        if spec.training.precision == "fp32":
            settings |= _fp32(spec)
        platform = platforms.cpu("verl", spec, run_dir) if cpu else Platform()
        settings |= platform.settings
        overrides = [_override(key, value) for key, value in settings.items()]
        return Launch.of(
            spec,
            ["python", "-m", "verl.trainer.main_ppo", *overrides],
            platform,
            {"HYDRA_FULL_ERROR": "1", "RAY_DEDUP_LOGS": "0"},
            parity=parity(spec, _HOW, _departures(spec)),
        )


adapter = VerlAdapter()


def _check(spec: RunSpec) -> None:
    """Refuse what verl would silently do differently."""
    tasks, minibatches = spec.training.tasks, spec.algorithm.minibatches
    refuse(
        spec,
        (
            "algorithm.minibatches",
            tasks % minibatches > 0,
            f"verl cuts a batch between tasks; {tasks} tasks (training.tasks) do not divide into "
            "so many minibatches",
        ),
        (
            "algorithm.minibatches",
            minibatches > 1 and spec.policy.context != "chat",
            "with a row per turn verl cuts minibatches through episodes; set it to 1 for "
            f"policy.context={spec.policy.context!r}",
        ),
        (
            "policy.lora_rank",
            spec.policy.lora_rank > 0,
            "verl's adapters (PEFT) are others than the spec's, with factors of their own for "
            "projections that read the same input; set it to 0 and use verl's key "
            "actor_rollout_ref.model.lora_rank in a command of your own",
        ),
    )


def _data(spec: RunSpec) -> dict[str, Any]:
    size = spec.training
    train = spec.task_set
    # verl wants validation data even if it never validates.
    none = Source(TaskSet(train.env_id, 1, train.seed, train.params), "none")
    evals = [source.text for source in spec.evaluations or [none]]
    return {
        "data.custom_cls.path": "pkg://gem_verl.dataset",
        "data.custom_cls.name": "GemDataset",
        "data.train_files": train.uri,
        "data.val_files": evals,
        "data.shuffle": False,
        "data.seed": spec.seed,
        "data.train_batch_size": size.tasks,
        "data.max_prompt_length": spec.policy.prompt_tokens,
        "data.max_response_length": spec.policy.response_tokens,
        "data.dataloader_num_workers": 0,
    }


def _model(spec: RunSpec) -> dict[str, Any]:
    return {
        "actor_rollout_ref.model.path": spec.policy.model,
        # Flash attention is an extra that not every machine has; PyTorch's own always works.
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.model.use_remove_padding": False,
    }


def _actor(spec: RunSpec) -> dict[str, Any]:
    algorithm, actor = spec.algorithm, "actor_rollout_ref.actor"
    return {
        "algorithm.adv_estimator": f"gem_{algorithm.advantage}",
        "algorithm.gamma": algorithm.gamma,
        "algorithm.lam": algorithm.lam,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.fsdp_config.strategy": "fsdp2",
        f"{actor}.fsdp_config.seed": spec.seed,
        f"{actor}.ppo_mini_batch_size": _mini_batch(spec),
        f"{actor}.ppo_epochs": algorithm.epochs,
        f"{actor}.shuffle": False,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": _forward_tokens(spec),
        f"{actor}.clip_ratio": algorithm.clip,
        f"{actor}.clip_ratio_low": algorithm.clip,
        f"{actor}.clip_ratio_high": algorithm.clip,
        # No second clip of bad actions, which the plain surrogate does not have.
        f"{actor}.clip_ratio_c": 1e9,
        f"{actor}.loss_agg_mode": {
            "token-mean": "token-mean",
            "row-mean-token-sum": "seq-mean-token-sum",
        }[algorithm.loss_aggregation],
        f"{actor}.entropy_coeff": algorithm.entropy_coef,
        f"{actor}.use_kl_loss": algorithm.kl_coef > 0,
        f"{actor}.kl_loss_coef": algorithm.kl_coef,
        **_optimizer(f"{actor}.optim", spec, spec.optimizer.lr),
    }


def _optimizer(table: str, spec: RunSpec, lr: float) -> dict[str, Any]:
    o = spec.optimizer
    return {
        f"{table}.optimizer": "AdamW",
        f"{table}.lr": lr,
        f"{table}.betas": [o.beta1, o.beta2],
        f"+{table}.override_optimizer_config.eps": o.eps,
        f"{table}.weight_decay": o.weight_decay,
        f"{table}.clip_grad": o.grad_clip,
        f"{table}.lr_scheduler_type": "constant",
        f"{table}.lr_warmup_steps": 0,
    }


def _critic(spec: RunSpec) -> dict[str, Any]:
    return {
        "critic.enable": True,
        "critic.strategy": "fsdp2",
        "critic.fsdp.strategy": "fsdp2",
        "critic.fsdp.seed": spec.seed,
        "critic.model.path": spec.policy.model,
        "critic.model.tokenizer_path": spec.policy.model,
        "+critic.model.override_config.attn_implementation": "sdpa",
        "critic.model.use_remove_padding": False,
        "critic.ppo_max_token_len_per_gpu": _forward_tokens(spec),
        "critic.cliprange_value": spec.algorithm.value_clip,
        "critic.loss_agg_mode": "token-mean",  # of one token per turn: a mean over turns
        **_optimizer("critic.optim", spec, spec.algorithm.value_lr),
    }


def _rollout(spec: RunSpec) -> dict[str, Any]:
    rollout, policy = "actor_rollout_ref.rollout", spec.policy
    length = policy.tokens
    settings = {
        f"{rollout}.name": "vllm",
        f"{rollout}.agent.default_agent_loop": "gem",
        f"{rollout}.n": spec.training.group_size,
        f"{rollout}.temperature": spec.sampling.temperature,
        f"{rollout}.top_p": spec.sampling.top_p,
        f"{rollout}.top_k": spec.sampling.top_k,
        f"{rollout}.seed": spec.seed,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.max_model_len": length,
        f"{rollout}.max_num_batched_tokens": max(8192, length),
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.log_prob_use_dynamic_bsz": True,
        f"{rollout}.log_prob_max_token_len_per_gpu": _forward_tokens(spec),
        f"{rollout}.val_kwargs.temperature": 1.0,  # each evaluation has its own
        "reward.num_workers": 1,  # rewards come from environments
        "+gem.context": policy.context,
        "+gem.turn_tokens": policy.turn_tokens,
        "+gem.seed": spec.seed,
        "+gem.max_failed_fraction": spec.training.max_failed_fraction,
    }
    if policy.turns is not None:
        settings["+gem.turns"] = policy.turns
    if policy.system_prompt is not None:
        settings["+gem.system_prompt"] = policy.system_prompt
    return settings


def _trainer(spec: RunSpec, run_dir: Path) -> dict[str, Any]:
    return {
        "+gem.record_dir": str(run_dir),
        "trainer.v1.trainer_mode": "gem_sync",
        "trainer.total_training_steps": spec.training.iterations,
        "trainer.total_epochs": 1,
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.val_before_train": bool(spec.eval),
        "trainer.test_freq": spec.eval_every or -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.logger": ["console"],
        "trainer.project_name": "gem",
        "trainer.experiment_name": spec.name,
        "trainer.default_local_dir": str(run_dir / "checkpoints"),
        "hydra.run.dir": str(run_dir / "hydra"),
    }


def _fp32(spec: RunSpec) -> dict[str, Any]:
    engines = ["actor_rollout_ref.actor.fsdp_config"]
    engines += ["actor_rollout_ref.ref.fsdp_config"] if spec.algorithm.kl_coef else []
    engines += ["critic.fsdp"] if spec.algorithm.advantage == "gae" else []
    settings: dict[str, Any] = {
        f"+{engine}.mixed_precision.{part}_dtype": "fp32"
        for engine in engines
        for part in ("param", "reduce", "buffer")
    }
    return settings | {"actor_rollout_ref.rollout.dtype": "float32"}


def _mini_batch(spec: RunSpec) -> int:
    """verl's minibatch size in tasks; its rows are `group_size` times as many."""
    if spec.policy.context == "chat":
        return spec.training.tasks // spec.algorithm.minibatches
    # Rows are turns. verl fills batches up to a multiple of this: one that no batch exceeds
    # makes one update per batch out of them.
    return spec.training.tasks * _most_turns(spec)


def _most_turns(spec: RunSpec) -> int:
    if spec.policy.turns is None:
        raise ConfigurationError(
            f"policy.turns: with policy.context={spec.policy.context!r} every turn is a row, and "
            "verl needs to know how many there can be; set it to the environment's limit"
        )
    return spec.policy.turns


def _override(key: str, value: Any) -> str:
    # verl resolves its configuration twice: an escaped reference would be one the second time.
    if "${" in str(value):
        raise ConfigurationError(f"verl would take '${{' for a reference to another key: {value!r}")
    return f"{key}={hydra_value(value)}"


def _forward_tokens(spec: RunSpec) -> int:
    """Tokens per forward pass, such that the logits stay below a gigabyte."""
    return max(min(forward_tokens(spec.policy.model), 65_536), spec.policy.tokens)


_HOW = {
    "name": "trainer.experiment_name",
    "seed": "gem.seed: every turn is sampled with a seed of its own; other random numbers than in "
    "other trainers",
    "env": "data.train_files, data.shuffle=False",
    "eval": "data.val_files",
    "policy.model": "actor_rollout_ref.model.path",
    "policy.prompt_tokens": "data.max_prompt_length",
    "policy.response_tokens": "data.max_response_length",
    "policy.turn_tokens": "gem.turn_tokens",
    "policy.turns": "gem.turns",
    "policy.context": "gem.context",
    "policy.system_prompt": "gem.system_prompt",
    "policy.lora_rank": "all weights: actor_rollout_ref.model.lora_rank is left at 0",
    "policy.lora_alpha": "no adapters",
    "policy.lora_init": "no adapters",
    "sampling": "actor_rollout_ref.rollout",
    "algorithm.advantage": "algorithm.adv_estimator",
    "algorithm.gamma": "algorithm.gamma, per turn",
    "algorithm.lam": "algorithm.lam, per turn",
    "algorithm.clip": "actor.clip_ratio, actor.clip_ratio_c=1e9 (no dual clip)",
    "algorithm.epochs": "actor.ppo_epochs",
    "algorithm.minibatches": "actor.ppo_mini_batch_size",
    "algorithm.loss_aggregation": "actor.loss_agg_mode",
    "algorithm.kl_coef": "actor.kl_loss_coef",
    "algorithm.entropy_coef": "actor.entropy_coeff",
    "algorithm.value_lr": "critic.optim.lr",
    "algorithm.value_clip": "critic.cliprange_value, trained where turns begin",
    "optimizer": "actor.optim",
    "training.iterations": "trainer.total_training_steps",
    "training.tasks": "data.train_batch_size",
    "training.group_size": "actor_rollout_ref.rollout.n",
    "training.precision": "fsdp_config.mixed_precision, rollout.dtype",
    "training.max_failed_fraction": "gem.max_failed_fraction",
}


def _departures(spec: RunSpec) -> Iterator[Knob]:
    yield from sampling_departure(spec, _HOW["seed"])
    yield from loss_departures(spec)
    if spec.algorithm.loss_aggregation == "row-mean-token-sum" and spec.policy.context != "chat":
        how = "verl counts the rows it fills batches up with: the loss is scaled down"
        yield Knob("algorithm.loss_aggregation", "emulated", how)
    if spec.training.precision == "bf16":
        how = "autocast in training, bf16 weights in rollouts"
        yield Knob("training.precision", "emulated", how)
    yield from evaluation_departures(spec)
