"""Several passes and optimiser steps over a batch in real trainers, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")

pytestmark = pytest.mark.slow

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
