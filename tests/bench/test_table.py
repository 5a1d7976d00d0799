"""The table of environments times algorithms: its cells, aggregates, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_bench.__main__ import main
from gem_bench.series import load_runs
from gem_bench.table import as_json, as_markdown, as_text, tabulate
from gem_train.record import Recorder

FINAL = {
    ("gcd", "reinforce"): [0.4, 0.5, 0.6],
    ("gcd", "rebn"): [0.7, 0.8, 0.9],
    ("qa", "reinforce"): [0.3, 0.3, 0.9],
    ("qa", "rebn"): [0.3, 0.6, 0.9],
    ("code", "rebn"): [0.2],
}


def write(root: Path) -> list[Path]:
    """Runs that start with 0.1, dip, and end with the given success."""
    return [
        run(
            root / f"{name}-{advantage}-{seed}",
            [0.1, 0.0, final - 0.05, final + 0.05],
            (name, advantage),
            seed,
        )
        for (name, advantage), finals in FINAL.items()
        for seed, final in enumerate(finals)
    ]


def run(
    folder: Path,
    rates: Sequence[float],
    cell: tuple[str, str] = ("gcd", "rebn"),
    seed: int = 0,
    **meta: Any,
) -> Path:
    """A run with the given success rates, 10 episodes each."""
    recorder = Recorder(folder)
    spec = {"name": cell[0], "algorithm": {"advantage": cell[1]}, "seed": seed}
    recorder.start({"trainer": "reference", "status": "finished", "spec": spec, **meta})
    for iteration, rate in enumerate(rates):
        recorder.metrics(iteration, {"success_rate": rate, "episodes": 10})
    return folder


def test_a_cell_is_the_last_window_over_the_seeds(tmp_path: Path) -> None:
    table = tabulate(load_runs(write(tmp_path)), window=2)
    cell = table.rows["gcd"]["rebn"]
    assert cell.start == pytest.approx(0.1)
    assert cell.final.mean == pytest.approx(0.8)
    # t = 4.3027 with two degrees of freedom, standard deviation 0.1: half width 0.24842, which is
    # 0.24842 / 0.8 on the scale of asin(sqrt(0.8)) = 1.10715.
    assert cell.final.high == pytest.approx(math.sin(1.10715 + 0.31053) ** 2, abs=1e-4)
    # Paired over seeds: every difference is 0.3.
    assert table.differences["gcd"].mean == pytest.approx(0.3)
    assert table.differences["gcd"].low == pytest.approx(0.3)
    # A single run has no interval.
    assert table.rows["code"]["rebn"].final.low is None


def test_aggregates_are_over_what_was_run_with_every_algorithm(tmp_path: Path) -> None:
    table = tabulate(load_runs(write(tmp_path)), window=2)
    assert table.common == ["gcd", "qa"]
    assert table.aggregates["mean"]["rebn"].mean == pytest.approx(0.7)
    # gcd: 9 of 9 pairs won; qa: 0.3 ties twice, 0.6 wins two, 0.9 wins two and ties one.
    found = table.improvements["rebn > reinforce"]
    assert found.mean == pytest.approx((1 + (0.5 * 2 + 2 + 2.5) / 9) / 2)
    assert found.low is not None and found.low < found.mean
    text = as_text(table)
    assert "2 rows that every column has, without code" in text
    assert "a run of rebn has a higher success_rate than one of reinforce" in text


def test_one_algorithm_alone_is_not_compared(tmp_path: Path) -> None:
    folders = [each for each in write(tmp_path) if "reinforce" not in each.name]
    table = tabulate(load_runs(folders), window=2)
    assert (table.differences, table.improvements) == ({}, {})
    assert "less" not in as_markdown(table)


def test_an_evaluation_has_a_table_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(run(tmp_path / "a", []))
    for iteration, rate in [(0, 0.2), (5, 0.6)]:
        values = {"success_rate": rate, "episodes": 10}
        recorder.metrics(iteration, values, split="eval:other")
    table = tabulate(load_runs([tmp_path / "a"]), split="eval:other", window=1)
    cell = table.rows["gcd"]["rebn"]
    assert (cell.start, cell.final.mean) == (0.2, 0.6)
    assert "(eval:other)" in as_text(table)


def test_the_window_of_an_evaluation_counts_iterations_not_evaluations(tmp_path: Path) -> None:
    recorder = Recorder(run(tmp_path / "a", [0.1] * 100))
    for iteration, rate in [(0, 0.0), (50, 0.4), (90, 0.6), (100, 0.8)]:
        recorder.metrics(iteration, {"success_rate": rate, "episodes": 10}, split="eval:other")

    def final(window: int) -> float:
        table = tabulate(load_runs([tmp_path / "a"]), split="eval:other", window=window)
        return table.rows["gcd"]["rebn"].final.mean

    assert final(1) == final(10) == pytest.approx(0.8)
    assert final(11) == final(20) == pytest.approx(0.7)
    assert final(101) == pytest.approx(0.45)


def test_runs_that_did_not_finish_and_runs_that_are_left_out_are_said(tmp_path: Path) -> None:
    folders = [
        run(tmp_path / "a", [0.5] * 100),
        run(tmp_path / "b", [0.1] * 3, seed=1, status="failed"),
        run(tmp_path / "c", [0.1], seed=2, status="running"),
        run(tmp_path / "d", [], seed=3),
    ]
    table = tabulate(load_runs(folders))
    for text in (as_text(table), as_markdown(table), as_json(table)):
        assert f"{tmp_path / 'b'}: this run is not finished (failed)" in text
        assert f"{tmp_path / 'c'}: this run is not finished (running)" in text
        assert f"{tmp_path / 'd'}: success_rate of train is not recorded" in text
        assert f"{tmp_path / 'a'}" not in text
    assert table.rows["gcd"]["rebn"].final.n == 3


def test_two_runs_of_one_cell_with_the_same_seed_are_refused(tmp_path: Path) -> None:
    folders = [run(tmp_path / name, [0.5], seed=7) for name in "ab"]
    with pytest.raises(ConfigurationError) as refused:
        tabulate(load_runs(folders))
    for folder in folders:
        assert str(folder) in str(refused.value)


def test_seeds_with_tasks_of_their_own_are_told_apart_in_a_mixture(tmp_path: Path) -> None:
    specs = [{"name": "gcd", "seed": 0, "env": [{"id": "x", "seed": s}]} for s in (0, 5)]
    folders = [run(tmp_path / str(i), [0.5], spec=spec) for i, spec in enumerate(specs)]
    assert tabulate(load_runs(folders)).rows["gcd"]["None"].final.n == 2


def test_what_was_not_recorded_is_refused_with_what_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(tmp_path / "a", [0.5])
    Recorder(folder).metrics(1, {"return_mean": 0.5, "episodes": 10}, split="eval:held-out")
    groups = load_runs([folder])
    with pytest.raises(ConfigurationError, match="'eval:heldout'; recorded: eval:held-out, train"):
        tabulate(groups, split="eval:heldout")
    with pytest.raises(ConfigurationError, match="'sucess_rate' of train; .*: .*success_rate"):
        tabulate(groups, metric="sucess_rate")
    with pytest.raises(ConfigurationError, match=r"of eval:held-out; recorded: episodes, return_m"):
        tabulate(groups, split="eval:held-out")
    Recorder(folder).metrics(2, {"loss": 0.5, "episodes": 0}, split="eval:failed")
    with pytest.raises(ConfigurationError, match="no iteration of eval:failed has an episode"):
        tabulate(load_runs([folder]), split="eval:failed", metric="loss")
    assert main(["table", str(folder), "--metric", "sucess_rate"]) == 2
    assert "sucess_rate" in capsys.readouterr().err


def test_the_number_of_runs_and_the_pairs_are_told_of_every_row(tmp_path: Path) -> None:
    def cell(name: str, advantage: str, seeds: range) -> list[Path]:
        return [
            run(tmp_path / f"{name}{advantage}{s}", [0.1 * s], (name, advantage), s) for s in seeds
        ]

    folders = cell("gcd", "reinforce", range(3)) + cell("gcd", "rebn", range(3))
    text = as_text(tabulate(load_runs(folders)))
    assert "(over 3 runs)" in text
    assert "Differences: over 3 pairs of runs with the same seed." in text
    folders += cell("qa", "reinforce", range(5)) + cell("qa", "rebn", range(5, 9))
    text = as_text(tabulate(load_runs(folders)))
    assert "(over 3 runs; over 4 runs; over 5 runs)" in text
    assert "gcd over 3 pairs of runs with the same seed; qa over unpaired runs." in text


def test_settings_that_do_not_tell_experiments_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="several experiments have name 'gcd' and"):
        tabulate(load_runs(write(tmp_path)), columns="name")


def test_the_command_writes_each_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = write(tmp_path / "runs")
    runs = [*map(str, folders), "--window", "2"]
    assert main(["table", *runs, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(as_json(tabulate(load_runs(folders), window=2)))
    assert main(["table", *runs, "--format", "markdown", "--out", str(tmp_path / "t.md")]) == 0
    assert (tmp_path / "t.md").read_text().startswith("|  | start | reinforce | rebn |")
