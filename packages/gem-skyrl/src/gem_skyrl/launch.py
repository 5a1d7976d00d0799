"""gem-bench's hook: a RunSpec becomes SkyRL's own command, `skyrl.train.entrypoints.main_base`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem_skyrl.dataset import line
from gem_skyrl.settings import NO_VALUES, Settings
from gem_skyrl.version import SUPPORTED_SKYRL, check_skyrl
from gem_train import entries, platforms
from gem_train.experiment.tasksets import dataset_text
from gem_train.launch import Adapter, Launch
from gem_train.pairs import COMPUTED, ON_CPU, pairs
from gem_train.passes import TO_BATCH, UNPADDED, Layout, Passes, named
from gem_train.platforms import Platform
from gem_train.table import (
    Computed,
    Copied,
    Departs,
    Elsewhere,
    Fixed,
    Refused,
    Run,
    Table,
    namesakes,
)

TRAIN_FILE, EVAL_FILE = "train.jsonl", "eval.jsonl"
CHECKPOINTS = "checkpoints"
"""Folder in the run folder; SkyRL goes on from what is there (`trainer.resume_mode=latest`)."""
SWITCH = "trainer.override_entrypoint=gem_skyrl.entrypoint"
_ALGORITHM = "trainer.algorithm"
_ENGINE = "generator.inference_engine"
_SAMPLING = "generator.sampling_params"
_MODELS = ("policy", "critic", "ref")
_TRAINED = ("policy", "critic")


def _compile(run: Run) -> Launch:
    """Return SkyRL's command.

    Raises:
        ConfigurationError: SkyRL cannot run this spec; the message names the key.
    """
    settings = _always(run) | TABLE.settings(run)
    platform = platforms.of("skyrl", run.spec, run.run_dir, run.hardware, _SHARED_GPUS)
    settings |= platform.settings
    if not run.critic:
        settings = {k: v for k, v in settings.items() if not k.startswith("trainer.critic")}
    settings = TABLE.with_native(settings, run)
    files = {TRAIN_FILE: dataset_text(line, [run.spec.task_set.uri], evaluation=False)}
    if run.spec.eval:
        uris = [source.text for source in run.spec.evaluations]
        files[EVAL_FILE] = dataset_text(line, uris, evaluation=True)
    overrides = [f"{key}={_value(value)}" for key, value in settings.items()]
    return Launch.of(
        run.spec,
        ["python", "-m", "skyrl.train.entrypoints.main_base", SWITCH, *overrides],
        platform,
        {"RAY_DEDUP_LOGS": "0"},
        files=files,
        state=[CHECKPOINTS],
        passes=_forward(run, settings),
    )


def _forward(run: Run, settings: Mapping[str, Any]) -> Passes:
    """Return how SkyRL divides a batch, whose rows are as long as the longest."""
    tasks, step = "trainer.train_batch_size", "trainer.policy_mini_batch_size"
    epochs, unpadded = "trainer.update_epochs_per_batch", "trainer.remove_microbatch_padding"
    rows, tokens = "trainer.micro_train_batch_size_per_gpu", "trainer.max_tokens_per_microbatch"
    said = named(settings, tasks, step, epochs, unpadded, rows, tokens)
    steps = said[epochs] * (said[tasks] // said[step])
    padding = UNPADDED if said[unpadded] else TO_BATCH
    if said.get(tokens, -1) > 0:
        layout: Layout = "packed" if said[unpadded] else "dynamic"
        return Passes(layout, padding, steps, said[tokens], None, said)
    most = said[rows] * run.spec.policy.tokens
    return Passes("fixed", padding, steps, most, said[rows], said)


def _value(value: Any) -> str:
    """Write a value as SkyRL does: as JSON, which its command line reads."""
    text = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
    if "${" in text:
        raise ConfigurationError(f"SkyRL would take '${{' for a reference to a key: {value!r}")
    return text


_SHARED_GPUS = Platform(
    {
        "trainer.placement.colocate_all": True,
        f"{_ENGINE}.weight_sync_backend": "nccl",
    }
)
"""Learner and engines on the same GPUs, one after the other."""


def _of_all(name: str) -> tuple[str, ...]:
    return tuple(f"trainer.{name.format(model=model)}" for model in _MODELS)


def _of_trained(name: str) -> tuple[str, ...]:
    """Return a setting's name of policy and critic; `_compile` may drop the latter."""
    return tuple(f"trainer.{model}.{name}" for model in _TRAINED)


def _always(run: Run) -> dict[str, Any]:
    """Return the settings that no single key decides."""
    folder, policy = run.run_dir, run.spec.policy
    return {
        "trainer.strategy": "fsdp",
        "trainer.epochs": 1,
        "trainer.project_name": "gem",
        "trainer.resume_mode": "latest",
        "trainer.ckpt_path": folder / CHECKPOINTS,
        "trainer.export_path": folder / "exports",
        "trainer.log_path": folder / "logs",
        "trainer.hf_save_interval": -1,
        "trainer.eval_interval": -1,
        "trainer.dump_eval_results": False,
        "trainer.print_example_interval": -1,
        "data.train_data": [str(folder / TRAIN_FILE)],
        "data.val_data": [],
        "data.dataloader.num_workers": 0,  # rows are made in a moment
        f"{_ENGINE}.num_engines": run.hardware.engines,
        f"{_ENGINE}.engine_init_kwargs.max_model_len": policy.tokens,
        f"{_SAMPLING}.logprobs": 1,
        # SkyRL's row of an episode, or rows of a turn each.
        "generator.step_wise_trajectories": not policy.one_row,
        "gem.record_dir": str(folder),
    }


def _evaluations(run: Run) -> dict[str, Any]:
    return {
        "data.val_data": [str(run.run_dir / EVAL_FILE)],
        "trainer.eval_interval": run.spec.eval_every,
        "trainer.eval_before_train": True,
    }


def _model(run: Run) -> dict[str, Any]:
    return dict.fromkeys(_of_all("{model}.model.path"), run.spec.policy.model)


def _temperature(run: Run) -> dict[str, Any]:
    sampling = run.spec.sampling
    found: dict[str, Any] = {f"{_SAMPLING}.temperature": sampling.temperature}
    if sampling.temperature != 1.0 and sampling.whole:
        # Else vLLM reports log-probabilities of temperature 1.
        found[f"{_ENGINE}.engine_init_kwargs.logprobs_mode"] = "processed_logprobs"
    return found


def _loss(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    name = "cispo" if algorithm.loss == "cispo" else "regular"
    if algorithm.ratio == "sequence":
        name = "gspo"
    elif algorithm.dual_clip is not None:
        name = "dual_clip"
    return {f"{_ALGORITHM}.policy_loss_type": name}


def _clip(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    if algorithm.loss == "cispo":
        # The weight of CISPO has no lower limit.
        limits = {"low": 1.0, "high": algorithm.highest}
        return {f"{_ALGORITHM}.cispo.cispo_eps_clip_{k}": v for k, v in limits.items()}
    limits = {"low": algorithm.clip, "high": algorithm.highest}
    return {f"{_ALGORITHM}.eps_clip_{k}": v for k, v in limits.items()}


_AGGREGATIONS = {
    "token-mean": "token_mean",
    "row-mean-token-mean": "sequence_mean",
    "row-mean-token-sum": "seq_mean_token_sum_norm",
    "row-mean-token-sum-norm": "seq_mean_token_sum_norm",
}


def _aggregation(run: Run) -> dict[str, Any]:
    ours = run.spec.algorithm.loss_aggregation
    found: dict[str, Any] = {f"{_ALGORITHM}.loss_reduction": _AGGREGATIONS[ours]}
    if ours.startswith("row-mean-token-sum"):
        norm = run.spec.policy.response_tokens if ours.endswith("-norm") else 1
        found[f"{_ALGORITHM}.max_seq_len"] = norm
    return found


def _kl(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    return {
        f"{_ALGORITHM}.use_kl_loss": algorithm.kl_coef > 0 and algorithm.kl_in == "loss",
        f"{_ALGORITHM}.use_kl_in_reward": algorithm.kl_coef > 0 and algorithm.kl_in == "reward",
        f"{_ALGORITHM}.kl_loss_coef": algorithm.kl_coef,
        f"{_ALGORITHM}.kl_estimator_type": algorithm.kl_estimator,
    }


def _entropy(run: Run) -> dict[str, Any]:
    weight = run.spec.algorithm.entropy_coef
    return {
        f"{_ALGORITHM}.use_entropy_loss": weight > 0,
        f"{_ALGORITHM}.entropy_loss_coef": weight,
    }


def _correction(run: Run) -> dict[str, Any]:
    most = run.spec.algorithm.tis_clip
    if most is None:
        return {}
    correction = f"{_ALGORITHM}.off_policy_correction"
    return {
        f"{correction}.tis_ratio_type": "token",
        f"{correction}.token_tis_ratio_clip_high": most,
    }


def _steps(run: Run) -> dict[str, Any]:
    size = run.spec.training.tasks // run.spec.algorithm.minibatches
    return dict.fromkeys(("trainer.policy_mini_batch_size", "trainer.critic_mini_batch_size"), size)


def _schedule(run: Run) -> dict[str, Any]:
    optimizer = run.spec.optimizer
    return {
        **dict.fromkeys(_of_trained("optimizer_config.scheduler"), optimizer.hugging_face),
        **dict.fromkeys(_of_trained("optimizer_config.num_warmup_steps"), optimizer.warmup),
    }


def _betas(run: Run) -> dict[str, Any]:
    return dict.fromkeys(_of_trained("optimizer_config.adam_betas"), run.spec.optimizer.betas)


def _precision(run: Run) -> dict[str, Any]:
    full = run.spec.training.precision == "fp32"
    types = {"param_dtype": "fp32" if full else "bf16", "reduce_dtype": "fp32"}
    return {
        f"{_ENGINE}.model_dtype": "float32" if full else "bfloat16",
        # Of the reference model's weights.
        "trainer.bf16": not full,
        **{
            name: dtype
            for part, dtype in types.items()
            for name in _of_all(f"{{model}}.fsdp_config.mixed_precision.{part}")
        },
    }


def _passes(run: Run) -> dict[str, Any]:
    share = run.step_episodes // run.hardware.ranks
    fitting = run.pass_tokens // run.spec.policy.tokens
    micro = next(n for n in range(min(share, fitting), 0, -1) if share % n == 0)
    names = ("trainer.micro_train_batch_size_per_gpu", "trainer.micro_forward_batch_size_per_gpu")
    found: dict[str, Any] = dict.fromkeys(names, micro)
    if run.attention == "flash_attention_2":
        # Rows without padding, as many in a forward pass as fit.
        found["trainer.max_tokens_per_microbatch"] = run.pass_tokens
    return found


def _attention(run: Run) -> dict[str, Any]:
    flash = run.attention == "flash_attention_2"
    return {"trainer.flash_attn": flash, "trainer.remove_microbatch_padding": flash}


def _checkpoints(run: Run) -> dict[str, Any]:
    return {"trainer.ckpt_interval": run.hardware.checkpoint_every or -1}


def _logger(run: Run) -> dict[str, Any]:
    return {"trainer.logger": run.hardware.logger or "console"}


_WHOLE_TASKS = Refused(
    lambda run, value: run.spec.training.tasks % value > 0,
    "SkyRL cuts a batch between tasks; training.tasks={run.spec.training.tasks} does not divide "
    "into so many",
)
_ROWS = "row-mean-token-mean"

TABLE = Table(
    "skyrl",
    {
        **entries.ALL_WEIGHTS,
        **entries.SHARED_GPUS,
        **entries.tasks(Elsewhere(f"data.train_data: seeded tasks in {TRAIN_FILE}, in order")),
        **entries.evaluations(Computed(_evaluations, "data.val_data, trainer.eval_interval")),
        **namesakes(Settings, "gem.{}"),
        "name": Copied("trainer.run_name"),
        "seed": (Copied(("gem.seed", "trainer.seed")), entries.seeds()),
        "policy.model": Computed(_model, "trainer.policy.model.path"),
        "policy.prompt_tokens": Copied("trainer.max_prompt_length"),
        "sampling.temperature": Computed(_temperature, f"{_SAMPLING}.temperature"),
        "sampling.top_p": Copied(f"{_SAMPLING}.top_p"),
        "sampling.top_k": Copied(f"{_SAMPLING}.top_k"),
        "sampling.min_p": Copied(f"{_SAMPLING}.min_p"),
        "sampling.repetition_penalty": Fixed(1.0, "SkyRL has the setting, and no engine gets it"),
        "algorithm.advantage": (
            Copied("gem.advantage"),
            Refused(
                lambda run, value: run.critic and not run.spec.policy.one_row,
                "{run.spec.policy.shown} makes several rows of an episode: " + NO_VALUES,
            ),
        ),
        "algorithm.gamma": Copied(f"{_ALGORITHM}.gamma"),
        "algorithm.lam": Copied(f"{_ALGORITHM}.lambd"),
        "algorithm.loss": (
            Computed(_loss, f"{_ALGORITHM}.policy_loss_type"),
            Refused(lambda run, value: value == "sapo", "SkyRL's was never compared here"),
        ),
        "algorithm.sapo_positive": Elsewhere("SAPO only"),
        "algorithm.sapo_negative": Elsewhere("SAPO only"),
        "algorithm.ratio": (
            Computed(_loss, f"{_ALGORITHM}.policy_loss_type"),
            Refused(
                lambda run, value: value == "sequence" and run.spec.algorithm.loss == "cispo",
                "SkyRL's 'cispo' has ratios of tokens only; set it to 'token'",
            ),
        ),
        "algorithm.clip": Computed(_clip, f"{_ALGORITHM}.eps_clip_low"),
        "algorithm.clip_high": Computed(_clip, f"{_ALGORITHM}.eps_clip_high"),
        "algorithm.dual_clip": (
            Copied(f"{_ALGORITHM}.clip_ratio_c"),
            Refused(
                lambda run, value: value is not None and run.spec.algorithm.ratio == "sequence",
                "SkyRL's 'gspo' has no second clip; leave it out",
            ),
        ),
        "algorithm.epochs": Copied("trainer.update_epochs_per_batch"),
        "algorithm.minibatches": (
            Computed(_steps, "trainer.policy_mini_batch_size"),
            _WHOLE_TASKS,
            entries.WHOLE_STEPS,
        ),
        "algorithm.loss_aggregation": (
            Computed(_aggregation, f"{_ALGORITHM}.loss_reduction"),
            entries.aggregations("SkyRL", _AGGREGATIONS),
            Departs(
                lambda run, value: (
                    value != "token-mean" and run.spec.training.max_failed_fraction > 0
                ),
                f"{_ALGORITHM}.loss_reduction; a failed episode counts as a row",
            ),
        ),
        "algorithm.kl_coef": (
            Computed(_kl, f"{_ALGORITHM}.kl_loss_coef"),
            Departs(
                lambda run, value: (
                    value > 0
                    and run.spec.algorithm.kl_in == "loss"
                    and run.spec.algorithm.loss_aggregation != _ROWS
                ),
                "in the loss it is a mean of rows' means",
            ),
        ),
        "algorithm.kl_in": Computed(_kl, f"{_ALGORITHM}.use_kl_loss or use_kl_in_reward"),
        "algorithm.kl_estimator": Computed(_kl, f"{_ALGORITHM}.kl_estimator_type"),
        "algorithm.entropy_coef": (
            Computed(_entropy, f"{_ALGORITHM}.entropy_loss_coef"),
            Departs(
                lambda run, value: value > 0,
                "a mean over the tokens of each forward pass, weighted by its rows",
            ),
        ),
        "algorithm.tis_clip": (
            Computed(_correction, f"{_ALGORITHM}.off_policy_correction"),
            Refused(
                lambda run, value: (
                    value is not None
                    and run.spec.sampling.temperature != 1.0
                    and not run.spec.sampling.whole
                ),
                "SkyRL's engine and trainer would report log-probabilities of different "
                "distributions; set sampling.temperature to 1, or leave no token out and penalise "
                "none",
            ),
        ),
        **entries.plain_correction("SkyRL, as it is compiled,"),
        **entries.FIXED_REFERENCE,
        "algorithm.critic_warmup": Fixed(0, "SkyRL trains the policy from the first batch on"),
        "algorithm.value_lr": Copied("trainer.critic.optimizer_config.lr"),
        "algorithm.value_clip": (
            Copied(f"{_ALGORITHM}.value_clip"),
            Departs(
                lambda run, value: run.critic,
                "all tokens of a turn are trained towards the turn's target, not where it begins; "
                "half the mean of rows' means",
            ),
        ),
        "optimizer.lr": Copied("trainer.policy.optimizer_config.lr"),
        "optimizer.type": Fixed("adamw", "SkyRL has AdamW only"),
        "optimizer.schedule": Computed(_schedule, "optimizer_config.scheduler"),
        "optimizer.warmup": Computed(_schedule, "optimizer_config.num_warmup_steps"),
        "optimizer.min_lr_ratio": Fixed(0.0, "SkyRL's schedules end at 0"),
        "optimizer.beta1": Computed(_betas, "optimizer_config.adam_betas"),
        "optimizer.beta2": Computed(_betas, "optimizer_config.adam_betas"),
        "optimizer.eps": Fixed(1e-8, "SkyRL has no setting for it"),
        "optimizer.weight_decay": Copied(_of_trained("optimizer_config.weight_decay")),
        "optimizer.grad_clip": Copied(_of_trained("optimizer_config.max_grad_norm")),
        **entries.bounded_staleness(
            "SkyRL's asynchronous loop (trainer.fully_async) bounds how many groups are "
            "ahead in all, and single ones may be older",
            "trainer.fully_async.enabled",
        ),
        **entries.PLAYED_ONCE,
        "training.iterations": Elsewhere(f"rows of {TRAIN_FILE}"),
        "training.tasks": Copied("trainer.train_batch_size"),
        "training.group_size": (Copied("generator.n_samples_per_prompt"), entries.GROUPED),
        "training.precision": (
            Computed(
                _precision,
                "fsdp_config.mixed_precision, trainer.bf16, inference_engine.model_dtype",
            ),
            entries.computed_in_bf16("FSDP's mixed precision, bf16 weights in rollouts"),
            Departs(
                lambda run, value: value == "fp32" and not run.hardware.cpu,
                "SkyRL's passes are under autocast to bf16 on a GPU",
                "unmatched",
            ),
        ),
        "hardware.nodes": Copied(_of_all("placement.{model}_num_nodes")),
        "hardware.gpus_per_node": Copied(_of_all("placement.{model}_num_gpus_per_node")),
        "hardware.engine.tensor_parallel": Copied(f"{_ENGINE}.tensor_parallel_size"),
        "hardware.engine.memory_share": Copied(f"{_ENGINE}.gpu_memory_utilization"),
        "hardware.learner.tensor_parallel": Fixed(
            1, "FSDP does not divide matrices; in SkyRL only Megatron does"
        ),
        "hardware.learner.sequence_parallel": Copied(_of_all("{model}.sequence_parallel_size")),
        "hardware.learner.pass_tokens": Computed(
            _passes,
            "trainer.max_tokens_per_microbatch with flash attention, else "
            "trainer.micro_train_batch_size_per_gpu",
        ),
        "hardware.learner.checkpointing": Copied("trainer.gradient_checkpointing"),
        "hardware.learner.offload": (
            Elsewhere("SkyRL's default"),
            Departs(
                lambda run, value: value,
                "SkyRL moves the learner to main memory while engines sample, whatever is set",
            ),
        ),
        "hardware.learner.attention": Computed(_attention, "trainer.flash_attn"),
        "hardware.checkpoint_every": Computed(_checkpoints, "trainer.ckpt_interval"),
        "hardware.logger": Computed(_logger, "trainer.logger"),
    },
    others=(
        entries.critic_head,
        entries.optimizer_weights("AdamW on FSDP's shards"),
    ),
    untold=(
        entries.untold(
            lambda run: run.spec.sampling.temperature != 1 and not run.spec.sampling.whole,
            entries.OTHER_DISTRIBUTION,
        ),
    ),
)
"""How SkyRL realises each setting."""

PAIRS = (
    pairs(
        "learner.sequence_parallel",
        "sdpa",
        "refused",
        "SkyRL divides rows with flash attention only; install flash-attn, or set "
        "sequence_parallel to 1",
    ),
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs("gpus_per_node", {"gpus_per_node", "sdpa", "fp32"}, "runs", "test_ranks.py, on the CPU"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in SkyRL."""

adapter = Adapter(
    "skyrl", SUPPORTED_SKYRL, "skyrl", TABLE, _compile, check=check_skyrl, pairs=PAIRS
)
