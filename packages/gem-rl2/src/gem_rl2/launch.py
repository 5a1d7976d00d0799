"""gem-bench's hook: a RunSpec becomes RL2's own command, `torchrun -m RL2.trainer.ppo`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.training import platforms
from gem.training.launch import (
    Knob,
    Launch,
    all_weights,
    forward_tokens,
    hydra_value,
    loss_departures,
    parity,
    refuse,
    sampling_departure,
    whole_minibatches,
)
from gem.training.platforms import Platform
from gem.training.runspec import RunSpec
from gem_rl2.__main__ import ENV_FILE
from gem_rl2.dataset import write
from gem_rl2.release import HOME, Form, check_rl2
from gem_rl2.version import SUPPORTED_RL2

TRAIN_FILE, EVAL_FILE = "train.jsonl", "eval.jsonl"


class RL2Adapter:
    """Compiles RunSpecs for RL2."""

    trainer = "rl2"
    supported = SUPPORTED_RL2
    venv = "rl2"

    def compile(self, spec: RunSpec, *, run_dir: Path, cpu: bool) -> Launch:
        """Return RL2's command for a spec; see `gem.training.launch.Adapter`.

        Raises:
            ConfigurationError: RL2 cannot run this spec; the message names the key.
            MissingExtraError: RL2 is not installed.
            UnsupportedVersionError: It is of an unknown form.
        """
        rl2 = check_rl2()
        _check(spec)
        path = [rl2.path] if os.environ.get(HOME) else []
        platform = Platform(env=platforms.python_path(*path))
        if cpu:
            platform = platforms.cpu("rl2", spec, run_dir, form=rl2.form, path=path)
        keys = {
            **_models(spec, rl2.form),
            **_data(spec, run_dir, rl2.form),
            **_algorithm(spec),
            **_optimizer(spec, rl2.form),
            **_gem(spec, run_dir, rl2.form),
            **platform.settings,
        }
        launcher = ["torchrun", "--standalone", "--nproc-per-node", "1", "-m", "RL2.trainer.ppo"]
        return Launch.of(
            spec,
            [*launcher, *(f"{key}={hydra_value(value)}" for key, value in keys.items())],
            platform,
            {"WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"},
            files=_files(spec),
            parity=parity(spec, _how(rl2.form), _departures(spec, rl2.form, cpu)),
        )


adapter = RL2Adapter()


def _check(spec: RunSpec) -> None:
    """Refuse what RL2 would silently do differently."""
    algorithm, context = spec.algorithm, spec.policy.context
    refuse(
        spec,
        (
            "algorithm.loss_aggregation",
            algorithm.loss_aggregation != "token-mean",
            "RL2 has 'token-mean' and a mean over rows of token means, but no sum over tokens",
        ),
        whole_minibatches(spec),
        (
            "algorithm.minibatches",
            algorithm.minibatches > 1 and context != "chat",
            f"RL2 divides rows, not episodes; set it to 1 for policy.context={context!r}",
        ),
        all_weights(spec),
    )


def _files(spec: RunSpec) -> dict[str, str]:
    train = spec.task_set.uri
    evals = [source.text for source in spec.evaluations]
    # RL2 wants rows to evaluate on even if it never does.
    return {
        TRAIN_FILE: write([train], evaluation=False),
        EVAL_FILE: write(evals or [train], evaluation=True),
    }


def _models(spec: RunSpec, form: Form) -> dict[str, Any]:
    policy = spec.policy
    fitting = max(policy.tokens, forward_tokens(policy.model))
    length = min(fitting, spec.episodes * policy.tokens)
    keys: dict[str, Any] = {
        "actor.model_name": policy.model,
        "actor.max_length_per_device": length,
    }
    # The release knows bf16 only; see the parity of training.precision.
    if form == "head":
        keys["actor.dtype"] = "float32" if spec.training.precision == "fp32" else "bfloat16"
    elif spec.training.precision == "fp32":
        keys["rollout.server_args.dtype"] = "float32"
    keys["+rollout.server_args.random_seed"] = spec.seed
    if spec.algorithm.advantage == "gae":
        keys |= {
            "critic.model_name": policy.model,
            "critic.max_length_per_device": length,
            "critic.clip": spec.algorithm.value_clip,
        }
        if form == "head":
            keys["critic.dtype"] = keys["actor.dtype"]
    return keys


def _data(spec: RunSpec, run_dir: Path, form: Form) -> dict[str, Any]:
    size, sampling = spec.training, spec.sampling
    train, test = ("rollout.train", "rollout.test")
    params = "rollout.train.sampling_params"
    keys: dict[str, Any] = {}
    if form == "release":
        train, test, params = "train_data", "test_data", "rollout.train_sampling_params"
        keys = {"rollout.dynamic_filtering": False, "trainer.n_epochs": 1}
    else:
        keys = {
            "rollout.train.dynamic_filtering": False,
            "trainer.total_steps": size.iterations,
        }
    keys |= {
        f"{train}.path": run_dir / TRAIN_FILE,
        f"{test}.path": run_dir / EVAL_FILE,
        f"{train}.prompts_per_rollout": size.tasks,
        f"{train}.responses_per_prompt": size.group_size,
        f"{params}.temperature": sampling.temperature,
        f"{params}.max_new_tokens": spec.policy.turn_tokens,
        f"+{params}.top_p": sampling.top_p,
        f"+{params}.top_k": sampling.top_k,
        "rollout.env_path": ENV_FILE,
        "trainer.use_wandb": False,
        "trainer.project": "gem",
        "trainer.experiment_name": _word(spec.name),
        "trainer.save_dir": run_dir / "model",
        "hydra.run.dir": run_dir / "hydra",
    }
    if spec.eval:
        keys["trainer.test_freq"] = spec.eval_every
        keys["+gem.evaluate_from"] = 0
    return keys


def _algorithm(spec: RunSpec) -> dict[str, Any]:
    algorithm = spec.algorithm
    keys: dict[str, Any] = {
        "adv.estimator": "gae" if algorithm.advantage == "gae" else "reinforce",
        "adv.gamma": algorithm.gamma,
        "adv.lamda": algorithm.lam,
        "actor.clip": algorithm.clip,
        "actor.avg_level": "token",
        "actor.update_per_rollout": algorithm.minibatches * algorithm.epochs,
        "actor.entropy.coef": algorithm.entropy_coef,
    }
    if algorithm.kl_coef:
        keys |= {
            "actor.kl.coef": algorithm.kl_coef,
            "actor.kl.type": "loss",
            "actor.kl.loss_estimator": "k3",
        }
    return keys


def _optimizer(spec: RunSpec, form: Form) -> dict[str, Any]:
    o = spec.optimizer
    rates = {"actor": o.lr}
    if spec.algorithm.advantage == "gae":
        rates["critic"] = spec.algorithm.value_lr
    keys: dict[str, Any] = {}
    for part, lr in rates.items():
        keys[f"{part}.max_grad_norm"] = o.grad_clip
        if form == "head":
            keys |= {
                f"{part}.optimizer.lr": lr,
                f"{part}.optimizer.weight_decay": o.weight_decay,
                f"+{part}.optimizer.betas": [o.beta1, o.beta2],
                f"+{part}.optimizer.eps": o.eps,
                f"{part}.scheduler.name": "constant",
                f"{part}.scheduler.warmup_ratio": 0.0,
            }
        else:
            keys |= {
                f"{part}.lr": lr,
                f"{part}.weight_decay": o.weight_decay,
                f"{part}.scheduler": "constant",
                f"{part}.warmup_ratio": 0.0,
            }
    return keys


def _gem(spec: RunSpec, run_dir: Path, form: Form) -> dict[str, Any]:
    policy, o = spec.policy, spec.optimizer
    settings = {
        "advantage": spec.algorithm.advantage,
        "prompt_tokens": policy.prompt_tokens,
        "response_tokens": policy.response_tokens,
        "turns": policy.turns,
        "context": policy.context,
        "system_prompt": policy.system_prompt,
        "epochs": spec.algorithm.epochs,
        "task_order": "file",
        "trainer_seed": spec.seed,
        "max_failed_fraction": spec.training.max_failed_fraction,
        "record_dir": str(run_dir),
    }
    if form == "release":
        settings |= {"adam_beta1": o.beta1, "adam_beta2": o.beta2, "adam_eps": o.eps}
    return {f"+gem.{key}": value for key, value in settings.items() if value is not None}


def _word(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _how(form: Form) -> dict[str, str]:
    head = form == "head"
    data = "rollout.train" if head else "train_data"
    params = "rollout.train.sampling_params" if head else "rollout.train_sampling_params"
    adam = "actor.optimizer" if head else "actor.lr, actor.weight_decay, gem.adam_*"
    return {
        "name": "trainer.experiment_name",
        "seed": "rollout.server_args.random_seed, gem.trainer_seed",
        "env": f"{data}.path, gem.task_order=file",
        "eval": "rollout.test.path" if head else "test_data.path",
        "policy.model": "actor.model_name",
        "policy.prompt_tokens": "gem.prompt_tokens",
        "policy.response_tokens": "gem.response_tokens",
        "policy.turn_tokens": f"{params}.max_new_tokens",
        "policy.turns": "gem.turns",
        "policy.context": "gem.context",
        "policy.system_prompt": "gem.system_prompt",
        "policy.lora_rank": "all weights",
        "policy.lora_alpha": "no adapters",
        "policy.lora_init": "no adapters",
        "sampling": params,
        "algorithm.advantage": "gem.advantage; adv.estimator decides whether there is a critic",
        "algorithm.gamma": "adv.gamma, per turn",
        "algorithm.lam": "adv.lamda, per turn",
        "algorithm.clip": "actor.clip",
        "algorithm.epochs": "one",
        "algorithm.minibatches": "actor.update_per_rollout",
        "algorithm.loss_aggregation": "actor.avg_level=token: over all tokens of an optimiser step",
        "algorithm.kl_coef": "actor.kl.coef",
        "algorithm.entropy_coef": "actor.entropy.coef",
        "algorithm.value_lr": "critic.optimizer.lr" if head else "critic.lr",
        "algorithm.value_clip": "critic.clip",
        "optimizer": f"{adam}, actor.max_grad_norm, scheduler constant",
        "training.iterations": "trainer.total_steps" if head else f"rows of {data}.path",
        "training.tasks": f"{data}.prompts_per_rollout",
        "training.group_size": f"{data}.responses_per_prompt",
        "training.precision": "actor.dtype" if head else "rollout.server_args.dtype",
        "training.max_failed_fraction": "gem.max_failed_fraction",
    }


def _departures(spec: RunSpec, form: Form, cpu: bool) -> Iterator[Knob]:
    algorithm = spec.algorithm
    how = "rollout.server_args.random_seed; which turn gets which number depends on timing"
    yield from sampling_departure(spec, how)
    yield from loss_departures(spec)
    if algorithm.epochs > 1:
        how = "gem.epochs: RL2 gets the rows of a batch as often, one pass after the other"
        yield Knob("algorithm.epochs", "emulated", how)
    if algorithm.minibatches > 1 and form == "head":
        how = "actor.update_per_rollout; groups in the order in which they end"
        yield Knob("algorithm.minibatches", "emulated", how)
    if algorithm.advantage == "gae":
        how = "all tokens of a turn are trained towards the turn's target, not where it begins"
        yield Knob("algorithm.value_clip", "emulated", how)
    if form == "release":
        if spec.training.precision == "bf16":
            how = "fp32 weights, bf16 in FSDP's mixed precision (the reference: autocast)"
            yield Knob("training.precision", "emulated", how)
        else:
            how = "GEM_CPU_DTYPE of gem-cpu" if cpu else "the release trains in bf16 only"
            yield Knob("training.precision", "emulated" if cpu else "unmatched", how)
    elif spec.training.precision == "bf16":
        how = "fp32 weights, bf16 in FSDP's mixed precision (the reference: autocast)"
        yield Knob("training.precision", "emulated", how)
    common = spec.eval_every
    for index, part in enumerate(spec.eval):
        how = f"on everything at once every {common} iterations"
        if spec.training.iterations % common:
            how += ", and not at the end"
        if common != part.every or spec.training.iterations % common:
            yield Knob(f"eval.{index}.every", "emulated", how)
