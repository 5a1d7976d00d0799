"""gem-bench's hook: a RunSpec becomes RL2's own command, `torchrun -m RL2.trainer.ppo`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.experiment.hardware import Hardware
from gem.experiment.runspec import RunSpec
from gem.experiment.tasksets import dataset_text
from gem.training import launch, platforms
from gem.training.pairs import COMPUTED, ON_CPU, pairs
from gem.training.platforms import Platform
from gem_rl2.__main__ import ENV_FILE
from gem_rl2.dataset import line
from gem_rl2.release import HOME, Form, check_rl2
from gem_rl2.settings import Keys, Settings
from gem_rl2.version import SUPPORTED_RL2

TRAIN_FILE, EVAL_FILE = "train.jsonl", "eval.jsonl"

HOW: dict[str, launch.Names] = {
    **launch.ALL_WEIGHTS,
    **launch.SHARED_GPUS,
    "name": "trainer.experiment_name",
    "env": f"{TRAIN_FILE}, gem.task_order=file",
    "eval": EVAL_FILE,
    "algorithm.minibatches": "actor.update_per_rollout",
    "algorithm.loss_aggregation": "actor.avg_level=token: over all tokens of an optimiser step",
    "algorithm.kl_coef": "actor.kl.coef",
    "optimizer": "actor.optimizer.betas",
    "optimizer.type": "RL2 has no other; the scheduler is constant",
    "training.iterations": f"rows of {TRAIN_FILE}",
    "training.precision": "actor.dtype",
    "hardware.gpus_per_node": "torchrun --nproc-per-node",
    "hardware.learner.pass_tokens": "actor.max_length_per_device",
    "hardware.logger": "trainer.use_wandb",
}
"""Parity of a setting whose value is in no key as it is, or needs more words."""


def compile_spec(spec: RunSpec, *, run_dir: Path, hardware: Hardware) -> launch.Launch:
    """Return RL2's command for a spec; see `gem.training.launch.Adapter`.

    Raises:
        ConfigurationError: RL2 cannot run this spec; the message names the key.
        MissingExtraError: RL2 is not installed.
        UnsupportedVersionError: It is of an unknown form.
    """
    rl2 = check_rl2()
    _check(spec, hardware)
    path = [rl2.path] if os.environ.get(HOME) else []
    gpu = Platform(env=platforms.python_path(*path))
    platform = platforms.of("rl2", spec, run_dir, hardware, gpu, form=rl2.form, path=path)
    names = _names(rl2.form)
    keys = {
        **launch.copied(spec, names, hardware),
        **_keys(spec, run_dir, rl2.form, hardware),
        **platform.settings,
    }
    if not spec.algorithm.estimator.needs_critic:
        keys = {k: v for k, v in keys.items() if not k.lstrip("+").startswith("critic.")}
    keys = launch.with_native(keys, hardware, "rl2")
    launcher = ["torchrun", "--standalone", "--nproc-per-node", str(hardware.gpus)]
    return launch.Launch.of(
        spec,
        [
            *launcher,
            "-m",
            "RL2.trainer.ppo",
            *(f"{key}={launch.hydra_value(value)}" for key, value in keys.items()),
        ],
        platform,
        {
            "TOKENIZERS_PARALLELISM": "false",
            **({} if hardware.logger == "wandb" else {"WANDB_MODE": "disabled"}),
        },
        files=_files(spec),
        state=["model"],
        parity=launch.parity(
            spec, HOW | names, _departures(spec, rl2.form, hardware), hardware, "rl2"
        ),
    )


PAIRS = (
    pairs("fp32", COMPUTED, "runs", "tests/conformance; RL2 computes in bf16 on a GPU"),
    pairs((*ON_CPU, "flash attention"), ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs("gpus_per_node", {"flash attention", "initial policy"}, "runs", "test_ranks.py"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in RL2."""

adapter = launch.Adapter(
    "rl2",
    SUPPORTED_RL2,
    "rl2",
    compile_spec,
    all_seats=True,
    pairs=PAIRS,
    attention="flash_attention_2",
)


def _check(spec: RunSpec, hardware: Hardware) -> None:
    """Refuse what RL2 would silently do differently."""
    algorithm = spec.algorithm
    sampling, once = spec.sampling, algorithm.epochs * algorithm.minibatches == 1
    whole = once and not algorithm.kl_coef and sampling.top_k == -1 and sampling.top_p == 1
    weighed = (
        "RL2 weighs with the latest probabilities, SGLang's being those before top-k and top-p: "
        "that is the same for one optimiser step without a KL penalty, of unrestricted samples"
    )
    launch.refuse(
        spec,
        launch.no_correction(spec, weighed, not whole),
        launch.token_mean(spec, "RL2"),
        launch.whole_minibatches(spec),
        launch.whole_rows(spec, "RL2"),
        launch.all_weights(spec),
    )
    launch.check_hardware(spec, hardware, {"nodes": "torchrun is started on each by hand"})


def _files(spec: RunSpec) -> dict[str, str]:
    train = spec.task_set.uri
    evals = [source.text for source in spec.evaluations]
    # RL2 wants rows to evaluate on even if it never does.
    return {
        TRAIN_FILE: dataset_text(line, [train], evaluation=False),
        EVAL_FILE: dataset_text(line, evals or [train], evaluation=True),
    }


def _names(form: Form) -> dict[str, launch.Names]:
    """RL2's keys with the value of a setting; the critic's are given only where there is one."""
    known = Keys.names(form)
    sampling = known["turn_tokens"].removesuffix(".max_new_tokens")
    actor, critic, parts = "actor", "critic", ("actor", "critic")
    checkpointing, split = "gradient_checkpointing", "sp_size"
    others: dict[str, launch.Names] = {
        "optimizer.beta1": "+gem.adam_beta1",
        "optimizer.beta2": "+gem.adam_beta2",
        "optimizer.eps": "+gem.adam_eps",
    }
    if form == "head":
        actor, critic = "actor.optimizer", "critic.optimizer"
        checkpointing, split = "enable_gradient_checkpointing", "cp_size"
        others = {
            "optimizer.betas": (f"+{actor}.betas", f"+{critic}.betas"),
            "optimizer.eps": (f"+{actor}.eps", f"+{critic}.eps"),
            "training.iterations": "trainer.total_steps",
        }
    return {
        **launch.namesakes(Settings, "+gem.{}"),
        "seed": ("+rollout.server_args.random_seed", "+gem.trainer_seed"),
        "policy.model": ("actor.model_name", "critic.model_name"),
        "policy.turn_tokens": known["turn_tokens"],
        "sampling.temperature": f"{sampling}.temperature",
        "sampling.top_p": f"+{sampling}.top_p",
        "sampling.top_k": f"+{sampling}.top_k",
        "algorithm.gamma": "adv.gamma",
        "algorithm.lam": "adv.lamda",
        "algorithm.clip": "actor.clip",
        "algorithm.entropy_coef": "actor.entropy.coef",
        "algorithm.tis_clip": "actor.tis_coef",
        "algorithm.value_lr": f"{critic}.lr",
        "algorithm.value_clip": "critic.clip",
        "optimizer.lr": f"{actor}.lr",
        "optimizer.weight_decay": (f"{actor}.weight_decay", f"{critic}.weight_decay"),
        "optimizer.grad_clip": ("actor.max_grad_norm", "critic.max_grad_norm"),
        "training.tasks": known["tasks"],
        "training.group_size": known["group_size"],
        "hardware.engine.tensor_parallel": "rollout.server_args.tp_size",
        "hardware.engine.memory_share": "rollout.server_args.mem_fraction_static",
        "hardware.learner.tensor_parallel": tuple(f"{part}.tp_size" for part in parts),
        "hardware.learner.sequence_parallel": tuple(f"{part}.{split}" for part in parts),
        "hardware.learner.checkpointing": tuple(f"{part}.{checkpointing}" for part in parts),
        "hardware.learner.offload": "actor.offload_optimizer",
        "hardware.checkpoint_every": "trainer.save_freq",
        **others,
    }


def _keys(spec: RunSpec, run_dir: Path, form: Form, hardware: Hardware) -> dict[str, Any]:
    """Return RL2's keys whose values are not in the spec as they are."""
    algorithm, policy = spec.algorithm, spec.policy
    fp32, known = spec.training.precision == "fp32", Keys.names(form)
    keys: dict[str, Any] = {
        known["train_path"]: run_dir / TRAIN_FILE,
        known["test_path"]: run_dir / EVAL_FILE,
        known["dynamic_filtering"]: False,
        "rollout.env_path": ENV_FILE,
        "adv.estimator": "gae" if algorithm.estimator.needs_critic else "reinforce",
        "actor.avg_level": "token",
        "actor.update_per_rollout": algorithm.minibatches * algorithm.epochs,
        "trainer.use_wandb": hardware.logger == "wandb",
        "trainer.load_ckpt_from": "latest" if hardware.checkpoint_every else None,
        "trainer.project": "gem",
        "trainer.experiment_name": _word(spec.name),
        "trainer.save_dir": run_dir / "model",
        "hydra.run.dir": run_dir / "hydra",
        "+gem.task_order": "file",
        "+gem.record_dir": run_dir,
    }
    if form == "release":
        keys["trainer.n_epochs"] = 1
        # It trains in bf16 only; see the parity of training.precision.
        if fp32:
            keys["rollout.server_args.dtype"] = "float32"
    fitting = launch.pass_tokens(spec, hardware)
    for part in ("actor", "critic"):
        keys[f"{part}.max_length_per_device"] = min(fitting, spec.episodes * policy.tokens)
        if form == "release":
            keys |= {f"{part}.scheduler": "constant", f"{part}.warmup_ratio": 0.0}
        else:
            keys |= {
                f"{part}.dtype": "float32" if fp32 else "bfloat16",
                f"{part}.scheduler.name": "constant",
                f"{part}.scheduler.warmup_ratio": 0.0,
            }
    if spec.eval:
        keys |= {"trainer.test_freq": spec.eval_every, "+gem.evaluate_from": 0}
    if algorithm.kl_coef:
        keys |= {
            "actor.kl.coef": algorithm.kl_coef,
            "actor.kl.type": "loss",
            "actor.kl.loss_estimator": "k3",
        }
    return keys


def _word(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _departures(spec: RunSpec, form: Form, hardware: Hardware) -> Iterator[launch.Parity]:
    ends_between = spec.eval and spec.training.iterations % spec.eval_every
    yield from launch.departures(
        spec,
        "rollout.server_args.random_seed; which turn gets which number depends on timing",
        weights=launch.optimizer_weights("AdamW on FSDP's shards of fp32 weights"),
        bf16="fp32 weights, bf16 in FSDP's mixed precision",
        values_on_tokens=True,
        missed="not at the end" if ends_between else None,
    )
    if spec.algorithm.epochs > 1:
        how = "gem.epochs: RL2 gets the rows of a batch as often, one pass after the other"
        yield launch.Parity("algorithm.epochs", "emulated", how)
    if spec.algorithm.minibatches > 1 and form == "head":
        how = "actor.update_per_rollout; groups in the order in which they end"
        yield launch.Parity("algorithm.minibatches", "emulated", how)
    if form == "release":
        yield from launch.bf16_only(spec, "the release trains in bf16 only", cpu=hardware.cpu)
