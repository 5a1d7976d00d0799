"""fake-trainer's command for a `RunSpec`, and the table of how each setting gets there.

A command has three sources:

- `TABLE`: one entry for each key of the RunSpec and of the hardware. A key without an entry is an
  error when this module is imported.
- `_always`: the settings of the trainer that no single key decides.
- native settings of the user, which are added as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gem_template.settings import NO_CRITIC, Settings
from gem_template.version import SUPPORTED_TEMPLATE, TRAINER
from gem_train import entries
from gem_train.experiment.tasksets import dataset_rows
from gem_train.launch import Adapter, Launch
from gem_train.pairs import COMPUTED, ON_CPU, pairs
from gem_train.passes import TO_BATCH, Passes, named
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
    below,
    namesakes,
)

CONFIG, TRAIN, EVAL = "config.json", "train.txt", "eval.txt"
"""Files that a run begins with."""


def _compile(run: Run) -> Launch:
    """Return fake-trainer's command.

    Raises:
        ConfigurationError: fake-trainer cannot run this spec; the message names the key.
    """
    settings = _always(run) | TABLE.settings(run)
    # The adapter's own settings are a table of the trainer's configuration.
    config = {name: value for name, value in settings.items() if not name.startswith("gem.")}
    config["gem"] = below(settings, "gem.")
    Settings.read(config)
    config = TABLE.with_native(config, run)
    return Launch.of(
        run.spec,
        ["python", "-m", "fake_trainer", str(run.run_dir / CONFIG)],
        # fake-trainer always runs on the CPU; other trainers need `platforms.of(...)` for that.
        Platform(),
        files={CONFIG: json.dumps(config, indent=2) + "\n", **_tasks(run)},
        passes=_forward(run, config),
    )


def _forward(run: Run, config: Mapping[str, Any]) -> Passes:
    """Return how fake-trainer divides a batch: it is one pass, of rows as long as the longest."""
    said = named(config, "prompts", "samples")
    rows = said["prompts"] * said["samples"]
    return Passes("fixed", TO_BATCH, 1, rows * run.spec.policy.tokens, rows, said)


def _always(run: Run) -> dict[str, Any]:
    """Return the settings that no single key decides."""
    return {
        "trainer": "gem_template.trainer:GemTrainer",
        "data": str(run.run_dir / TRAIN),
        "gem.record_dir": str(run.run_dir),
    }


def _evaluations(run: Run) -> dict[str, Any]:
    return {"eval_data": str(run.run_dir / EVAL), "eval_every": run.spec.eval_every}


def _tasks(run: Run) -> dict[str, str]:
    """Return the files with the tasks, one in each line."""
    rows = {TRAIN: dataset_rows([run.spec.task_set.uri], evaluation=False)}
    if run.spec.eval:
        texts = [source.text for source in run.spec.evaluations]
        rows[EVAL] = dataset_rows(texts, evaluation=True)
    return {name: "".join(f"{row.encode()}\n" for row in each) for name, each in rows.items()}


def _optimizer_weights(run: Run) -> Iterator[Parity]:
    # Trainers with weights in fp32 have `entries.optimizer_weights` instead.
    yield Parity(entries.OPTIMIZER_WEIGHTS, "matched", "float64, in one table")


_ONE_STEP = "fake-trainer makes one optimiser step a batch"
_ONE_PROCESS = "fake-trainer is one process"

TABLE = Table(
    "template",
    {
        # Parts that several adapters have in common; `gem_train.entries` has more.
        **entries.ALL_WEIGHTS,
        **entries.tasks(Elsewhere(f"data: seeded tasks in {TRAIN}")),
        **entries.evaluations(
            Computed(_evaluations, f"eval_data, eval_every: seeded tasks in {EVAL}")
        ),
        "eval.top_p": Fixed(1.0, "fake-trainer samples from all tokens"),
        "eval.min_p": Fixed(0.0, "fake-trainer samples from all tokens"),
        # Keys that the adapter's own `Settings` have under the same name.
        **namesakes(Settings, "gem.{}"),
        "name": Elsewhere("only in the record"),
        "seed": (Copied(("seed", "gem.seed")), entries.seeds()),
        "policy.model": (
            Copied("model"),
            Departs(
                lambda run, value: True,
                "only its tokenizer: the policy is a table of token pairs",
                "unmatched",
            ),
        ),
        "policy.prompt_tokens": Copied("prompt_tokens"),
        "policy.response_tokens": Copied("response_tokens"),
        "sampling.temperature": Copied("temperature"),
        "sampling.top_p": Fixed(1.0, "fake-trainer samples from all tokens"),
        "sampling.top_k": Copied("top_k"),
        "algorithm.advantage": (
            Copied("gem.advantage"),
            Refused(lambda run, value: run.critic, NO_CRITIC),
        ),
        "algorithm.gamma": Copied("gamma"),
        "algorithm.lam": Elsewhere("only GAE has it, which needs a critic"),
        **entries.plain_loss("fake-trainer"),
        "algorithm.clip": Copied("clip"),
        "algorithm.epochs": Fixed(1, _ONE_STEP),
        "algorithm.minibatches": Fixed(1, _ONE_STEP),
        "algorithm.loss_aggregation": Fixed("token-mean", "fake-trainer has no other"),
        "algorithm.kl_in": Elsewhere("no KL penalty"),
        "algorithm.kl_estimator": Elsewhere("no KL penalty"),
        "algorithm.kl_coef": Fixed(0.0, "fake-trainer has no KL penalty"),
        "algorithm.entropy_coef": Fixed(0.0, "fake-trainer has no entropy bonus"),
        "algorithm.tis_clip": Fixed(None, "fake-trainer weighs all tokens alike"),
        **entries.FIXED_REFERENCE,
        **entries.NO_CRITIC,
        "optimizer.lr": Copied("lr"),
        "optimizer.type": Fixed("adamw", "fake-trainer has Adam: AdamW without weight decay"),
        **entries.CONSTANT_RATE,
        "optimizer.beta1": Copied("beta1"),
        "optimizer.beta2": Copied("beta2"),
        "optimizer.eps": Copied("adam_eps"),
        "optimizer.weight_decay": Fixed(0.0, "fake-trainer has no weight decay"),
        "optimizer.grad_clip": Copied("grad_clip"),
        **entries.ALL_CANDIDATES,
        **entries.plain_correction("fake-trainer"),
        **entries.SYNCHRONOUS,
        **entries.PLAYED_ONCE,
        "training.iterations": Copied("steps"),
        "training.tasks": Copied("prompts"),
        "training.group_size": (Copied("samples"), entries.GROUPED),
        "training.precision": (
            Elsewhere("float64"),
            Departs(
                lambda run, value: value == "bf16", "fake-trainer computes in float64", "unmatched"
            ),
        ),
        "hardware.device": Elsewhere("fake-trainer always runs on the CPU"),
        "hardware.nodes": Fixed(1, _ONE_PROCESS),
        "hardware.gpus_per_node": Fixed(1, _ONE_PROCESS),
        "hardware.gpu_memory_gb": Ignored("only `gem-bench fit` looks at it"),
        "hardware.engine.tensor_parallel": Fixed(1, _ONE_PROCESS),
        "hardware.engine.engines": Ignored("the engine is in the trainer's process"),
        "hardware.engine.memory_share": Ignored("there is no GPU"),
        "hardware.learner.tensor_parallel": Fixed(1, _ONE_PROCESS),
        "hardware.learner.sequence_parallel": Fixed(1, _ONE_PROCESS),
        "hardware.learner.pass_tokens": Ignored("a batch is one pass"),
        "hardware.learner.checkpointing": Ignored("a table of token pairs has no activations"),
        "hardware.learner.offload": Ignored("there is no GPU"),
        "hardware.learner.attention": Ignored("a table of token pairs has no attention"),
        "hardware.checkpoint_every": Ignored("fake-trainer saves no checkpoints"),
        "hardware.logger": Ignored("fake-trainer prints its metrics"),
    },
    others=(_optimizer_weights,),
)
"""How fake-trainer realises each setting: its own settings, and the adapter's, which begin with
`gem.`.

An entry says how the value gets to the trainer. Prefer the first of these that is true: `Copied`,
`Computed`, `Fixed`, `Elsewhere`; `Ignored` is for hardware only. Beside it may stand `Refused`, for
values that the trainer cannot realise, and `Departs`, for what it does differently.
"""

PAIRS = (
    pairs(ON_CPU, ON_CPU, "runs", "the tests of this package run them"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together. First come those that are wrong together."""

adapter = Adapter(
    TRAINER.distribution,
    SUPPORTED_TEMPLATE,
    "template",
    TABLE,
    _compile,
    check=TRAINER.check,
    pairs=PAIRS,
)
