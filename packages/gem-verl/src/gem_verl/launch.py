"""gem-bench's hook: a RunSpec becomes verl's own command, `python -m verl.trainer.main_ppo ...`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gem.errors import ConfigurationError
from gem.tasks import TaskSet
from gem_train import entries, platforms
from gem_train.experiment.hardware import sees
from gem_train.experiment.tasksets import Source
from gem_train.hydra import hydra_value
from gem_train.launch import Adapter, Launch
from gem_train.pairs import COMPUTED, ON_CPU, pairs
from gem_train.passes import TO_PASS, UNPADDED, Passes, named
from gem_train.platforms import Platform
from gem_train.table import Computed, Copied, Departs, Fixed, Refused, Run, Table, namesakes
from gem_verl import SUPPORTED_VERL, check_verl
from gem_verl.settings import (
    CRITIC,
    FLASH,
    LOADED,
    PREFIX,
    SPLIT,
    UNMASKED,
    WORKER,
    Settings,
    fuses,
)

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"

_CHECKPOINTS = "checkpoints"
"""Folder in the run folder. verl goes on from what is there (`trainer.resume_mode=auto`)."""


def _compile(run: Run) -> Launch:
    """Return verl's command.

    Raises:
        ConfigurationError: verl cannot run this spec; the message names the key.
    """
    settings = _always(run) | TABLE.settings(run)
    if not run.critic:
        settings = {k: v for k, v in settings.items() if not k.lstrip("+").startswith("critic.")}
    platform = platforms.of("verl", run.spec, run.run_dir, run.hardware, Platform())
    settings = TABLE.with_native(settings | platform.settings, run)
    overrides = [_override(key, value) for key, value in settings.items()]
    return Launch.of(
        run.spec,
        ["python", "-m", "verl.trainer.main_ppo", *overrides],
        platform,
        {"HYDRA_FULL_ERROR": "1", "RAY_DEDUP_LOGS": "0"},
        state=[_CHECKPOINTS],
        passes=_forward(run, settings),
    )


def _forward(run: Run, settings: Mapping[str, Any]) -> Passes:
    """Return how verl divides a batch: as many rows as fit the GPUs of a rank."""
    tokens, gpus = f"{_ACTOR}.ppo_max_token_len_per_gpu", "ulysses_sequence_parallel_size"
    tasks, step = "data.train_batch_size", f"{_ACTOR}.ppo_mini_batch_size"
    epochs = f"{_ACTOR}.ppo_epochs"
    unpadded = ("actor_rollout_ref.model.use_remove_padding", f"{_ACTOR}.use_dynamic_bsz")
    split = f"{_ACTOR}.fsdp_config.{gpus}"
    said = named(settings, *unpadded, tokens, split, tasks, step, epochs)
    # The rows of a step are of so many tasks. Where an episode has several rows, a step has room
    # for those of all episodes.
    steps = max(said[tasks] * entries.most_agents(run.spec) // said[step], 1)
    updates, most = said[epochs] * steps, said[tokens] * said[split]
    if _unpadded(run):
        return Passes("packed", UNPADDED, updates, most, None, said)
    return Passes("dynamic", TO_PASS, updates, most, None, said)


def _override(key: str, value: Any) -> str:
    # verl resolves its configuration twice: an escaped reference would be one the second time.
    if "${" in str(value):
        raise ConfigurationError(f"verl would take '${{' for a reference to another key: {value!r}")
    return f"{key}={hydra_value(value)}"


def _both(name: str) -> tuple[str, str]:
    """Return a setting's name of the policy and of the critic; `_compile` may drop the latter.

    Args:
        name: `{part}` is the network, `{fsdp}` its FSDP, `{model}` its model.
    """
    fsdp, model = f"{_ACTOR}.fsdp_config", "actor_rollout_ref.model"
    return (
        name.format(part=_ACTOR, fsdp=fsdp, model=model),
        name.format(part="critic", fsdp="critic.fsdp", model="critic.model"),
    )


def _always(run: Run) -> dict[str, Any]:
    """Return the settings that no single key decides."""
    tokens = run.spec.policy.tokens
    first = run.spec.task_set[0]
    none = Source(TaskSet(first.env_id, 1, first.seed, first.params), "none")
    return {
        "data.custom_cls.path": "pkg://gem_verl.dataset",
        "data.custom_cls.name": "GemDataset",
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,  # rows are made in a moment
        "data.val_files": [none.text],  # verl wants them even if it never validates
        f"{_ACTOR}.shuffle": False,
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ROLLOUT}.name": "vllm",
        f"{_ROLLOUT}.agent.default_agent_loop": "gem",
        f"{_ROLLOUT}.calculate_log_probs": True,
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz": True,
        f"{_ROLLOUT}.max_model_len": tokens,
        f"{_ROLLOUT}.max_num_batched_tokens": max(8192, tokens),
        f"{_ROLLOUT}.val_kwargs.temperature": 1.0,  # each evaluation has its own
        f"{_ROLLOUT}.val_kwargs.top_p": 1.0,  # of evaluations that have the default of a RunSpec
        f"{_ROLLOUT}.val_kwargs.top_k": -1,
        "reward.num_workers": 1,  # rewards come from environments
        "trainer.v1.trainer_mode": "gem_sync",
        "trainer.total_epochs": 1,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.project_name": "gem",
        "trainer.default_local_dir": run.run_dir / _CHECKPOINTS,
        "+gem.record_dir": run.run_dir,
        "hydra.run.dir": run.run_dir / "hydra",
        "critic.loss_agg_mode": "token-mean",  # of one token per turn: a mean over turns
        **(_SEEING if sees(run.spec.policy.model) and run.spec.policy.one_row else {}),
        **dict.fromkeys((*_both("{part}.strategy"), *_both("{fsdp}.strategy")), "fsdp2"),
        **dict.fromkeys(_both("{model}.use_remove_padding"), _unpadded(run)),
        **dict.fromkeys(_both("{part}.optim.optimizer"), "AdamW"),
    }


_SEEING = {f"{_ROLLOUT}.load_format": LOADED, f"+{UNMASKED}": WORKER}
"""Of models that see; `gem_verl.settings` says why."""


def _unpadded(run: Run) -> bool:
    """Return whether rows are put one after the other; side by side they are filled up.

    In models that see verl does it with flash attention only.
    """
    return not sees(run.spec.policy.model) or "flash" in run.attention


def _evaluations(run: Run) -> dict[str, Any]:
    return {
        "data.val_files": [source.text for source in run.spec.evaluations],
        "trainer.val_before_train": True,
        "trainer.test_freq": run.spec.eval_every,
    }


def _model(run: Run) -> dict[str, Any]:
    paths = (*_both("{model}.path"), "critic.model.tokenizer_path")
    return {
        **dict.fromkeys(paths, run.spec.policy.model),
        # With neither these kernels nor flash attention, verl takes one token after the other.
        "actor_rollout_ref.model.use_fused_kernels": run.fused,
    }


def _estimator(run: Run) -> dict[str, Any]:
    name = f"{PREFIX}{run.spec.algorithm.advantage}"
    return {"algorithm.adv_estimator": name, "critic.enable": run.critic}


def _mini_batch(run: Run) -> dict[str, Any]:
    """Return the size of a minibatch in tasks; verl takes `group_size` times as many rows."""
    policy = run.spec.policy
    size = run.spec.training.tasks * entries.most_agents(run.spec)
    if policy.one_row:
        size //= run.spec.algorithm.minibatches
    else:
        # Rows are turns. verl fills a batch up to a multiple of this size. No batch exceeds it, so
        # that a batch makes one update. The table refuses a policy without a limit of turns.
        size *= cast("int", policy.turns)
    return {f"{_ACTOR}.ppo_mini_batch_size": size}


_AGGREGATIONS = {
    "token-mean": "token-mean",
    "row-mean-token-sum": "seq-mean-token-sum",
    "row-mean-token-mean": "seq-mean-token-mean",
    "row-mean-token-sum-norm": "seq-mean-token-sum-norm",
}
_KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


def _loss(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    sequence = {"ppo": "gspo", "cispo": "cispo", "sapo": "sapo"}
    token = {"ppo": "vanilla", "cispo": "cispo", "sapo": "sapo"}
    names = sequence if algorithm.ratio == "sequence" else token
    return {f"{_ACTOR}.policy_loss.loss_mode": names[algorithm.loss]}


def _clip(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    # The weight of CISPO has no lower limit.
    low = algorithm.clip if algorithm.loss == "ppo" else 1.0
    return {
        f"{_ACTOR}.clip_ratio": algorithm.clip,
        f"{_ACTOR}.clip_ratio_low": low,
        f"{_ACTOR}.clip_ratio_high": algorithm.highest,
        # verl clips the weight of bad actions by default, which the plain surrogate does not.
        f"{_ACTOR}.clip_ratio_c": algorithm.dual_clip or 1e9,
    }


def _aggregation(run: Run) -> dict[str, Any]:
    name = _AGGREGATIONS[run.spec.algorithm.loss_aggregation]
    norm = {f"{_ACTOR}.loss_scale_factor": run.spec.policy.response_tokens}
    return {f"{_ACTOR}.loss_agg_mode": name, **(norm if name.endswith("-norm") else {})}


def _kl(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    weight, in_loss = algorithm.kl_coef, algorithm.kl_in == "loss"
    return {
        f"{_ACTOR}.kl_loss_coef": weight if in_loss else 0.0,
        f"{_ACTOR}.use_kl_loss": weight > 0 and in_loss,
        f"{_ACTOR}.kl_loss_type": _KL[algorithm.kl_estimator],
        "algorithm.use_kl_in_reward": weight > 0 and not in_loss,
        "algorithm.kl_ctrl.kl_coef": 0.0 if in_loss else weight,
        "algorithm.kl_penalty": _KL[algorithm.kl_estimator],
    }


def _schedule(run: Run) -> dict[str, Any]:
    optimizer, steps = run.spec.optimizer, run.spec.steps
    return {
        **dict.fromkeys(_both("{part}.optim.lr_scheduler_type"), optimizer.schedule),
        **dict.fromkeys(_both("{part}.optim.lr_warmup_steps"), optimizer.warmup // steps),
        **dict.fromkeys(_both("{part}.optim.min_lr_ratio"), optimizer.min_lr_ratio),
    }


_ONCE = Departs(
    lambda run, value: run.spec.steps > 1 and value not in (0, "constant"),
    "verl changes the learning rate once an iteration, not at each of its {run.spec.steps} steps",
)


def _correction(run: Run) -> dict[str, Any]:
    algorithm, correction = run.spec.algorithm, "algorithm.rollout_correction"
    found: dict[str, Any] = {}
    if algorithm.weighs:
        # Two bounds make the weights outside 0.
        bounds = [each for each in (algorithm.tis_floor, algorithm.tis_clip) if each is not None]
        both = "_".join(map(repr, bounds)) if len(bounds) > 1 else bounds[0]
        found[f"{correction}.rollout_is"] = algorithm.tis_level
        found[f"{correction}.rollout_is_threshold"] = both
    if algorithm.rejects:
        # Of the inverse ratio, sampler to trainer.
        bounds = [1 / each for each in (algorithm.reject_high, algorithm.reject_low) if each]
        found[f"{correction}.rollout_rs"] = _REJECTIONS[algorithm.reject_level]
        found[f"{correction}.rollout_rs_threshold"] = "_".join(map(repr, bounds))
    return found


_REJECTIONS = {"token": "token_k1", "sequence": "seq_sum_k1", "mean": "seq_mean_k1"}


def _after(iterations: int) -> int:
    return iterations + 1 if iterations else 0


def _both_bounds(run: Run) -> bool:
    algorithm = run.spec.algorithm
    return algorithm.tis_floor is not None and algorithm.tis_clip is not None


def _both_rejections(run: Run) -> bool:
    algorithm = run.spec.algorithm
    return algorithm.reject_low is not None and algorithm.reject_high is not None


_REJECTED = (
    Computed(_correction, "algorithm.rollout_correction.rollout_rs_threshold"),
    Refused(
        lambda run, value: value is not None and not _both_rejections(run),
        "verl wants both bounds; set algorithm.reject_low and algorithm.reject_high",
    ),
    Refused(
        lambda run, value: (
            value is not None and run.spec.algorithm.loss_aggregation == "row-mean-token-mean"
        ),
        "a row's mean in verl leaves rejected tokens out; choose the loss_aggregation 'token-mean'",
    ),
    Refused(
        lambda run, value: (
            value is not None
            and run.spec.algorithm.ratio == "sequence"
            and run.spec.algorithm.reject_level == "token"
        ),
        "verl's ratio of a sequence leaves rejected tokens out; choose the reject_level 'sequence'",
    ),
)


def _betas(run: Run) -> dict[str, Any]:
    return dict.fromkeys(_both("{part}.optim.betas"), run.spec.optimizer.betas)


def _precision(run: Run) -> dict[str, Any]:
    if run.spec.training.precision == "bf16":
        return {}  # verl's default
    networks = [*_both("{fsdp}")]
    if run.spec.algorithm.kl_coef > 0:
        networks.append("actor_rollout_ref.ref.fsdp_config")
    parts = ("param", "reduce", "buffer")
    types = [f"+{fsdp}.mixed_precision.{part}_dtype" for fsdp in networks for part in parts]
    return {f"{_ROLLOUT}.dtype": "float32", **dict.fromkeys(types, "fp32")}


def _loggers(run: Run) -> dict[str, Any]:
    logger = run.hardware.logger
    return {"trainer.logger": ["console"] if logger is None else ["console", logger]}


TABLE = Table(
    "verl",
    {
        **entries.ALL_WEIGHTS,
        "policy.lora_rank": Fixed(
            0,
            "verl's adapters (PEFT) have two factors for each projection; those of the RunSpec "
            "share the first one between projections that read the same input",
        ),
        **entries.SHARED_GPUS,
        **entries.tasks(
            Computed(
                lambda run: {"data.train_files": run.spec.task_set.uri},
                "data.train_files, data.shuffle=False",
            )
        ),
        **entries.evaluations(Computed(_evaluations, "data.val_files, trainer.test_freq")),
        **namesakes(Settings, "+gem.{}"),
        "name": Copied("trainer.experiment_name"),
        "seed": (
            Copied(("+gem.seed", "data.seed", f"{_ROLLOUT}.seed", *_both("{fsdp}.seed"))),
            entries.seeds(),
        ),
        "policy.model": Computed(_model, ", ".join(_both("{model}.path"))),
        "policy.prompt_tokens": Copied("data.max_prompt_length"),
        "policy.response_tokens": Copied("data.max_response_length"),
        "policy.turns": (
            Copied("+gem.turns"),
            Refused(
                lambda run, value: value is None and not run.spec.policy.one_row,
                "{run.spec.policy.shown} makes a row per turn, and verl must know how many there "
                "can be; set it to the environment's limit",
            ),
        ),
        "sampling.temperature": Copied(f"{_ROLLOUT}.temperature"),
        "sampling.top_p": Copied(f"{_ROLLOUT}.top_p"),
        "sampling.top_k": Copied(f"{_ROLLOUT}.top_k"),
        "algorithm.advantage": Computed(_estimator, "algorithm.adv_estimator, critic.enable"),
        "algorithm.gamma": Copied("algorithm.gamma"),
        "algorithm.lam": Copied("algorithm.lam"),
        "algorithm.loss": Computed(_loss, "actor.policy_loss.loss_mode"),
        "algorithm.sapo_positive": Copied(f"{_ACTOR}.tau_pos"),
        "algorithm.sapo_negative": Copied(f"{_ACTOR}.tau_neg"),
        "algorithm.ratio": (
            Computed(_loss, "actor.policy_loss.loss_mode"),
            Refused(
                lambda run, value: value == "sequence" and run.spec.algorithm.loss != "ppo",
                "verl's '{run.spec.algorithm.loss}' has ratios of tokens only; set it to 'token'",
            ),
        ),
        "algorithm.clip": Computed(_clip, "actor.clip_ratio, actor.clip_ratio_low"),
        "algorithm.clip_high": Computed(_clip, "actor.clip_ratio_high"),
        "algorithm.dual_clip": (
            Computed(_clip, "actor.clip_ratio_c"),
            Refused(
                lambda run, value: value is not None and run.spec.algorithm.ratio == "sequence",
                "verl's 'gspo' has no second clip; leave it out",
            ),
        ),
        "algorithm.group_std": Copied("algorithm.norm_adv_by_std_in_grpo"),
        "algorithm.epochs": Copied(f"{_ACTOR}.ppo_epochs"),
        "algorithm.minibatches": (
            Computed(_mini_batch, "actor.ppo_mini_batch_size"),
            Refused(
                lambda run, value: run.spec.training.tasks % value > 0,
                "verl cuts a batch between tasks; training.tasks={run.spec.training.tasks} does "
                "not divide into so many",
            ),
            *entries.whole_rows("verl"),
            entries.WHOLE_STEPS,
        ),
        "algorithm.loss_aggregation": (
            Computed(_aggregation, "actor.loss_agg_mode"),
            entries.aggregations("verl", _AGGREGATIONS),
            entries.MEANS_OF_ROWS,
            Departs(
                lambda run, value: value != "token-mean" and not run.spec.policy.one_row,
                "verl also counts the rows that it fills batches up with: the loss is scaled down",
            ),
        ),
        **entries.FIXED_REFERENCE,
        "algorithm.kl_coef": Computed(_kl, "actor.kl_loss_coef, actor.use_kl_loss"),
        "algorithm.kl_in": Computed(_kl, "actor.use_kl_loss or algorithm.use_kl_in_reward"),
        "algorithm.kl_estimator": Computed(_kl, "actor.kl_loss_type, algorithm.kl_penalty"),
        "algorithm.entropy_coef": Copied(f"{_ACTOR}.entropy_coeff"),
        "algorithm.tis_clip": Computed(
            _correction, "algorithm.rollout_correction.rollout_is_threshold"
        ),
        "algorithm.tis_floor": (
            Computed(_correction, "algorithm.rollout_correction.rollout_is_threshold"),
            Refused(
                lambda run, value: value is not None and run.spec.algorithm.tis_outside == "clip",
                "verl's lower bound makes weights 0; set algorithm.tis_outside to 'zero'",
            ),
        ),
        "algorithm.tis_level": Computed(_correction, "algorithm.rollout_correction.rollout_is"),
        "algorithm.tis_outside": (
            Computed(_correction, "two bounds in rollout_correction.rollout_is_threshold"),
            Refused(
                lambda run, value: value == "zero" and not _both_bounds(run),
                "verl wants both bounds; set algorithm.tis_floor and algorithm.tis_clip",
            ),
        ),
        "algorithm.reject_low": _REJECTED,
        "algorithm.reject_high": _REJECTED,
        "algorithm.reject_level": Computed(_correction, "algorithm.rollout_correction.rollout_rs"),
        "algorithm.value_lr": Copied("critic.optim.lr"),
        "algorithm.critic_warmup": (
            # verl trains the policy from this step on, and counts from 1.
            Computed(
                lambda run: {"trainer.critic_warmup": _after(run.spec.algorithm.critic_warmup)},
                "trainer.critic_warmup",
            ),
            entries.SCHEDULED_LATE,
        ),
        "algorithm.value_clip": Copied(
            "critic.cliprange_value", "critic.cliprange_value, trained where turns begin"
        ),
        "optimizer.lr": Copied(f"{_ACTOR}.optim.lr"),
        "optimizer.type": Fixed("adamw", "verl is given optim.optimizer=AdamW"),
        "optimizer.schedule": (
            Computed(_schedule, "optim.lr_scheduler_type"),
            _ONCE,
            Refused(lambda run, value: value == "linear", "verl has 'constant' and 'cosine'"),
        ),
        "optimizer.warmup": (
            Computed(_schedule, "optim.lr_warmup_steps"),
            _ONCE,
            Refused(
                lambda run, value: value % run.spec.steps > 0,
                "verl changes the learning rate once an iteration: it must be a multiple of the "
                "iteration's {run.spec.steps} steps",
            ),
        ),
        "optimizer.min_lr_ratio": Computed(_schedule, "optim.min_lr_ratio"),
        "optimizer.beta1": Computed(_betas, "actor.optim.betas, critic.optim.betas"),
        "optimizer.beta2": Computed(_betas, "actor.optim.betas, critic.optim.betas"),
        "optimizer.eps": Copied(_both("+{part}.optim.override_optimizer_config.eps")),
        "optimizer.weight_decay": Copied(_both("{part}.optim.weight_decay")),
        "optimizer.grad_clip": Copied(_both("{part}.optim.clip_grad")),
        **entries.bounded_staleness(
            "verl's asynchronous modes (trainer.v1.trainer_mode) bound how old weights "
            "are, and mix versions in a batch",
        ),
        **entries.PLAYED_ONCE,
        "training.iterations": Copied("trainer.total_training_steps"),
        "training.tasks": Copied("data.train_batch_size"),
        "training.group_size": (Copied(f"{_ROLLOUT}.n"), entries.GROUPED),
        "training.precision": (
            Computed(_precision, "fsdp_config.mixed_precision, rollout.dtype"),
            entries.computed_in_bf16("autocast in training, bf16 weights in rollouts"),
        ),
        "hardware.nodes": Copied("trainer.nnodes"),
        "hardware.gpus_per_node": Copied("trainer.n_gpus_per_node"),
        "hardware.engine.tensor_parallel": Copied(f"{_ROLLOUT}.tensor_model_parallel_size"),
        "hardware.engine.memory_share": Copied(f"{_ROLLOUT}.gpu_memory_utilization"),
        "hardware.learner.tensor_parallel": Fixed(
            1, "FSDP does not divide matrices; in verl only Megatron does"
        ),
        "hardware.learner.sequence_parallel": Copied(
            _both("{fsdp}.ulysses_sequence_parallel_size")
        ),
        "hardware.learner.pass_tokens": Copied(
            (
                f"{_ACTOR}.ppo_max_token_len_per_gpu",
                "+critic.ppo_infer_max_token_len_per_gpu",  # V1 takes it for training, too
                f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
            )
        ),
        "hardware.learner.checkpointing": Copied(_both("{model}.enable_gradient_checkpointing")),
        "hardware.learner.offload": Copied(_both("{fsdp}.optimizer_offload")),
        "hardware.learner.attention": Copied(_both("+{model}.override_config.attn_implementation")),
        "hardware.checkpoint_every": Copied("trainer.save_freq"),
        "hardware.logger": Computed(_loggers, "trainer.logger"),
    },
    others=(
        entries.critic_head,
        entries.optimizer_weights(
            "fsdp_config.model_dtype=fp32, AdamW on FSDP's shards", *_both("{fsdp}.model_dtype")
        ),
    ),
    untold=(
        entries.untold(lambda run: not run.spec.sampling.whole, entries.OTHER_DISTRIBUTION),
        entries.untold(
            lambda run: run.spec.algorithm.loss_aggregation != "token-mean",
            "verl adds it up as it adds up the loss",
            ("entropy", "kl"),
        ),
    ),
    fused=lambda spec: fuses(spec.policy.model),
)
"""How verl realises each setting."""

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

adapter = Adapter(
    "verl",
    SUPPORTED_VERL,
    "verl",
    TABLE,
    _compile,
    all_seats=True,
    images=True,
    keeps_state=True,
    check=check_verl,
    pairs=PAIRS,
)
