"""gem-bench's hook: a RunSpec becomes oat's own kind of command, `python -m gem_oat --flags`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import starmap
from math import prod
from typing import Any

from gem_oat import SUPPORTED_OAT, check_oat
from gem_train import entries, platforms
from gem_train.experiment.hardware import logit_scales
from gem_train.experiment.losses import Correction, PolicyLoss
from gem_train.experiment.runspec import SamplingPart
from gem_train.launch import Adapter, Launch
from gem_train.pairs import COMPUTED, ON_CPU, pairs
from gem_train.passes import TO_PASS, Passes, named
from gem_train.settings import Settings
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


def _compile(run: Run) -> Launch:
    """Return oat's command.

    Raises:
        ConfigurationError: oat cannot run this spec; the message names the key.
    """
    platform = platforms.of("oat", run.spec, run.run_dir, run.hardware, _SHARED_GPUS)
    flags = TABLE.with_native(_always(run) | platform.settings | TABLE.settings(run), run)
    argv = ["python", "-m", "gem_oat", *starmap(_argument, flags.items())]
    passes = _forward(flags)
    return Launch.of(run.spec, argv, platform, state=["oat/checkpoints"], passes=passes)


def _forward(flags: Mapping[str, Any]) -> Passes:
    """Return how `gem_oat.update` divides a batch."""
    batch, step = ("rollout_batch_size", "num_samples"), "train_batch_size"
    epochs, tokens = "num_ppo_epochs", "gem_forward_tokens"
    said = named(flags, *batch, step, epochs, tokens)
    steps = said[epochs] * (prod(said[name] for name in batch) // said[step])
    return Passes("dynamic", TO_PASS, steps, said[tokens], None, said)


def _always(run: Run) -> dict[str, Any]:
    """Return the flags that no key decides."""
    return {
        "max_model_len": run.spec.policy.tokens,
        "critic_type": "ppo" if run.critic else "drgrpo",
        "eval_steps": -1,
        "zero_stage": 2,
        "collocate": True,
        "use_fused_lm_head": not logit_scales(run.spec.policy.model),
        "gem_record_dir": run.run_dir,
        "save_path": run.run_dir / "oat",
    }


def _evaluations(run: Run) -> dict[str, Any]:
    texts = [source.text for source in run.spec.evaluations]
    return {"gem_eval": " ".join(texts), "eval_steps": run.spec.eval_every}


def _schedule(run: Run) -> dict[str, Any]:
    return {
        "lr_scheduler": run.spec.optimizer.hugging_face,
        "lr_warmup_ratio": entries.warmup_ratio(run, up=True),
    }


def _checkpoints(run: Run) -> dict[str, Any]:
    every = run.hardware.checkpoint_every
    return {"gem_resume": False} if every is None else {"gem_resume": True, "save_steps": every}


_RAW = (
    "oat's engine reports log-probabilities at temperature 1, before tokens are left out or "
    "penalised"
)
_UNRESTRICTED = Refused(
    lambda run, value: value not in (None, "token", "clip") and run.spec.sampling != SamplingPart(),
    f"{_RAW}; leave it out",
)

TABLE = Table(
    "oat",
    {
        **entries.ALL_WEIGHTS,
        **entries.SHARED_GPUS,
        **entries.tasks(Computed(lambda run: {"gem_tasks": run.spec.task_set.uri}, "gem_tasks")),
        **entries.evaluations(Computed(_evaluations, "gem_eval, eval_steps")),
        **namesakes(Settings, "gem_{}"),
        **namesakes(PolicyLoss, "gem_{}"),
        **{key: (way, _UNRESTRICTED) for key, way in namesakes(Correction, "gem_{}").items()},
        "name": Copied("wb_run_name"),
        "seed": (Copied(("gem_seed", "seed")), entries.seeds()),
        "policy.model": Copied("pretrain"),
        "policy.prompt_tokens": Copied("prompt_max_length"),
        "policy.response_tokens": Elsewhere("max_model_len less prompt_max_length"),
        "policy.turn_tokens": Copied(("generate_max_length", "eval_generate_max_length")),
        "sampling.temperature": Copied("temperature"),
        "sampling.top_p": Copied("top_p"),
        "sampling.top_k": Copied("top_k"),
        "sampling.min_p": Copied("gem_min_p"),
        "sampling.repetition_penalty": Copied("gem_repetition_penalty"),
        "algorithm.advantage": Copied(
            "gem_advantage", "gem_advantage; critic_type decides whether there is a critic"
        ),
        "algorithm.gamma": Copied("gamma"),
        "algorithm.lam": Copied("lam"),
        "algorithm.clip": Copied("cliprange"),
        "algorithm.epochs": Copied("num_ppo_epochs"),
        "algorithm.minibatches": (
            Computed(lambda run: {"train_batch_size": run.step_episodes}, "train_batch_size"),
            entries.WHOLE_MINIBATCHES,
            entries.WHOLE_STEPS,
            Departs(
                lambda run, value: value > 1 and run.hardware.ranks > 1,
                "each rank divides its own tasks into minibatches",
            ),
        ),
        **entries.FIXED_REFERENCE,
        "algorithm.critic_warmup": (Copied("gem_critic_warmup"), entries.SCHEDULED_LATE),
        "algorithm.kl_coef": Copied("beta"),
        "algorithm.kl_in": Fixed("loss", "oat has the penalty in the loss"),
        "algorithm.entropy_coef": Fixed(0, "oat's loss has no entropy bonus"),
        "algorithm.tis_clip": (
            # oat corrects by default.
            Computed(lambda run: {"tis_c": run.spec.algorithm.tis_clip or "None"}, "tis_c"),
            _UNRESTRICTED,
        ),
        "algorithm.value_lr": Copied("critic_learning_rate"),
        "algorithm.value_clip": Copied("cliprange_value"),
        "optimizer.lr": Copied("learning_rate"),
        "optimizer.type": Fixed("adamw", "oat's own"),
        "optimizer.schedule": (
            Computed(_schedule, "lr_scheduler"),
            Refused(
                lambda run, value: value != "constant" and run.critic,
                "oat cannot make the critic's; set it to 'constant'",
            ),
        ),
        "optimizer.warmup": Computed(_schedule, "lr_warmup_ratio"),
        "optimizer.min_lr_ratio": (
            Computed(_schedule, "lr_scheduler"),
            entries.no_linear_minimum("oat"),
            Refused(
                lambda run, value: value not in (0, 0.1),
                "oat's 'cosine_with_min_lr' ends at a tenth of the learning rate; set it to 0.1 or "
                "0",
            ),
        ),
        "optimizer.beta1": Copied("adam_beta_1"),
        "optimizer.beta2": Copied("adam_beta_2"),
        "optimizer.eps": Fixed(1e-8, "oat's optimiser has 1e-8, and no flag"),
        "optimizer.weight_decay": (Copied("l2"), entries.NO_DECAY),
        "optimizer.grad_clip": Copied("max_norm"),
        **entries.bounded_staleness(
            "oat's asynchronous mode (asynchronous, sync_params_every) does not say which"
            " weights have sampled",
        ),
        **entries.PLAYED_ONCE,
        "training.iterations": Computed(
            lambda run: {"max_train": run.spec.training.tasks * run.spec.training.iterations},
            "max_train",
        ),
        "training.tasks": Copied("rollout_batch_size"),
        "training.group_size": (Copied("num_samples"), entries.GROUPED),
        "training.precision": (
            Computed(lambda run: {"bf16": run.spec.training.precision == "bf16"}, "bf16"),
            entries.computed_in_bf16("bf16 weights and gradients, fp32 in the optimiser"),
        ),
        "hardware.nodes": Fixed(
            1, "groups of nodes are started by hand (--group_rank, --master_addr)"
        ),
        "hardware.gpus_per_node": Copied("gpus"),
        "hardware.engine.tensor_parallel": Fixed(1, "oat has an engine on each GPU"),
        "hardware.engine.memory_share": Copied("vllm_gpu_ratio"),
        "hardware.learner.tensor_parallel": Fixed(1, "DeepSpeed's ZeRO divides no matrices"),
        "hardware.learner.sequence_parallel": Fixed(1, "oat's learner takes whole rows"),
        "hardware.learner.pass_tokens": Copied("gem_forward_tokens"),
        "hardware.learner.checkpointing": Copied("gradient_checkpointing"),
        "hardware.learner.offload": Copied("adam_offload"),
        "hardware.learner.attention": Computed(
            lambda run: {"flash_attn": run.attention == "flash_attention_2"}, "flash_attn"
        ),
        "hardware.checkpoint_every": Computed(_checkpoints, "save_steps, gem_resume"),
        "hardware.logger": Computed(
            lambda run: {"use_wb": run.hardware.logger == "wandb"}, "use_wb"
        ),
    },
    others=(
        entries.critic_head,
        entries.optimizer_weights("DeepSpeed's ZeRO keeps them beside those in bf16"),
    ),
    untold=(entries.untold(lambda run: run.spec.sampling.temperature != 1, _RAW),),
    fused=lambda spec: not logit_scales(spec.policy.model),
)
"""How oat realises each setting: its own flags, and GEM's, which begin with `gem_`."""

_SHARED_GPUS = platforms.Platform(
    {"vllm_sleep": True, "vllm_gpu_ratio": 0.45, "enable_prefix_caching": True}
)
"""Actors and learners on the same GPUs, one after the other."""

PAIRS = (
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs("gpus_per_node", {"sdpa", "fp32"}, "runs", "test_real_runs.py, on the CPU"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in oat."""

adapter = Adapter(
    "oat", SUPPORTED_OAT, "oat", TABLE, _compile, all_seats=True, check=check_oat, pairs=PAIRS
)


def _argument(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"
