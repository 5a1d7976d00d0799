"""The comparison of two runs finds every kind of break it exists for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gem.errors import ConfigurationError
from gem.estimators import Options
from gem.trajectory import Trajectory, turn_table
from gem_bench.conformance import Finding, compare_runs
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.record import Recorder, RunRecord, TrainedRow, read_run
from gem_train.testing.golden import golden_batch, golden_turn_rows

ALGORITHM = AlgorithmPart(advantage="rebn", gamma=0.9)
Rows = list[list[TrainedRow]]


def rows_of(batch: list[Trajectory], per_turn: list[list[float]]) -> Rows:
    return [
        [
            TrainedRow(
                prompt_ids=row.prompt_ids,
                response_ids=row.response_ids,
                mask=row.mask,
                rewards=row.token_rewards(t.rewards),
                advantages=np.asarray(row.spread(values), np.float32).tolist(),
            )
            for row in t.training_rows()
        ]
        for t, values in zip(batch, per_turn, strict=True)
    ]


def record(
    folder: Path,
    *,
    batch: list[Trajectory] | None = None,
    change: Callable[[Rows], Rows] = lambda rows: rows,
    algorithm: AlgorithmPart = ALGORITHM,
    **metrics: Any,
) -> RunRecord:
    batch = golden_batch() if batch is None else batch
    table = turn_table(batch)
    values = table.split(algorithm.estimator(table, Options(algorithm.gamma)).advantages)
    recorder = Recorder(folder)
    recorder.episodes(0, batch, values, rows=change(rows_of(batch, values)))
    for k, mean in enumerate(metrics.pop("curve", [0.1, 0.2, 0.3])):
        values_k = {"return_mean": mean, "grad_norm": 2.0, "loss": -0.001, **metrics}
        recorder.metrics(k, values_k)
    return read_run(folder)


def compare(tmp_path: Path, **other: Any) -> list[Finding]:
    return compare_runs(record(tmp_path / "a"), record(tmp_path / "b", **other), ALGORITHM)


def replace_rows(**fields: Callable[[TrainedRow], Any]) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        return [
            [dataclasses.replace(r, **{k: f(r) for k, f in fields.items()}) for r in episode]
            for episode in rows
        ]

    return change


def test_equal_runs_conform(tmp_path: Path) -> None:
    assert compare(tmp_path) == []
    assert compare(tmp_path / "noise", grad_norm=2.0 * (1 + 5e-4), loss=-0.001 + 5e-6) == []


def test_the_order_of_episodes_within_a_batch_does_not_matter(tmp_path: Path) -> None:
    batch = golden_batch()
    # Equal seeds keep their order; the groups swap places.
    assert compare(tmp_path, batch=batch[2:] + batch[:2]) == []


def test_one_row_per_turn_is_compared_too(tmp_path: Path) -> None:
    a, b = (record(tmp_path / name, batch=golden_turn_rows()) for name in "ab")
    assert compare_runs(a, b, ALGORITHM) == []
    findings = compare_runs(record(tmp_path / "c"), a, ALGORITHM)
    assert {f.level for f in findings} == {"L1"}


@pytest.mark.parametrize(
    ("level", "where", "other"),
    [
        ("L0", "advantages", {"algorithm": AlgorithmPart(advantage="rebn", gamma=1.0)}),
        ("L0", "advantages", {"algorithm": AlgorithmPart(advantage="grpo", gamma=0.9)}),
        (
            "L0",
            "advantages",
            # Unbiased instead of population standard deviation.
            {
                "change": replace_rows(
                    advantages=lambda r: [a * (17 / 18) ** 0.5 for a in r.advantages]
                )
            },
        ),
        ("L1", "mask", {"change": replace_rows(mask=lambda r: [0, *r.mask[:-1]])}),
        ("L1", "rewards", {"change": replace_rows(rewards=lambda r: [0.0, *r.rewards[:-1]])}),
        ("L1", "prompt_ids", {"change": replace_rows(prompt_ids=lambda r: [9, *r.prompt_ids])}),
        (
            "L1",
            "response_ids",
            {"change": replace_rows(response_ids=lambda r: r.response_ids[::-1])},
        ),
        ("L1", "rows", {"change": lambda rows: [[] for _ in rows]}),
        ("L1", "episode", {"batch": golden_batch()[:-2]}),
        ("L2", "grad_norm", {"grad_norm": 2.003}),
        ("L2", "loss", {"loss": -0.00105}),
        ("L2", "loss", {"loss": float("nan")}),
        ("L3", "return_mean of iteration 2", {"curve": [0.1, 0.2, 0.31]}),
        ("L3", "number of iterations", {"curve": [0.1, 0.2]}),
    ],
)
def test_every_break_is_found_at_its_level(
    tmp_path: Path, level: str, where: str, other: dict[str, Any]
) -> None:
    findings = compare(tmp_path, **other)
    assert any(f.level == level and where in f.where for f in findings), findings
    assert all(level in str(f) or f.level != level for f in findings)


def test_a_run_that_did_not_record_its_rows_does_not_pass(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "b")
    recorder.episodes(0, golden_batch())
    recorder.metrics(0, {"return_mean": 0.1, "grad_norm": 2.0, "loss": 0.0})
    levels = {
        f.level for f in compare_runs(record(tmp_path / "a"), read_run(tmp_path / "b"), ALGORITHM)
    }
    assert {"L0", "L1"} <= levels


def test_updates_without_any_gradient_prove_nothing(tmp_path: Path) -> None:
    a, b = (record(tmp_path / name, grad_norm=0.0, loss=0.0) for name in "ab")
    [finding] = compare_runs(a, b, ALGORITHM)
    assert (finding.level, finding.where) == ("L2", "an update with a gradient")


def test_a_first_batch_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    whole = record(tmp_path / "a")
    part = record(tmp_path / "b", episodes=7, failed_episodes=1, recorded_episodes=4)
    with pytest.raises(ConfigurationError, match="lacks 4 episodes of the first iteration"):
        compare_runs(whole, part, ALGORITHM)
