"""Several passes and optimiser steps over a batch in real trainers, against the reference."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")

from gem_train.passes import Passes

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
LORA = ("policy.lora_rank=8", "policy.lora_alpha=32.0")

PASSES = ("algorithm.epochs=2", "training.iterations=3")
STEPS = (*PASSES, "algorithm.minibatches=2")
# A prompt for every turn, sums over rows.
TURNS = (*STEPS, "policy.context=concat", "algorithm.loss_aggregation=row-mean-token-sum")


@pytest.mark.parametrize(
    ("trainer", "settings"),
    # OpenRLHF and TRL draw the rows of a step at random.
    [
        pytest.param("verl", STEPS, id="verl", marks=pytest.mark.nightly),
        pytest.param("openrlhf", PASSES, id="openrlhf", marks=pytest.mark.nightly),
        pytest.param("oat", TURNS, id="oat", marks=pytest.mark.nightly),
        pytest.param("rl2", STEPS, id="rl2", marks=pytest.mark.nightly),
        pytest.param("skyrl", TURNS, id="skyrl", marks=pytest.mark.nightly),
        pytest.param("trl", PASSES, id="trl"),
    ],
)
def test_passes_and_steps_are_the_reference_s(
    trainer: str,
    settings: tuple[str, ...],
    run: Callable[..., Path],
    compare: Callable[[Path, Path], list[Any]],
    tmp_path: Path,
) -> None:
    recipe = "guess-easy-greedy"
    folders = [run(name, tmp_path / name, recipe, *settings) for name in ("reference", trainer)]
    findings = compare(*folders)
    if trainer == "openrlhf":  # shows the gradient norm of its last step, not their mean
        findings = [finding for finding in findings if not finding.where.startswith("grad_norm")]
    assert not findings, "\n".join(map(str, findings[:20]))


ALL = ("reference", "verl", "openrlhf", "oat", "rl2", "skyrl", "trl", "roll", "tinker")


@pytest.mark.parametrize("trainer", ALL)
def test_trainers_are_told_to_make_as_many_steps_of_passes_as_large(trainer: str) -> None:
    """The command that each trainer's own environment compiles, for the same experiment."""
    from gem_bench.adapters import find_python
    from gem_bench.dividing import divide
    from gem_bench.models import resolved
    from gem_bench.runspec import load_spec
    from gem_train.experiment.hardware import CPU, LearnerPart

    if trainer == "roll" and "GEM_ROLL_HOME" not in os.environ:
        pytest.skip("GEM_ROLL_HOME names no checkout of ROLL")
    dev = trainer in ("reference", "trl", "roll")
    assert dev or find_python(trainer) is not None, f"make env-{trainer}"
    settings = [*STEPS, *(LORA if trainer == "tinker" else ())]
    spec = resolved(load_spec(RECIPES / "guess-easy-greedy.toml", settings))
    tokens = 4 * spec.policy.tokens
    hardware = replace(CPU, learner=LearnerPart(pass_tokens=tokens, checkpointing=False))
    passes = divide(spec, hardware, Path("runs"), [trainer])[trainer]
    assert isinstance(passes, Passes), passes
    assert passes.steps == 4
    assert passes.tokens == (None if trainer == "tinker" else tokens)
