"""A sampled run of each real trainer, audited: what would the reference have made of it?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trainers import TRAINERS

from gem_train.experiment.agreement import NAMES
from gem_train.record import read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.audit import audit, judge, lines

# The other trainers are audited nightly: it takes minutes each.
IN_CI = ("trl",)

SILENT = ("trl", "rl2", "roll")
"""Trainers that cannot compare themselves with their sampler in these runs; docs/records.md."""

SETTINGS = (
    "training.iterations=6",
    # Updates that are small enough that rounding does not grow from one to the next.
    "optimizer.lr=1e-4",
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "trainer",
    [
        trainer
        if trainer in IN_CI or not isinstance(trainer, str)
        else pytest.param(trainer, marks=pytest.mark.nightly)
        for trainer in TRAINERS
    ],
)
def test_the_reference_would_have_made_the_same_of_a_sampled_run(
    trainer: str, run: Callable[..., Path], keep: Callable[[str, str], None], tmp_path: Path
) -> None:
    """Loss, gradient and log-probabilities of each update; samples from the right distribution."""
    folder = run(trainer, tmp_path / "run", "guess-easy", *SETTINGS)
    audits = list(audit(read_run(folder)))
    assert len(audits) == 6
    findings = judge(audits)
    assert not findings, "\n".join([*lines(audits), *map(str, findings)])
    train = [m for m in read_run(folder).metrics if m["split"] == "train"]
    for each, metrics in zip(audits, train, strict=True):
        assert metrics["clip_fraction"] == 0  # the only update of a batch
        assert set(NAMES) & metrics.keys() == (set() if trainer in SILENT else set(NAMES))
        if trainer in SILENT:
            continue
        # What the trainer says of its sampler is what the reference finds.
        assert each.logprob_difference is not None
        near = 3 * max(each.logprob_noise or 0.0, 1e-5)
        assert metrics["logprob_difference_max"] == pytest.approx(each.logprob_difference, abs=near)
        assert 0 <= metrics["logprob_difference_mean"] <= metrics["logprob_difference_max"]
        assert abs(metrics["sampler_kl"]) < 1e-6
        assert metrics["mismatched_tokens"] == 0
    keep(trainer, "sampled audit")
