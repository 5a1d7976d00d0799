"""gem-bench's hook: a RunSpec becomes RL2's own command, `torchrun -m RL2.trainer.ppo`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from gem_rl2.__main__ import ENV_FILE
from gem_rl2.dataset import line
from gem_rl2.release import check_rl2
from gem_rl2.settings import Settings
from gem_rl2.version import SUPPORTED_RL2
from gem_train import entries, platforms
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import dataset_text
from gem_train.hydra import hydra_value
from gem_train.launch import Adapter, Launch
from gem_train.pairs import COMPUTED, ON_CPU, pairs
from gem_train.passes import UNPADDED, Passes, named
from gem_train.platforms import Platform
from gem_train.table import (
    Computed,
    Copied,
    Departs,
    Elsewhere,
    Fixed,
    Ignored,
    Refused,
    Run,
    Table,
    namesakes,
)

TRAIN_FILE, EVAL_FILE = "train.jsonl", "eval.jsonl"
PARTS = ("actor", "critic")
_SAMPLING = "rollout.train_sampling_params"
_SERVER = "rollout.server_args"


def _compile(run: Run) -> Launch:
    """Return RL2's command.

    Raises:
        ConfigurationError: RL2 cannot run this spec; the message names the key.
    """
    platform = platforms.of("rl2", run.spec, run.run_dir, run.hardware, Platform())
    keys = {**_always(run), **TABLE.settings(run), **platform.settings}
    if not run.critic:
        keys = {k: v for k, v in keys.items() if not k.lstrip("+").startswith("critic.")}
    keys = TABLE.with_native(keys, run)
    launcher = ["torchrun", "--standalone", "--nproc-per-node", str(run.hardware.gpus)]
    arguments = [f"{key}={hydra_value(value)}" for key, value in keys.items()]
    offline = {} if run.hardware.logger == "wandb" else {"WANDB_MODE": "disabled"}
    return Launch.of(
        run.spec,
        [*launcher, "-m", "RL2.trainer.ppo", *arguments],
        platform,
        {"TOKENIZERS_PARALLELISM": "false", **offline},
        files=_files(run.spec),
        state=["model"],
        passes=_forward(keys),
    )


def _forward(keys: Mapping[str, Any]) -> Passes:
    """Return how RL2 divides a batch: rows without padding, as many as fit the GPUs of a rank."""
    steps, tokens = "actor.update_per_rollout", "actor.max_length_per_device"
    split = ("actor.sp_size", "actor.tp_size")
    said = named(keys, steps, tokens, *split)
    most = said[tokens] * prod(said[name] for name in split)
    return Passes("packed", UNPADDED, said[steps], most, None, said)


def _always(run: Run) -> dict[str, Any]:
    """Return the keys that no key of the spec decides; those of the critic where there is one."""
    return {
        "train_data.path": run.run_dir / TRAIN_FILE,
        "test_data.path": run.run_dir / EVAL_FILE,
        "rollout.dynamic_filtering": False,
        "rollout.env_path": ENV_FILE,
        "actor.avg_level": "token",
        "trainer.n_epochs": 1,
        "trainer.project": "gem",
        "trainer.save_dir": run.run_dir / "model",
        "hydra.run.dir": run.run_dir / "hydra",
        "+gem.record_dir": run.run_dir,
    }


def _files(spec: RunSpec) -> dict[str, str]:
    train = spec.task_set.uri
    evals = [source.text for source in spec.evaluations]
    # RL2 wants rows to evaluate on even if it never does.
    return {
        TRAIN_FILE: dataset_text(line, [train], evaluation=False),
        EVAL_FILE: dataset_text(line, evals or [train], evaluation=True),
    }


def _name(run: Run) -> dict[str, Any]:
    word = "".join(c if c.isalnum() or c in "-_." else "-" for c in run.spec.name)
    return {"trainer.experiment_name": word}


def _evaluations(run: Run) -> dict[str, Any]:
    return {"trainer.test_freq": run.spec.eval_every, "+gem.evaluate_from": 0}


def _updates(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    return {"actor.update_per_rollout": algorithm.minibatches * algorithm.epochs}


def _kl(run: Run) -> dict[str, Any]:
    weight = run.spec.algorithm.kl_coef
    if not weight:
        return {}
    where = run.spec.algorithm.kl_in
    # RL2 logs the KL with the estimator of the reward, wherever the penalty is.
    terms = dict.fromkeys(
        ("actor.kl.loss_estimator", "actor.kl.reward_estimator"), run.spec.algorithm.kl_estimator
    )
    return {"actor.kl.coef": weight, "actor.kl.type": where, **terms}


def _clips(run: Run) -> dict[str, Any]:
    # RL2's loss of values lacks the factor of a half, and so does its gradient.
    most = run.spec.optimizer.grad_clip
    return {"actor.max_grad_norm": most, "critic.max_grad_norm": 2 * most}


def _schedule(run: Run) -> dict[str, Any]:
    optimizer = run.spec.optimizer
    return {
        **dict.fromkeys(_both("scheduler"), optimizer.hugging_face),
        **dict.fromkeys(_both("warmup_ratio"), entries.warmup_ratio(run, up=False)),
    }


def _precision(run: Run) -> dict[str, Any]:
    fp32 = run.spec.training.precision == "fp32"
    return {f"{_SERVER}.dtype": "float32"} if fp32 else {}


def _passes(run: Run) -> dict[str, Any]:
    tokens = min(run.pass_tokens, run.spec.episodes * run.spec.policy.tokens)
    return dict.fromkeys((f"{part}.max_length_per_device" for part in PARTS), tokens)


def _checkpoints(run: Run) -> dict[str, Any]:
    every = run.hardware.checkpoint_every
    return {
        "trainer.load_ckpt_from": None if every is None else "latest",
        **({} if every is None else {"trainer.save_freq": every}),
    }


def _weighs_exactly(run: Run) -> bool:
    """Return whether RL2 weighs tokens as the reference does."""
    algorithm, sampling = run.spec.algorithm, run.spec.sampling
    once = algorithm.epochs * algorithm.minibatches == 1 and not algorithm.kl_coef
    return once and sampling.whole


def _both(name: str) -> tuple[str, str]:
    return f"actor.{name}", f"critic.{name}"


TABLE = Table(
    "rl2",
    {
        **entries.ALL_WEIGHTS,
        **entries.SHARED_GPUS,
        **entries.tasks(
            Computed(lambda run: {"+gem.task_order": "file"}, f"{TRAIN_FILE}, gem.task_order=file")
        ),
        **entries.evaluations(
            Computed(_evaluations, EVAL_FILE),
            "not at the end",
            lambda spec: spec.training.iterations % spec.eval_every > 0,
        ),
        **namesakes(Settings, "+gem.{}"),
        "name": Computed(_name, "trainer.experiment_name"),
        "seed": (
            Copied((f"+{_SERVER}.random_seed", "+gem.trainer_seed")),
            entries.seeds(f"{_SERVER}.random_seed; which turn gets which number depends on timing"),
        ),
        "policy.model": Copied(_both("model_name")),
        "policy.turn_tokens": Copied(f"{_SAMPLING}.max_new_tokens"),
        "sampling.temperature": Copied(f"{_SAMPLING}.temperature"),
        "sampling.top_p": Copied(f"+{_SAMPLING}.top_p"),
        "sampling.top_k": Copied(f"+{_SAMPLING}.top_k"),
        "sampling.min_p": Copied(f"+{_SAMPLING}.min_p"),
        "sampling.repetition_penalty": Fixed(1.0, "SGLang takes the value and penalises nothing"),
        "algorithm.advantage": Computed(
            lambda run: {
                "+gem.advantage": run.spec.algorithm.advantage,
                "adv.estimator": "gae" if run.critic else "reinforce",
            },
            "gem.advantage",
        ),
        "algorithm.gamma": Copied("adv.gamma"),
        "algorithm.lam": Copied("adv.lamda"),
        **entries.plain_loss("RL2"),
        "algorithm.clip": Copied("actor.clip"),
        "algorithm.epochs": (
            Copied("+gem.epochs"),
            Departs(
                lambda run, value: value > 1,
                "gem.epochs: RL2 gets the rows of a batch as often, one pass after the other",
            ),
        ),
        "algorithm.minibatches": (
            Computed(_updates, "actor.update_per_rollout"),
            entries.WHOLE_MINIBATCHES,
            *entries.whole_rows("RL2"),
            entries.WHOLE_STEPS,
        ),
        "algorithm.loss_aggregation": Fixed(
            "token-mean",
            "RL2 has no sum over tokens, and its mean over rows (actor.avg_level=sequence) stops "
            "with a TypeError",
        ),
        "algorithm.kl_coef": Computed(_kl, "actor.kl.coef"),
        "algorithm.kl_in": Computed(_kl, "actor.kl.type"),
        "algorithm.kl_estimator": Computed(
            _kl, "actor.kl.loss_estimator, actor.kl.reward_estimator"
        ),
        "algorithm.entropy_coef": Copied("actor.entropy.coef"),
        "algorithm.tis_clip": (
            Copied("actor.tis_coef"),
            Refused(
                lambda run, value: value is not None and not _weighs_exactly(run),
                "RL2 weighs with the latest probabilities, SGLang's being those before it "
                "leaves tokens out: that is the same for one optimiser step without a KL penalty, "
                "of unrestricted samples; leave it out",
            ),
        ),
        **entries.FIXED_REFERENCE,
        "algorithm.critic_warmup": (
            # RL2 trains the policy from this step on, and counts from 1.
            Computed(
                lambda run: {
                    "actor.freeze_steps": run.spec.algorithm.critic_warmup
                    + (run.spec.algorithm.critic_warmup > 0)
                },
                "actor.freeze_steps",
            ),
            entries.SCHEDULED_LATE,
        ),
        "algorithm.value_lr": Copied("critic.lr"),
        "algorithm.value_clip": (Copied("critic.clip"), entries.VALUES_ON_TOKENS),
        "optimizer.lr": Copied("actor.lr"),
        "optimizer.type": Fixed("adamw", "RL2 has no other"),
        "optimizer.schedule": Computed(_schedule, "actor.scheduler"),
        "optimizer.warmup": Computed(_schedule, "actor.warmup_ratio"),
        "optimizer.min_lr_ratio": Fixed(0, "RL2's schedules end at 0"),
        "optimizer.beta1": Copied("+gem.adam_beta1"),
        "optimizer.beta2": Copied("+gem.adam_beta2"),
        "optimizer.eps": Copied("+gem.adam_eps"),
        "optimizer.weight_decay": Copied(_both("weight_decay")),
        "optimizer.grad_clip": Computed(_clips, "actor.max_grad_norm, critic.max_grad_norm"),
        **entries.plain_correction("RL2"),
        **entries.SYNCHRONOUS,
        **entries.PLAYED_ONCE,
        "training.iterations": Elsewhere(f"rows of {TRAIN_FILE}"),
        "training.tasks": Copied("train_data.prompts_per_rollout"),
        "training.group_size": (Copied("train_data.responses_per_prompt"), entries.GROUPED),
        "training.precision": (
            Computed(_precision, f"{_SERVER}.dtype; FSDP's mixed precision"),
            entries.computed_in_bf16("fp32 weights, bf16 in FSDP's mixed precision"),
            *entries.bf16_only("RL2 trains in bf16 only"),
        ),
        "hardware.nodes": Fixed(1, "torchrun is started on each by hand"),
        "hardware.gpus_per_node": Elsewhere("torchrun --nproc-per-node"),
        "hardware.engine.tensor_parallel": Copied(f"{_SERVER}.tp_size"),
        "hardware.engine.memory_share": Copied(f"{_SERVER}.mem_fraction_static"),
        "hardware.learner.tensor_parallel": Copied(_both("tp_size")),
        "hardware.learner.sequence_parallel": Copied(_both("sp_size")),
        "hardware.learner.pass_tokens": Computed(_passes, "actor.max_length_per_device"),
        "hardware.learner.checkpointing": Copied(_both("gradient_checkpointing")),
        "hardware.learner.offload": Copied("actor.offload_optimizer"),
        "hardware.learner.attention": Ignored(),
        "hardware.checkpoint_every": Computed(_checkpoints, "trainer.save_freq"),
        "hardware.logger": Computed(
            lambda run: {"trainer.use_wandb": run.hardware.logger == "wandb"}, "trainer.use_wandb"
        ),
    },
    others=(
        entries.critic_head,
        entries.optimizer_weights("AdamW on FSDP's shards of fp32 weights"),
    ),
    untold=(
        entries.untold(
            lambda run: run.spec.steps == 1 and not run.spec.algorithm.kl_coef,
            "RL2 computes no log-probabilities before the only update of a batch",
        ),
    ),
)
"""How RL2 realises each setting: its keys, and GEM's, which begin with `gem.`."""

PAIRS = (
    pairs("fp32", COMPUTED, "runs", "tests/conformance; RL2 computes in bf16 on a GPU"),
    pairs((*ON_CPU, "flash attention"), ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs("gpus_per_node", {"flash attention", "initial policy"}, "runs", "test_ranks.py"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in RL2."""

adapter = Adapter(
    "rl2",
    SUPPORTED_RL2,
    "rl2",
    TABLE,
    _compile,
    all_seats=True,
    check=check_rl2,
    pairs=PAIRS,
    attention="flash_attention_2",
)
