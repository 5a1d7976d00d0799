"""The KL penalty of real trainers is the reference's (`algorithm.kl_coef`).

Its gradient is 0 as long as the policy is the one with which the run began. Several optimiser steps
with a large weight make the penalty a large part of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.conformance import Finding

GREEDY = "guess-easy-greedy"
NIGHTLY = ("verl", "openrlhf", "oat", "rl2")
SETTINGS = ("algorithm.kl_coef=2.0", "training.iterations=4")

pytestmark = pytest.mark.slow
Run = Callable[..., Path]
Compare = Callable[[Path, Path], list[Finding]]


@pytest.fixture(scope="module")
def reference(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("reference", tmp_path_factory.mktemp("reference") / "run", GREEDY, *SETTINGS)


def test_the_penalty_tells(reference: Path, run: Run, tmp_path: Path) -> None:
    plain = read_run(run("reference", tmp_path / "run", GREEDY, *SETTINGS[1:])).metrics
    with_penalty = read_run(reference).metrics
    assert "kl" not in plain[0] and with_penalty[0]["kl"] == 0 < with_penalty[-1]["kl"]
    norms = [[line["grad_norm"] for line in lines] for lines in (with_penalty, plain)]
    assert norms[0][0] == norms[1][0]
    assert abs(norms[0][-1] / norms[1][-1] - 1) > 0.02


@pytest.mark.parametrize(
    "trainer",
    ["trl", *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)],
)
def test_a_real_trainer_penalises_as_the_reference_does(
    trainer: str, reference: Path, run: Run, compare: Compare, tmp_path: Path
) -> None:
    findings = compare(reference, run(trainer, tmp_path / "run", GREEDY, *SETTINGS))
    assert not findings, "\n".join(map(str, findings[:20]))
