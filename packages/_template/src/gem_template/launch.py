"""fake-trainer's command for a `RunSpec`, and what becomes of each setting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.experiment.hardware import Hardware
from gem.experiment.runspec import RunSpec
from gem.experiment.tasksets import dataset_rows
from gem.training import launch
from gem.training.pairs import COMPUTED, ON_CPU, pairs
from gem.training.platforms import Platform
from gem_template.settings import Settings
from gem_template.version import SUPPORTED_TEMPLATE, TRAINER

CONFIG, TRAIN, EVAL = "config.json", "train.txt", "eval.txt"
"""Files that a run begins with."""

COPIED: dict[str, launch.Names] = {
    "policy.model": "model",
    "policy.prompt_tokens": "prompt_tokens",
    "policy.response_tokens": "response_tokens",
    "sampling.temperature": "temperature",
    "sampling.top_k": "top_k",
    "algorithm.gamma": "gamma",
    "algorithm.clip": "clip",
    "optimizer.lr": "lr",
    "optimizer.beta1": "beta1",
    "optimizer.beta2": "beta2",
    "optimizer.eps": "adam_eps",
    "optimizer.grad_clip": "grad_clip",
    "training.iterations": "steps",
    "training.tasks": "prompts",
    "training.group_size": "samples",
}
"""Settings of the spec that are fake-trainer's under another name."""

GEM: dict[str, launch.Names] = {**launch.namesakes(Settings), "seed": "seed"}
"""Settings of the spec that are the adapter's, in the table `gem`."""

HOW: dict[str, launch.Names] = {
    **launch.ALL_WEIGHTS,
    **COPIED,
    **{key: f"gem.{name}" for key, name in GEM.items()},
    "name": "only in the record",
    "env": f"data: seeded tasks in {TRAIN}",
    "eval": f"eval_data: seeded tasks in {EVAL}",
    "sampling.top_p": "always 1",
    "algorithm": "always so",
    "optimizer": "always so",
    "training.precision": "float64",
    "hardware.device": "nowhere but on the CPU",
}
"""How each setting of the spec, or all others of its table, reaches the trainer."""


def compile_spec(spec: RunSpec, *, run_dir: Path, hardware: Hardware) -> launch.Launch:
    """Return fake-trainer's command for a spec; see `gem.training.launch.Adapter`.

    Raises:
        ConfigurationError: fake-trainer cannot run this spec; the message names the key.
        MissingExtraError: fake-trainer is not installed.
        UnsupportedVersionError: fake-trainer is of an unsupported version.
    """
    TRAINER.check()
    _check(spec, hardware)
    return launch.Launch.of(
        spec,
        ["python", "-m", "fake_trainer", str(run_dir / CONFIG)],
        # fake-trainer runs nowhere but on the CPU; others need `platforms.of(...)` for that.
        Platform(),
        files=_files(spec, run_dir, hardware),
        parity=launch.parity(spec, HOW, _departures(spec), hardware, "template"),
    )


PAIRS = (
    pairs(ON_CPU, ON_CPU, "runs", "the tests of this package run them"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together. First come those that are wrong together."""

adapter = launch.Adapter(
    TRAINER.distribution, SUPPORTED_TEMPLATE, "template", compile_spec, pairs=PAIRS
)


def _check(spec: RunSpec, hardware: Hardware) -> None:
    """Refuse what fake-trainer cannot do, or would silently do differently."""
    algorithm = spec.algorithm
    once = "fake-trainer makes one optimiser step a batch"
    launch.refuse(
        spec,
        launch.all_weights(spec),
        launch.token_mean(spec, "fake-trainer"),
        launch.no_correction(spec, "fake-trainer weighs all tokens alike"),
        (
            "algorithm.advantage",
            algorithm.estimator.needs_critic,
            "fake-trainer has no critic",
        ),
        ("algorithm.epochs", algorithm.epochs > 1, once),
        ("algorithm.minibatches", algorithm.minibatches > 1, once),
        ("algorithm.kl_coef", algorithm.kl_coef > 0, "fake-trainer has no KL penalty"),
        ("algorithm.entropy_coef", algorithm.entropy_coef > 0, "fake-trainer has no such bonus"),
        ("optimizer.weight_decay", spec.optimizer.weight_decay > 0, "fake-trainer has none"),
        ("sampling.top_p", spec.sampling.top_p < 1, "fake-trainer samples from all tokens"),
    )
    alone = "fake-trainer is one process"
    launch.check_hardware(spec, hardware, {"nodes": alone, "gpus_per_node": alone})


def _files(spec: RunSpec, run_dir: Path, hardware: Hardware) -> dict[str, str]:
    gem = {**launch.copied(spec, GEM, hardware), "record_dir": str(run_dir)}
    config: dict[str, Any] = {
        "trainer": "gem_template.trainer:GemTrainer",
        "data": str(run_dir / TRAIN),
        **launch.copied(spec, COPIED),
        "seed": spec.seed,
        "gem": gem,
    }
    files = {TRAIN: _lines(spec.task_set.uri)}
    if spec.eval:
        config |= {"eval_data": str(run_dir / EVAL), "eval_every": spec.eval_every}
        uris = [source.text for source in spec.evaluations]
        files[EVAL] = _lines(*uris, evaluation=True)
    Settings.read(config)
    config = launch.with_native(config, hardware, "template")
    return {CONFIG: json.dumps(config, indent=2) + "\n", **files}


def _lines(*uris: str, evaluation: bool = False) -> str:
    rows = dataset_rows(uris, evaluation=evaluation)
    return "".join(f"{row.encode()}\n" for row in rows)


def _departures(spec: RunSpec) -> Iterator[launch.Parity]:
    # What its optimiser computes with: float64 here, fp32 in others.
    weights = launch.Parity(launch.OPTIMIZER_WEIGHTS, "matched", "float64, in one table")
    yield from launch.departures(spec, weights=weights)
    if spec.training.precision == "bf16":
        yield launch.Parity("training.precision", "unmatched", "fake-trainer computes in float64")
    yield launch.Parity(
        "policy.model", "unmatched", "only its tokenizer: the policy is a table of token pairs"
    )
