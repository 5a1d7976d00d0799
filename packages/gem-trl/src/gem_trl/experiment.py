"""A RunSpec in TRL's terms: the table, the trainer's settings, and its GRPOConfig."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_type_hints

from gem.errors import ConfigurationError
from gem_train import entries
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.passes import pass_tokens
from gem_train.settings import refuse_values
from gem_train.table import (
    Computed,
    Copied,
    Departs,
    Elsewhere,
    Fixed,
    Ignored,
    Parity,
    Refused,
    Run,
    Table,
    below,
    namesakes,
)
from gem_trl.lora import BEGINNING
from gem_trl.settings import FILLED_UP, NO_CRITIC, ONE_ROW, TOKEN_MEANS, GemSettings

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints, in the record's."""

SEEDS = "seed: one stream of random numbers in a process; others than in other trainers"
OWN = "TRL corrects what vLLM samples, and here its own model does; leave it out"
GEM, GIVEN = "GemSettings.", "GRPOConfig."
"""Before the names of `GemSettings`, and of fields of GRPOConfig that the command is given because
hardware decides them. Names without either are fields that the experiment decides."""

_ROWS = entries.one_row(ONE_ROW)


def _top_k(run: Run) -> dict[str, Any]:
    return {"top_k": max(run.spec.sampling.top_k, 0)}


def _correction(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    outside = {"clip": "truncate", "zero": "mask"}[algorithm.tis_outside]
    chosen: dict[str, Any] = {
        "vllm_importance_sampling_correction": algorithm.weighs,
        "vllm_importance_sampling_mode": f"{algorithm.tis_level}_{outside}",
        f"{GEM}importance_sampling": algorithm.weighs,
    }
    if algorithm.weighs:
        chosen["vllm_importance_sampling_clip_max"] = algorithm.tis_clip
        chosen["vllm_importance_sampling_clip_min"] = algorithm.tis_floor
    return chosen


_LOSS_TYPES = {
    "token-mean": "dapo",
    "row-mean-token-sum": "luspo",
    "row-mean-token-mean": "grpo",
    "row-mean-token-sum-norm": "dr_grpo",
}
"""TRL's `loss_type` of the clipped surrogate."""

_FILLED_UP = Refused(
    lambda run, value: (
        value not in (None, False)
        and run.spec.algorithm.loss_aggregation in _LOSS_TYPES
        and _loss(run)["loss_type"] not in TOKEN_MEANS
    ),
    f"{FILLED_UP}; choose the loss_aggregation 'token-mean'",
)


def _loss(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    cispo, highest = algorithm.loss == "cispo", algorithm.highest
    surrogate = _LOSS_TYPES[algorithm.loss_aggregation]
    return {
        "loss_type": surrogate if algorithm.loss == "ppo" else algorithm.loss,
        # CISPO's is the largest weight itself.
        "epsilon_high": 1 + highest if cispo else highest,
    }


def _schedule(run: Run) -> dict[str, Any]:
    optimizer = run.spec.optimizer
    least = {"min_lr_rate": optimizer.min_lr_ratio} if optimizer.min_lr_ratio else {}
    return {
        "lr_scheduler_type": optimizer.hugging_face,
        "warmup_steps": optimizer.warmup,
        "lr_scheduler_kwargs": least,
    }


def _evaluations(run: Run) -> dict[str, Any]:
    every = run.spec.eval_every * run.spec.steps
    return {"eval_strategy": "steps", "eval_on_start": True, "eval_steps": every}


def _iterations(run: Run) -> dict[str, Any]:
    return {"max_steps": run.spec.training.iterations * run.spec.steps}


def _checkpoints(run: Run) -> dict[str, Any]:
    every = run.hardware.checkpoint_every
    return {} if every is None else {f"{GIVEN}save_steps": every * run.spec.steps}


def _attention(run: Run) -> dict[str, Any]:
    if run.attention == "sdpa":
        return {}
    return {f"{GIVEN}model_init_kwargs": {"attn_implementation": run.attention}}


def _pass_rows(run: Run) -> dict[str, Any]:
    rows = run.pass_tokens // run.spec.policy.tokens
    return {f"{GIVEN}per_device_train_batch_size": rows}


def _uncorrected(run: Run) -> Iterator[Parity]:
    if not run.spec.algorithm.weighs:
        how = "off, although on by default in TRL where vLLM samples"
        yield Parity("vllm_importance_sampling_correction", "matched", how)


TABLE = Table(
    "trl",
    {
        **entries.SHARED_GPUS,
        **entries.tasks(Elsewhere("train_dataset")),
        **entries.evaluations(
            Elsewhere("eval_dataset"), every=Computed(_evaluations, "eval_steps")
        ),
        **namesakes(GemSettings, f"{GEM}{{}}"),
        "name": Elsewhere("in run.json"),
        "seed": (Copied("seed", SEEDS), entries.seeds(SEEDS)),
        "policy.model": Elsewhere("model"),
        "policy.turn_tokens": Copied(("max_completion_length", f"{GEM}turn_tokens")),
        "policy.context": (Copied(f"{GEM}context"), _ROWS["policy.context"]),
        "policy.thinking": (Copied(f"{GEM}thinking"), _ROWS["policy.thinking"]),
        "policy.lora_rank": (
            Elsewhere("peft_config, for adapters"),
            Refused(
                lambda run, value: value > 0 and find_spec("peft") is None,
                "low-rank adapters are PEFT's: pip install 'gem-trl[peft]'",
            ),
        ),
        "policy.lora_alpha": Elsewhere("peft_config, for adapters"),
        "policy.lora_init": (
            Elsewhere("peft_config, for adapters"),
            Departs(
                lambda run, value: run.spec.policy.lora_rank > 0 and value is None,
                f"PEFT's, of the reference's distribution but another one; kept in {BEGINNING}/",
                "unmatched",
            ),
        ),
        "sampling.temperature": Copied("temperature"),
        "sampling.top_p": Copied("top_p"),
        "sampling.top_k": Computed(_top_k, "top_k"),
        "sampling.min_p": Computed(lambda run: {"min_p": run.spec.sampling.min_p or None}, "min_p"),
        "sampling.repetition_penalty": (
            Copied("repetition_penalty"),
            Departs(
                lambda run, value: value != 1,
                "where TRL's own model samples, not vLLM, the token that it pads with counts as "
                "one of the conversation",
            ),
        ),
        "algorithm.advantage": (
            Copied(f"{GEM}advantage"),
            Refused(lambda run, value: run.critic, NO_CRITIC),
        ),
        "algorithm.gamma": Copied(f"{GEM}gamma"),
        "algorithm.lam": Elsewhere("gae only"),
        "algorithm.loss": Computed(_loss, "loss_type"),
        "algorithm.sapo_positive": Copied("sapo_temperature_pos"),
        "algorithm.sapo_negative": Copied("sapo_temperature_neg"),
        "algorithm.clip": Copied("epsilon"),
        "algorithm.clip_high": Computed(_loss, "epsilon_high"),
        "algorithm.dual_clip": Copied("delta"),
        "algorithm.ratio": (Copied("importance_sampling_level"), *entries.constant_in_rows("TRL")),
        "algorithm.epochs": Copied("num_iterations"),
        "algorithm.minibatches": (
            Elsewhere("steps_per_generation, gradient_accumulation_steps"),
            entries.WHOLE_MINIBATCHES,
            entries.WHOLE_STEPS,
            Departs(
                lambda run, value: value > 1,
                "TRL draws the rows of a minibatch at random, and divides by the mean number of "
                "tokens of the batch's minibatches",
            ),
        ),
        "algorithm.loss_aggregation": (
            Computed(_loss, "loss_type"),
            entries.aggregations("TRL", _LOSS_TYPES),
            entries.MEANS_OF_ROWS,
            Refused(
                lambda run, value: run.spec.algorithm.loss == "cispo" and value != "token-mean",
                "TRL's 'cispo' is a mean over tokens; set it to 'token-mean'",
            ),
            Refused(
                lambda run, value: (
                    value == "row-mean-token-sum-norm"
                    and run.spec.policy.turn_tokens != run.spec.policy.response_tokens
                ),
                "TRL divides by max_completion_length, which is policy.turn_tokens; set it to "
                "policy.response_tokens = {run.spec.policy.response_tokens}",
            ),
            Departs(
                lambda run, value: value != "token-mean",
                "loss_type; void episodes count in the number of rows",
            ),
        ),
        "algorithm.kl_coef": (
            Copied("beta", "beta, use_bias_correction_kl=False"),
            Refused(
                lambda run, value: run.spec.policy.lora_init is not None and value > 0,
                "with an adapter to begin with, TRL's penalty is to the model without it; set it "
                "to 0",
            ),
        ),
        "algorithm.kl_estimator": Fixed("k3", "TRL's penalty is k3"),
        "algorithm.kl_in": Fixed("loss", "TRL has the penalty in the loss"),
        "algorithm.entropy_coef": (
            Copied("entropy_coef"),
            Departs(
                lambda run, value: value > 0,
                "the bonus is a mean of the forward passes' means, not of the tokens",
            ),
        ),
        **entries.plain_correction("TRL", without=("tis_floor", "tis_level", "tis_outside")),
        "algorithm.tis_clip": Computed(_correction, "vllm_importance_sampling_clip_max"),
        "algorithm.tis_floor": Computed(_correction, "vllm_importance_sampling_clip_min"),
        "algorithm.tis_level": Computed(_correction, "vllm_importance_sampling_mode"),
        "algorithm.tis_outside": Computed(_correction, "vllm_importance_sampling_mode"),
        "algorithm.kl_reset": Fixed(
            None,
            "TRL's checkpoints hold no reference model (sync_ref_model): a resumed run would go "
            "back to the first one",
        ),
        **entries.NO_CRITIC,
        "optimizer.lr": Copied("learning_rate"),
        "optimizer.type": Fixed("adamw", "optim=adamw_torch"),
        "optimizer.schedule": Computed(_schedule, "lr_scheduler_type"),
        "optimizer.warmup": Computed(_schedule, "warmup_steps"),
        "optimizer.min_lr_ratio": (
            Computed(_schedule, "lr_scheduler_kwargs"),
            entries.no_linear_minimum("TRL"),
        ),
        "optimizer.beta1": Copied("adam_beta1"),
        "optimizer.beta2": Copied("adam_beta2"),
        "optimizer.eps": Copied("adam_epsilon"),
        "optimizer.weight_decay": (Copied("weight_decay"), entries.NO_DECAY),
        "optimizer.grad_clip": Copied("max_grad_norm"),
        **entries.bounded_staleness(
            "TRL's asynchronous trainer (GemAsyncGRPOTrainer, in a program of one's own) "
            "bounds how old a sample is, and an optimiser step mixes versions",
        ),
        "training.extra_batches": (
            Copied(f"{GEM}extra_batches"),
            entries.without_schedule("the tasks of extra batches are rows of a dataset"),
            _FILLED_UP,
        ),
        "training.mask_overlong": (Copied(f"{GEM}mask_overlong"), _FILLED_UP),
        "training.iterations": Computed(_iterations, "max_steps"),
        "training.tasks": (
            Elsewhere("steps_per_generation"),
            Refused(lambda run, value: run.spec.episodes < 2, "TRL refuses a batch of one episode"),
        ),
        "training.group_size": (Copied(f"{GEM}group_size"), entries.GROUPED),
        "training.precision": Computed(
            lambda run: {"bf16": run.spec.training.precision == "bf16"}, "bf16"
        ),
        "hardware.nodes": Fixed(1, "torchrun or accelerate launch is started on each by hand"),
        "hardware.gpus_per_node": Elsewhere("torchrun --nproc-per-node"),
        "hardware.engine.tensor_parallel": Copied(f"{GIVEN}vllm_tensor_parallel_size"),
        "hardware.engine.memory_share": Copied(f"{GIVEN}vllm_gpu_memory_utilization"),
        "hardware.learner.tensor_parallel": Fixed(1, "a process has whole matrices"),
        "hardware.learner.sequence_parallel": Fixed(1, "a process has whole rows"),
        "hardware.learner.pass_tokens": Computed(_pass_rows, "per_device_train_batch_size"),
        "hardware.learner.checkpointing": Copied(f"{GIVEN}gradient_checkpointing"),
        "hardware.learner.offload": Ignored(),
        "hardware.learner.attention": Computed(_attention, "model_init_kwargs"),
        "hardware.executor": Elsewhere("GEM_EXECUTOR"),
        "hardware.checkpoint_every": Computed(_checkpoints, "save_steps"),
        "hardware.logger": Computed(
            lambda run: {f"{GIVEN}report_to": [*filter(None, [run.hardware.logger])]}, "report_to"
        ),
    },
    others=(
        entries.optimizer_weights(
            "TRL loads them in fp32, passes are under autocast", "model_init_kwargs"
        ),
        _uncorrected,
    ),
    untold=(
        entries.untold(
            lambda run: run.spec.algorithm.loss == "cispo",
            "TRL's cispo_clip_ratio leaves tokens with an advantage below 0 out",
            ["clip_fraction"],
        ),
        entries.untold(
            lambda run: run.spec.algorithm.loss == "ppo" and run.spec.algorithm.ratio == "sequence",
            "TRL's clip_ratio/region_mean is a share of rows, not of tokens",
            ["clip_fraction"],
        ),
    ),
    fused=lambda spec: True,
)
"""How TRL realises each setting."""


def check_spec(spec: RunSpec, folder: Path) -> None:
    """Refuse what TRL cannot do, or would silently do differently.

    Raises:
        ConfigurationError: The message names the key.
    """
    TABLE.refuse(_alone(spec, folder))


def gem_settings(spec: RunSpec, folder: Path) -> GemSettings:
    """Return the trainer's settings of an experiment with its record in a folder."""
    settings = below(TABLE.settings(_alone(spec, folder)), GEM)
    return GemSettings(record_dir=str(folder), **settings)


def check_correction(spec: RunSpec, vllm: object) -> None:
    """Refuse a correction of what TRL's own model samples.

    Args:
        spec: The experiment.
        vllm: Whether vLLM samples.

    Raises:
        ConfigurationError: The message names the key.
    """
    bounds = {f"algorithm.{key}": getattr(spec.algorithm, key) for key in ("tis_clip", "tis_floor")}
    refused = [(key, value is not None and not vllm, OWN) for key, value in bounds.items()]
    refuse_values(bounds, refused)


def _alone(spec: RunSpec, folder: Path) -> Run:
    """Return the run of an experiment, without what hardware decides."""
    return TABLE.run(spec, folder, Hardware())


def grpo_config(spec: RunSpec, folder: Path, processes: int, given: Mapping[str, Any]) -> Any:
    """Return the GRPOConfig of an experiment.

    Args:
        spec: The experiment, which `check_spec` accepts.
        folder: Of the record.
        processes: Number of processes that train.
        given: Further fields, for the hardware. Nothing checks that they do not change what is
            learned, and the record does not have them. A
            `per_device_train_batch_size` is the most episodes of a forward pass.

    Raises:
        ConfigurationError: The episodes of a batch do not divide among processes and minibatches,
            a field is unknown or follows from the experiment, a boolean is something else, or
            GRPOConfig refuses a value.
    """
    from trl import GRPOConfig

    _check_booleans(given)
    check_correction(spec, given.get("use_vllm"))
    most = pass_tokens(spec, Hardware()) // spec.policy.tokens
    values = {
        "output_dir": str(folder / CHECKPOINTS),
        "report_to": [],
        "disable_tqdm": True,
        "save_steps": 10 * spec.steps,
        "save_total_limit": 1,
        "per_device_train_batch_size": most,
        "per_device_eval_batch_size": 64,
        **given,
    }
    fixed = decided(spec, folder, processes, values.pop("per_device_train_batch_size"))
    if both := ", ".join(values.keys() & fixed.keys()):
        raise ConfigurationError(f"GRPOConfig: the experiment decides {both}; leave it out")
    try:
        return GRPOConfig(**values, **fixed)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"GRPOConfig: {error}") from error


def _check_booleans(given: Mapping[str, Any]) -> None:
    """Refuse other values of boolean fields: `use_vllm=False` is a text, which counts as true."""
    from trl import GRPOConfig

    for name, kind in get_type_hints(GRPOConfig).items():
        kinds = get_args(kind) or (kind,)
        if name in given and bool in kinds and str not in kinds:
            refused = not isinstance(given[name], kinds)
            refuse_values(given, [(name, refused, "choose true or false")], "GRPOConfig.")


def decided(spec: RunSpec, folder: Path, processes: int, most: int) -> dict[str, Any]:
    """Return the fields of GRPOConfig that follow from an experiment.

    Args:
        spec: The experiment.
        folder: Of the record.
        processes: Number of processes that train.
        most: Episodes that fit a forward pass.

    Raises:
        ConfigurationError: The episodes do not divide among processes and minibatches.
    """
    minibatches, size = spec.algorithm.minibatches, spec.training.group_size
    rows, left = divmod(spec.episodes, processes * minibatches)
    if left:
        raise ConfigurationError(
            f"training.tasks * training.group_size: {spec.episodes} episodes do not divide into "
            f"{minibatches} minibatches for {processes} processes"
        )
    forward = next(n for n in range(min(rows, most), 0, -1) if rows % n == 0)
    settings = TABLE.settings(_alone(spec, folder))
    return {
        **{k: v for k, v in settings.items() if not k.startswith((GEM, GIVEN))},
        # TRL refuses groups of one; GemGRPOTrainer corrects it when GRPOConfig is made.
        "num_generations": size if size > 1 else spec.episodes,
        "num_generations_eval": 1,
        "per_device_train_batch_size": forward,
        "gradient_accumulation_steps": rows // forward,
        "steps_per_generation": minibatches * rows // forward,
        "optim": "adamw_torch",
        "shuffle_dataset": False,
        "disable_dropout": True,
        "use_bias_correction_kl": False,
        "logging_steps": 1,
    }
