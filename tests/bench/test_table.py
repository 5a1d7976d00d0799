"""The table of environments times algorithms: its cells, aggregates, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

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
    folders = []
    for (name, advantage), finals in FINAL.items():
        for seed, final in enumerate(finals):
            folder = root / f"{name}-{advantage}-{seed}"
            recorder = Recorder(folder)
            spec = {"name": name, "algorithm": {"advantage": advantage}, "seed": seed}
            recorder.start({"trainer": "reference", "status": "finished", "spec": spec})
            for iteration, rate in enumerate([0.1, 0.0, final - 0.05, final + 0.05]):
                recorder.metrics(iteration, {"success_rate": rate, "episodes": 10})
            folders.append(folder)
    return folders


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
    assert "a run of rebn is better than one of reinforce" in text


def test_one_algorithm_alone_is_not_compared(tmp_path: Path) -> None:
    folders = [each for each in write(tmp_path) if "reinforce" not in each.name]
    table = tabulate(load_runs(folders), window=2)
    assert (table.differences, table.improvements) == ({}, {})
    assert "less" not in as_markdown(table)


def test_an_evaluation_has_a_table_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a")
    spec = {"name": "gcd", "algorithm": {"advantage": "rebn"}, "seed": 0}
    recorder.start({"trainer": "reference", "status": "finished", "spec": spec})
    for iteration, rate in [(0, 0.2), (5, 0.6)]:
        values = {"success_rate": rate, "episodes": 10}
        recorder.metrics(iteration, values, split="eval:other")
    table = tabulate(load_runs([tmp_path / "a"]), split="eval:other", window=1)
    cell = table.rows["gcd"]["rebn"]
    assert (cell.start, cell.final.mean) == (0.2, 0.6)
    assert "(eval:other)" in as_text(table)


def test_the_window_of_an_evaluation_counts_iterations_not_evaluations(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a")
    spec = {"name": "gcd", "algorithm": {"advantage": "rebn"}, "seed": 0}
    recorder.start({"trainer": "reference", "status": "finished", "spec": spec})
    for iteration in range(100):
        recorder.metrics(iteration, {"success_rate": 0.1, "episodes": 10})
    for iteration, rate in [(0, 0.0), (50, 0.4), (90, 0.6), (100, 0.8)]:
        recorder.metrics(iteration, {"success_rate": rate, "episodes": 10}, split="eval:other")

    def final(window: int) -> float:
        table = tabulate(load_runs([tmp_path / "a"]), split="eval:other", window=window)
        return table.rows["gcd"]["rebn"].final.mean

    assert final(1) == final(10) == pytest.approx(0.8)
    assert final(11) == final(20) == pytest.approx(0.7)
    assert final(101) == pytest.approx(0.45)


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
