"""Truncated importance sampling of real trainers is the reference's (`algorithm.tis_clip`).

Greedy tokens are drawn with probability 1, and engines that report the probability of what was
drawn say so. Every weight is then the token's probability before the update, far from 1, and a
limit below 1 truncates many of them: a correction that is not the same makes another gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.conformance import Finding

GREEDY = "guess-easy-greedy"
SETTINGS = ("algorithm.tis_clip=0.75", "training.iterations=3")

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
Run = Callable[..., Path]
Compare = Callable[[Path, Path], list[Finding]]


@pytest.fixture(scope="module")
def reference(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("reference", tmp_path_factory.mktemp("reference") / "run", GREEDY, *SETTINGS)


def test_the_weights_tell(reference: Path, run: Run, tmp_path: Path) -> None:
    plain = run("reference", tmp_path / "run", GREEDY, *SETTINGS[1:])
    other = run("reference", tmp_path / "other", GREEDY, *SETTINGS, "algorithm.tis_clip=0.5")
    norms = [read_run(each).metrics[0]["grad_norm"] for each in (reference, plain, other)]
    assert norms[0] < 0.98 * norms[1] and norms[2] < 0.98 * norms[0]


@pytest.mark.parametrize("trainer", ["verl", "openrlhf", "trl with vLLM"])
def test_a_real_trainer_weighs_as_the_reference_does(
    trainer: str, reference: Path, run: Run, compare: Compare, tmp_path: Path
) -> None:
    findings = compare(reference, run(trainer, tmp_path / "run", GREEDY, *SETTINGS))
    assert not findings, "\n".join(map(str, findings[:20]))
