"""gem-bench's hook: a RunSpec becomes ROLL's YAML and the command of ROLL's own launcher.

`agentic.yaml` is what every configuration has; the table names the keys that are added to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from gem.errors import ConfigurationError
from gem.tasks import TaskSet
from gem_roll.checkout import LAUNCHER, check_roll
from gem_roll.settings import ONE_ROW, GemSettings
from gem_roll.version import SUPPORTED_ROLL
from gem_train import entries, platforms
from gem_train.launch import Adapter, Launch
from gem_train.pairs import COMPUTED, ON_CPU, pairs
from gem_train.passes import TO_PASS, UNPADDED, Passes, named
from gem_train.platforms import Platform
from gem_train.table import (
    Computed,
    Copied,
    Departs,
    Fixed,
    Ignored,
    Run,
    Table,
    namesakes,
)

Tree: TypeAlias = dict[str, Any]
CONFIG, BASE = "roll", Path(__file__).with_name("agentic.yaml")
"""Name of the configuration, a file in the run's folder; what it is made of."""
PARTS = ("actor_train", "critic", "reference", "actor_infer")
_PARAM_DTYPE = "strategy_args.strategy_config.param_dtype"
_TRAINING = "actor_train.training_args"
_PARTS = "gradient_accumulation_steps"
_SAMPLING = "actor_infer.generating_args"
_ENV = "custom_envs.train"


def _compile(run: Run) -> Launch:
    """Return ROLL's command.

    Raises:
        ConfigurationError: ROLL cannot run this spec; the message names the key.
        MissingExtraError: There is no checkout of ROLL.
        UnsupportedVersionError: It is of another commit.
    """
    roll = check_roll()
    if "${" in json.dumps(run.spec.to_mapping()):
        raise ConfigurationError("ROLL's configuration would take '${' for a reference")
    gpu = Platform(env=platforms.python_path(roll))
    platform = platforms.of("roll", run.spec, run.run_dir, run.hardware, gpu, path=[roll])
    settings = {
        "run_dir": str(run.run_dir),
        "sequence_length": run.spec.policy.tokens,
        "rollout_batch_size": run.spec.episodes,
        **TABLE.settings(run),
        **platform.settings,
    }
    settings = TABLE.with_native(settings, run)
    # Hydra takes a folder relative to the script, and no absolute one.
    folder = os.path.relpath(run.run_dir, (roll / LAUNCHER).parent)
    return Launch.of(
        run.spec,
        ["python", str(roll / LAUNCHER), "--config_path", folder, "--config_name", CONFIG],
        platform,
        {"ROLL_LOG_DIR": str(run.run_dir / "logs"), "TOKENIZERS_PARALLELISM": "false"},
        files={f"{CONFIG}.yaml": _config(run, settings)},
        passes=_forward(run, settings),
    )


def _forward(run: Run, settings: Mapping[str, Any]) -> Passes:
    """Return how ROLL divides a batch, all rows of which have the same length."""
    rows, parts = f"{_TRAINING}.per_device_train_batch_size", f"{_TRAINING}.{_PARTS}"
    batch, epochs, length = "rollout_batch_size", "ppo_epochs", "sequence_length"
    dynamic, packed = (
        f"actor_train.{name}" for name in ("use_dynamic_batching_in_train", "use_sequence_packing")
    )
    tokens = "actor_train.max_tokens_per_microbatch_in_train"
    said = named(settings, rows, parts, batch, epochs, length, dynamic, packed, tokens)
    steps = said[epochs] * (said[batch] // (said[rows] * said[parts] * run.hardware.ranks))
    padding = UNPADDED if said.get(packed) else f"to {said[length]:,} tokens ({length})"
    if said.get(dynamic):
        return Passes("dynamic", TO_PASS, steps, said.get(tokens), None, said)
    return Passes("fixed", padding, steps, said[rows] * said[length], said[rows], said)


def _config(run: Run, settings: Mapping[str, Any]) -> str:
    """Return ROLL's configuration with these settings, whose names have dots between tables."""
    tree: Tree = yaml.safe_load(BASE.read_text(encoding="utf-8"))
    for key, value in settings.items():
        *tables, name = key.split(".")
        table = tree
        for each in tables:
            table = table.setdefault(each, {})
        table[name] = value
    train = tree["custom_envs"]["train"]
    for part in run.spec.eval:
        source = part.source
        first = source.tasks[0]
        tasks = {"env_type": first.env_id, "env_config": dict(first.params)}
        own = {"first_seed": first.seed, "temperature": part.temperature, "tasks": None}
        tree["custom_envs"][f"eval:{source.name}"] = {
            **train,
            **tasks,
            "gem": {**train["gem"], **own},
        }
    unused = {"critic": not run.critic, "reference": not run.spec.algorithm.kl_coef}
    kept = {key: value for key, value in tree.items() if not unused.get(key)}
    return str(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))


def _tasks(run: Run) -> Tree:
    tasks = run.spec.task_set
    return {
        f"{_ENV}.env_type": tasks[0].env_id,
        f"{_ENV}.env_config": dict(tasks[0].params),
        f"{_ENV}.gem.first_seed": tasks[0].seed,
        f"{_ENV}.gem.tasks": None if isinstance(tasks, TaskSet) else tasks.uri,
    }


def _evaluations(run: Run) -> Tree:
    sizes = {f"eval:{each.name}": len(each.tasks) for each in run.spec.evaluations}
    return {
        "eval_steps": run.spec.eval_every,
        "val_batch_size": sum(sizes.values()),
        "val_env_manager.tags": [*sizes],
        "val_env_manager.num_groups_partition": [*sizes.values()],
    }


def _advantage(run: Run) -> Tree:
    return {
        f"{_ENV}.gem.advantage": run.spec.algorithm.advantage,
        "adv_estimator": "gae" if run.critic else "reinforce",
    }


def _kl(run: Run) -> Tree:
    weight = run.spec.algorithm.kl_coef
    return {"kl_loss_coef": weight, "use_kl_loss": weight > 0}


_AGGREGATIONS = {"token-mean": "token-mean", "row-mean-token-sum": "seq-mean-token-sum"}


def _loss(run: Run) -> Tree:
    return {"loss_agg_mode": _AGGREGATIONS[run.spec.algorithm.loss_aggregation]}


def _rows(run: Run) -> int:
    """Return the rows of a forward pass."""
    step = run.step_episodes // run.hardware.ranks
    fitting = run.pass_tokens // run.spec.policy.tokens
    return max(n for n in range(1, min(step, fitting) + 1) if step % n == 0)


def _steps(run: Run) -> Tree:
    step = run.step_episodes // run.hardware.ranks
    return {f"{_TRAINING}.gradient_accumulation_steps": step // _rows(run)}


def _precision(run: Run) -> Tree:
    precision = run.spec.training.precision
    settings: Tree = {"actor_train.model_args.dtype": precision}
    if precision == "fp32":
        # In bf16 ROLL would load the optimiser's weights in this type, too: where it is left out
        # they are fp32, and FSDP computes in bf16.
        settings[f"actor_train.{_PARAM_DTYPE}"] = "float32"
    return settings


def _gpus(run: Run) -> Tree:
    sharding = "actor_train.strategy_args.strategy_config"
    return {
        "num_gpus_per_node": run.hardware.gpus_per_node,
        **{f"{part}.device_mapping": f"list(range(0,{run.hardware.gpus}))" for part in PARTS},
        f"{sharding}.fsdp_size": run.hardware.gpus,
        f"{sharding}.reduce_dtype": "float32",
    }


def _attention(run: Run) -> Tree:
    name = run.attention.replace("flash_attention_2", "fa2")
    return {"actor_train.model_args.attn_implementation": name}


def _recomputing(run: Run) -> Tree:
    kept = not run.hardware.learner.checkpointing
    return {"actor_train.model_args.disable_gradient_checkpointing": kept}


_NEVER = 1_000_000_000
_ONE_ROW = entries.one_row(ONE_ROW)
_GEM = namesakes(GemSettings, f"{_ENV}.gem.{{}}")

TABLE = Table(
    "roll",
    {
        **entries.ALL_WEIGHTS,
        **entries.SHARED_GPUS,
        **entries.tasks(Computed(_tasks, _ENV)),
        **entries.evaluations(
            Computed(_evaluations, "custom_envs.eval:<name>, eval_steps"),
            "not at the end",
            lambda spec: spec.training.iterations % spec.eval_every == 0,
        ),
        **{
            f"eval.{name}": Fixed(usual, "an evaluation has a temperature of its own only")
            for name, usual in {"samples": 1, "top_p": 1.0, "top_k": -1, "min_p": 0.0}.items()
        },
        **_GEM,
        "name": Copied("exp_name"),
        "seed": (
            Copied("seed"),
            entries.seeds("vLLM's own; which turn gets which number depends on timing"),
        ),
        "policy.context": (Copied(f"{_ENV}.gem.context"), _ONE_ROW["policy.context"]),
        "policy.thinking": (Copied(f"{_ENV}.gem.thinking"), _ONE_ROW["policy.thinking"]),
        "policy.model": Copied("pretrain"),
        "policy.turn_tokens": Copied(f"{_SAMPLING}.max_new_tokens"),
        "sampling.temperature": Copied(f"{_SAMPLING}.temperature"),
        "sampling.top_p": Copied(f"{_SAMPLING}.top_p"),
        "sampling.top_k": Copied(f"{_SAMPLING}.top_k"),
        "algorithm.advantage": Computed(_advantage, f"{_ENV}.gem.advantage"),
        "algorithm.gamma": Copied("gamma"),
        "algorithm.lam": Copied("lambd"),
        **entries.plain_loss("ROLL, as it is compiled,"),
        "algorithm.clip": Copied("pg_clip"),
        "algorithm.epochs": Copied("ppo_epochs"),
        "algorithm.minibatches": (
            Computed(_steps, f"{_TRAINING}.gradient_accumulation_steps"),
            entries.WHOLE_MINIBATCHES,
            entries.WHOLE_STEPS,
            Departs(
                lambda run, value: value > 1,
                "gradient_accumulation_steps; ROLL draws the episodes of a minibatch at random",
            ),
        ),
        "algorithm.loss_aggregation": (
            Computed(_loss, "loss_agg_mode"),
            entries.aggregations("ROLL, as it is compiled,", _AGGREGATIONS),
        ),
        "algorithm.kl_coef": (
            Computed(_kl, "kl_loss_coef"),
            Departs(
                lambda run, value: value > 0,
                "the same term of the loss (k3) as the reference's, but no test compares the two",
            ),
        ),
        "algorithm.kl_estimator": Fixed("k3", "ROLL's penalty is k3"),
        "algorithm.kl_in": Fixed("loss", "ROLL, as it is compiled, has the penalty in the loss"),
        "algorithm.entropy_coef": Copied("entropy_loss_coef"),
        "algorithm.tis_clip": Fixed(None, "ROLL's train_infer_correction is not compiled"),
        **entries.FIXED_REFERENCE,
        "algorithm.critic_warmup": Fixed(0, "ROLL's critic_warmup was never tried here"),
        "algorithm.value_lr": Copied("critic.training_args.learning_rate"),
        "algorithm.value_clip": (Copied("value_clip"), entries.VALUES_ON_TOKENS),
        "optimizer.lr": Copied(f"{_TRAINING}.learning_rate"),
        "optimizer.type": Fixed("adamw", "fixed in ROLL's strategies"),
        **entries.CONSTANT_RATE,
        "optimizer.beta1": Copied(f"{_TRAINING}.adam_beta1"),
        "optimizer.beta2": Copied(f"{_TRAINING}.adam_beta2"),
        "optimizer.eps": Fixed(1e-8, "ROLL's AdamW has 1e-8, and no key"),
        "optimizer.weight_decay": Copied(f"{_TRAINING}.weight_decay"),
        "optimizer.grad_clip": Copied("max_grad_norm"),
        **entries.ALL_CANDIDATES,
        **entries.plain_correction("ROLL, as it is compiled,"),
        **entries.bounded_staleness(
            "ROLL's asynchronous mode (async_generation_ratio) bounds how old weights "
            "are, and was never tried here",
        ),
        **entries.PLAYED_ONCE,
        "training.iterations": Copied("max_steps"),
        "training.tasks": Copied("train_env_manager.num_env_groups"),
        "training.group_size": (Copied("train_env_manager.group_size"), entries.GROUPED),
        "training.precision": (
            Computed(_precision, "actor_train.model_args.dtype"),
            entries.computed_in_bf16("FSDP's arithmetic in bf16, reduced in fp32"),
        ),
        "hardware.nodes": Copied("num_nodes"),
        "hardware.gpus_per_node": Computed(_gpus, "num_gpus_per_node"),
        "hardware.engine.tensor_parallel": Fixed(1, "a GPU has a whole engine here"),
        "hardware.engine.memory_share": Computed(
            lambda run: {
                "actor_infer.strategy_args.strategy_config.gpu_memory_utilization": (
                    run.hardware.engine.memory_share or 0.6
                )
            },
            "actor_infer.strategy_args.strategy_config.gpu_memory_utilization",
        ),
        "hardware.learner.tensor_parallel": Fixed(1, "FSDP divides no matrices"),
        "hardware.learner.sequence_parallel": Fixed(1, "a GPU has whole rows here"),
        "hardware.learner.pass_tokens": Computed(
            lambda run: {f"{_TRAINING}.per_device_train_batch_size": _rows(run)},
            f"{_TRAINING}.per_device_train_batch_size",
        ),
        "hardware.learner.checkpointing": Computed(
            _recomputing, "actor_train.model_args.disable_gradient_checkpointing"
        ),
        "hardware.learner.offload": Ignored(),
        "hardware.learner.attention": Computed(
            _attention, "actor_train.model_args.attn_implementation"
        ),
        "hardware.checkpoint_every": Computed(
            lambda run: {"save_steps": run.hardware.checkpoint_every or _NEVER}, "save_steps"
        ),
        "hardware.logger": Computed(
            lambda run: {"track_with": run.hardware.logger or "stdout"}, "track_with"
        ),
    },
    others=(
        entries.critic_head,
        entries.optimizer_weights(
            "FSDP2TrainStrategy loads them so where param_dtype is left out",
            *(f"{part}.{_PARAM_DTYPE}" for part in ("actor_train", "critic")),
        ),
    ),
    untold=(
        entries.untold(
            lambda run: run.spec.steps == 1,
            "ROLL computes no log-probabilities before the only update of a batch",
        ),
        entries.untold(
            lambda run: run.spec.steps > 1 and run.spec.sampling.temperature != 1,
            entries.OTHER_DISTRIBUTION,
        ),
    ),
)
"""How ROLL realises each setting: keys of its configuration, with dots between tables."""

PAIRS = (
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in ROLL."""

adapter = Adapter("roll", SUPPORTED_ROLL, "roll", TABLE, _compile, pairs=PAIRS)
