"""gem-bench's hook: the command that runs a RunSpec in TRL."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from gem_train import entries, platforms
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import Adapter, Launch, executor_variable
from gem_train.pairs import COMPUTED, ON_CPU, pairs
from gem_train.passes import TO_BATCH, Passes, named
from gem_train.platforms import Platform
from gem_train.table import Run, below
from gem_trl import SUPPORTED_TRL, check_trl
from gem_trl.experiment import CHECKPOINTS, GIVEN, TABLE, check_correction, decided

SPEC_FILE = "spec.json"


def _compile(run: Run) -> Launch:
    """Return the command of a run.

    Raises:
        ConfigurationError: TRL cannot run this spec; the message names the key.
    """
    platform = platforms.of("trl", run.spec, run.run_dir, run.hardware, _gpu(run.spec))
    settings = {**platform.settings, **below(TABLE.settings(run), GIVEN)}
    settings = TABLE.with_native(settings, run)
    check_correction(run.spec, settings.get("use_vllm"))
    start = ["python"]
    if run.hardware.gpus > 1:
        start = ["torchrun", "--standalone", "--nproc-per-node", str(run.hardware.gpus)]
    path = run.run_dir / SPEC_FILE
    command = [*start, "-m", "gem_trl.train", str(path), "--record", str(run.run_dir)]
    return Launch.of(
        run.spec,
        [*command, *(f"{key}={json.dumps(value)}" for key, value in settings.items())],
        platform,
        executor_variable(run.hardware),
        files={SPEC_FILE: json.dumps(run.spec.to_mapping(), indent=2) + "\n"},
        state=[CHECKPOINTS],
        passes=_forward(run, settings),
        untold=_untold(run, served=bool(settings.get("use_vllm"))),
    )


def _untold(run: Run, *, served: bool) -> dict[str, str]:
    """Return the metrics that TRL cannot give of what vLLM or its own model has sampled."""
    alone = "TRL's own model samples, and tells no log-probabilities"
    why = entries.OTHER_DISTRIBUTION if served else alone
    return entries.untold(lambda run: not (served and run.spec.sampling.whole), why)(run)


def _forward(run: Run, settings: Mapping[str, Any]) -> Passes:
    """Return how TRL divides a batch, by what `gem_trl.train` makes of the settings."""
    most = settings["per_device_train_batch_size"]
    fields = decided(run.spec, run.run_dir, run.hardware.gpus, most)
    rows, window, iterations, generation = (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_iterations",
        "steps_per_generation",
    )
    said = named(fields, rows, window, iterations, generation)
    steps = said[iterations] * said[generation] // said[window]
    tokens = said[rows] * run.spec.policy.tokens
    return Passes("fixed", TO_BATCH, steps, tokens, said[rows], said)


def _gpu(spec: RunSpec) -> Platform:
    """Return what GPUs allow: vLLM, which samples in bf16, shares them with the trainer."""
    vllm = spec.training.precision == "bf16" and importlib.util.find_spec("vllm") is not None
    length = {"vllm_max_model_length": spec.policy.tokens} if vllm else {}
    return Platform({"use_vllm": vllm, **length})


PAIRS = (
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs("gpus_per_node", {"sdpa", "fp32"}, "runs", "test_processes.py, on the CPU"),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in TRL."""

adapter = Adapter("trl", SUPPORTED_TRL, "dev", TABLE, _compile, check=check_trl, pairs=PAIRS)
