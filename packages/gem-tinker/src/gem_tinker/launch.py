"""gem-bench's hook: a RunSpec becomes a direct run, `python -m gem_tinker.train ...`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gem.experiment.hardware import Hardware
from gem.experiment.runspec import RunSpec
from gem.training import launch, platforms
from gem.training.checkpoints import CHECKPOINTS
from gem.training.pairs import COMPUTED, pairs
from gem.training.platforms import Platform
from gem_tinker import SUPPORTED_TINKER, check_tinker
from gem_tinker.settings import NO_CRITIC, TEMPERATURE, Config

ALPHA = 32.0
"""Every Tinker server scales adapters by 32 / rank."""


def compile_spec(spec: RunSpec, *, run_dir: Path, hardware: Hardware) -> launch.Launch:
    """Return the command of a direct run; see `gem.training.launch.Adapter`.

    Without a GPU the run gets a server of its own on this machine. Otherwise it talks to the
    server that `TINKER_BASE_URL` names, by default the hosted service.

    Raises:
        ConfigurationError: A Tinker server cannot run this spec; the message names the key.
        MissingExtraError: The SDK is not installed.
        UnsupportedVersionError: The SDK is of an unsupported version.
    """
    check_tinker()
    _check(spec)
    platform = platforms.of("tinker", spec, run_dir, hardware, Platform())
    settings = launch.copied(spec, _NAMES, hardware) | platform.settings
    settings |= {"train": spec.task_set.uri, "loss_fn": "ppo", "record_dir": str(run_dir)}
    if spec.eval:
        evals = [source.text for source in spec.evaluations]
        settings |= {"eval": " ".join(evals), "eval_every": spec.eval_every}
    settings = launch.with_native(settings, hardware, "tinker")
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}
    argv = ["python", "-m", "gem_tinker.train", *map("=".join, texts.items())]
    parity = launch.parity(spec, _HOW, _departures(spec, hardware), hardware, "tinker")
    return launch.Launch.of(spec, argv, platform, state=[CHECKPOINTS], parity=parity)


PAIRS = (pairs(COMPUTED, COMPUTED, "runs", "the hardware is the server's; no key reaches it"),)
"""Which settings of the hardware work together with a Tinker server."""

adapter = launch.Adapter("tinker", SUPPORTED_TINKER, "tinker", compile_spec, True, pairs=PAIRS)


def _check(spec: RunSpec) -> None:
    """Refuse what a Tinker server cannot do, or would silently do differently."""
    policy, algorithm = spec.policy, spec.algorithm
    saved = policy.lora_init is None or policy.lora_init.startswith("tinker://")
    adapters = "a Tinker server trains adapters, never all weights; set it to 8 or more"
    states = "a Tinker server begins with weights that it has saved itself, tinker://..."
    terms = "the server's losses have no KL penalty and no entropy bonus; set it to 0"
    launch.refuse(
        spec,
        ("policy.lora_rank", policy.lora_rank == 0, adapters),
        ("policy.lora_alpha", policy.lora_alpha != ALPHA, f"it is {ALPHA:g} on every server"),
        ("policy.lora_init", not saved, states),
        ("algorithm.advantage", algorithm.estimator.needs_critic, NO_CRITIC),
        ("algorithm.kl_coef", algorithm.kl_coef != 0, terms),
        ("algorithm.entropy_coef", algorithm.entropy_coef != 0, terms),
        ("sampling.temperature", spec.sampling.temperature != 1, TEMPERATURE),
        launch.no_correction(spec, "the server's losses have no such weight"),
    )


_NAMES: dict[str, launch.Names] = {
    "seed": ("seed", "lora_seed"),
    "policy.lora_init": "init",
    "hardware.checkpoint_every": "save_every",
    **launch.namesakes(Config),
}
"""Settings of a direct run that have the value of a key of the spec."""

_HOW: dict[str, launch.Names] = {
    **_NAMES,
    "name": "in run.json",
    "env": "train",
    "eval": "eval, eval_every",
    "policy.lora_alpha": "the server's own",
    "algorithm": "gae only",
    "algorithm.clip": "loss_fn=ppo with clip",
    "algorithm.loss_aggregation": "a factor in the advantages of each datum",
    "algorithm.kl_coef": "no penalty",
    "algorithm.entropy_coef": "no bonus",
    "algorithm.tis_clip": "no weights",
    "optimizer": "AdamParams",
    "hardware.device": "a server of the run's own on this machine, or $TINKER_BASE_URL",
    "training.precision": "of the model's files, on gem-cpu's server",
}


_ADAM = ("beta1", "beta2", "eps", "weight_decay", "grad_clip")
_IGNORED: dict[str, tuple[str, ...]] = {"hosted": (), "skyrl_jax": ("grad_clip",)}
"""What a server takes from its own configuration, by `Config.server`; SkyRL 0.4 on GPUs `_ADAM`."""


def _departures(spec: RunSpec, hardware: Hardware) -> Iterator[launch.Parity]:
    served = hardware.cpu and spec.training.precision == "fp32"
    how = "adapters in fp32, on gem-cpu's server" if served else "the server decides"
    status: Literal["matched", "unmatched"] = "matched" if served else "unmatched"
    weights = launch.Parity(launch.OPTIMIZER_WEIGHTS, status, how)
    yield from launch.departures(spec, weights=weights)
    if spec.sampling.top_k > 1 or (spec.sampling.top_p < 1 and spec.sampling.top_k != 1):
        how = "ratios are to the sampler's log-probabilities, not to recomputed ones"
        yield launch.Parity("algorithm.clip", "emulated", how)
    if spec.policy.lora_init is None:
        how = "the server's own, from the same seed; another one than the reference's"
        yield launch.Parity("policy.lora_init", "unmatched", how)
    if not hardware.cpu or spec.training.precision == "bf16":
        how = "the server decides; gem-cpu's takes the precision of the model's files"
        yield launch.Parity("training.precision", "unmatched", how)
    if not hardware.cpu:
        server = hardware.native.get("tinker", {}).get("server", "auto")
        sure, how = server != "auto", "AdamParams; SkyRL 0.4 ignores grad_clip, on GPUs all but lr"
        for name in _IGNORED.get(server, _ADAM):
            yield launch.Parity(f"optimizer.{name}", "unmatched" if sure else "emulated", how)
