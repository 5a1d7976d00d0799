"""gem-bench's hook: a RunSpec becomes a direct run, `python -m gem_tinker.train ...`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from typing import Any

from gem_tinker import SUPPORTED_TINKER, check_tinker
from gem_tinker.settings import NO_CRITIC, NO_MIN_P, TEMPERATURE, Config
from gem_train import entries, platforms
from gem_train.checkpoints import CHECKPOINTS
from gem_train.launch import Adapter, Launch
from gem_train.pairs import COMPUTED, pairs
from gem_train.passes import Passes, named
from gem_train.platforms import Platform
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
    keys,
    namesakes,
)

ALPHA = 32.0
"""Every Tinker server scales adapters by 32 / rank."""

_ADAM = ("beta1", "beta2", "eps", "weight_decay", "grad_clip")
_IGNORED: dict[str, tuple[str, ...]] = {"hosted": (), "skyrl_jax": ("grad_clip",)}
"""What a server takes from its own configuration, by `Config.server`; SkyRL 0.4 on GPUs `_ADAM`."""


def _compile(run: Run) -> Launch:
    """Return the command of a direct run.

    Without a GPU the run gets a server of its own on this machine. Otherwise it talks to the
    server that `TINKER_BASE_URL` names, by default the hosted service.

    Raises:
        ConfigurationError: A Tinker server cannot run this spec; the message names the key.
    """
    platform = platforms.of("tinker", run.spec, run.run_dir, run.hardware, Platform())
    settings = {"record_dir": str(run.run_dir), **TABLE.settings(run), **platform.settings}
    settings = TABLE.with_native(settings, run)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}
    argv = ["python", "-m", "gem_tinker.train", *map("=".join, texts.items())]
    said = named(settings, "epochs", "minibatches")
    passes = Passes("server", "the server decides", prod(said.values()), settings=said)
    return Launch.of(run.spec, argv, platform, state=[CHECKPOINTS], passes=passes)


def _seeds(run: Run) -> dict[str, Any]:
    seed, drawn = run.spec.seed, run.spec.policy.lora_init is None
    return {"seed": seed, **({"lora_seed": seed} if drawn else {})}


def _evaluations(run: Run) -> dict[str, Any]:
    texts = [source.text for source in run.spec.evaluations]
    return {"eval": " ".join(texts), "eval_every": run.spec.eval_every}


def _not_in_fp32(run: Run, value: Any) -> bool:
    return not run.hardware.cpu or run.spec.training.precision == "bf16"


def _server(run: Run) -> str:
    return str(run.native.get("server", "auto"))


def _adam(name: str) -> tuple[Copied, Departs, Departs]:
    """Return the entry of a setting of Adam that some servers take from their own configuration."""
    how = "AdamParams; SkyRL 0.4 ignores grad_clip, on GPUs all but lr"

    def ignored(run: Run) -> bool:
        return not run.hardware.cpu and name in _IGNORED.get(_server(run), _ADAM)

    return (
        Copied(name, "AdamParams"),
        Departs(lambda run, value: ignored(run) and _server(run) != "auto", how, "unmatched"),
        Departs(lambda run, value: ignored(run), how),
    )


def _weights(run: Run) -> Iterator[Parity]:
    if _not_in_fp32(run, None):
        yield Parity(entries.OPTIMIZER_WEIGHTS, "unmatched", "the server decides")
    else:
        how = "adapters in fp32, on gem-cpu's server"
        yield Parity(entries.OPTIMIZER_WEIGHTS, "matched", how)


_TERMS = "the server's losses have no KL penalty and no entropy bonus"
_GAE = Elsewhere("gae only")

TABLE = Table(
    "tinker",
    {
        **{key: Ignored() for key in keys() if key.startswith("hardware.")},
        **namesakes(Config),
        **entries.tasks(Computed(lambda run: {"train": run.spec.task_set.uri}, "train")),
        **entries.evaluations(Computed(_evaluations, "eval, eval_every")),
        "eval.min_p": Fixed(0.0, NO_MIN_P),
        "name": Elsewhere("in run.json"),
        "seed": (Computed(_seeds, "seed, lora_seed"), entries.seeds()),
        "policy.lora_rank": (
            Copied("lora_rank"),
            Refused(
                lambda run, value: value == 0,
                "a Tinker server trains adapters, never all weights; set it to 8 or more",
            ),
        ),
        "policy.lora_alpha": Fixed(ALPHA, "the server's own: 32 on every server"),
        "policy.lora_init": (
            Copied("init"),
            Refused(
                lambda run, value: value is not None and not value.startswith("tinker://"),
                "a Tinker server begins with weights that it has saved itself, tinker://...",
            ),
            Departs(
                lambda run, value: value is None,
                "the server's own, from the same seed; another one than the reference's",
                "unmatched",
            ),
        ),
        "sampling.temperature": (
            Copied("temperature"),
            Refused(lambda run, value: value != 1, TEMPERATURE),
        ),
        "algorithm.advantage": (
            Copied("advantage"),
            Refused(lambda run, value: run.critic, NO_CRITIC),
        ),
        "algorithm.lam": _GAE,
        **entries.plain_loss("Tinker", without=("loss", "clip_high")),
        "algorithm.loss": (
            Copied("loss_fn"),
            Refused(lambda run, value: value == "sapo", "no server has this loss"),
        ),
        "algorithm.kl_in": Elsewhere("no KL penalty"),
        "algorithm.kl_estimator": Elsewhere("no KL penalty"),
        "algorithm.clip": (
            Copied("clip"),
            Departs(
                lambda run, value: not run.spec.sampling.whole and run.spec.sampling.top_k != 1,
                "ratios are to the sampler's log-probabilities, not to recomputed ones",
            ),
        ),
        "algorithm.loss_aggregation": Copied(
            "loss_aggregation", "factors in the advantages of each datum"
        ),
        "algorithm.kl_coef": Fixed(0, _TERMS),
        "algorithm.entropy_coef": Fixed(0, _TERMS),
        "algorithm.tis_clip": Fixed(None, "the server's losses have no such weight"),
        **entries.FIXED_REFERENCE,
        **entries.NO_CRITIC,
        "optimizer.lr": Copied("lr", "AdamParams"),
        "optimizer.type": Fixed("adamw", "AdamParams"),
        **{f"optimizer.{name}": _adam(name) for name in _ADAM},
        **entries.ALL_CANDIDATES,
        **entries.plain_correction("Tinker"),
        **entries.SYNCHRONOUS,
        "training.extra_batches": (
            Copied("extra_batches"),
            entries.without_schedule("the tasks of extra batches are places in a task set"),
        ),
        "training.mask_overlong": Copied("mask_overlong"),
        "training.group_size": (Copied("group_size"), entries.GROUPED),
        "training.precision": (
            Elsewhere("of the model's files, on gem-cpu's server"),
            Departs(
                _not_in_fp32,
                "the server decides; gem-cpu's takes the precision of the model's files",
                "unmatched",
            ),
        ),
        "hardware.device": Elsewhere(
            "a server of the run's own on this machine, or $TINKER_BASE_URL"
        ),
        "hardware.checkpoint_every": Copied("save_every"),
    },
    others=(_weights,),
)
"""How a Tinker server realises each setting. The hardware is the server's."""

PAIRS = (pairs(COMPUTED, COMPUTED, "runs", "the hardware is the server's; no key reaches it"),)
"""Which settings of the hardware work together with a Tinker server."""

adapter = Adapter(
    "tinker",
    SUPPORTED_TINKER,
    "tinker",
    TABLE,
    _compile,
    all_seats=True,
    check=check_tinker,
    pairs=PAIRS,
)
