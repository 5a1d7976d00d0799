"""Comparing runs: numbers against values computed by hand or from tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gem.errors import RecordError
from gem.record import Recorder
from gem_bench.__main__ import main
from gem_bench.compare import RENDERERS, compare
from gem_bench.series import load_runs, smooth
from gem_bench.stats import over_episodes, over_runs, t_quantile

SPEC = {"name": "x", "algorithm": {"advantage": "rebn", "gamma": 0.9}}


def write(
    folder: Path,
    rates: Sequence[float],
    *,
    trainer: str = "reference",
    seed: int = 0,
    meta: dict[str, Any] | None = None,
) -> Path:
    """A record with the given success rates, 10 episodes each."""
    recorder = Recorder(folder)
    base = {"trainer": trainer, "status": "finished", "spec": {**SPEC, "seed": seed}}
    recorder.start({**base, **(meta or {})})
    for iteration, rate in enumerate(rates):
        values = {"success_rate": rate, "episodes": 10, "turns_total": 30, "sampled_tokens": 100}
        recorder.metrics(iteration, {**values, "failed_episodes": 0})
    return folder


@pytest.mark.parametrize(
    ("degrees", "expected"),
    # Two-sided 95 % points of Student's t, from printed tables.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (10, 2.228), (30, 2.042)],
)
def test_t_quantiles_are_those_of_printed_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == pytest.approx(expected, abs=5e-4)


def test_interval_over_three_runs() -> None:
    # Mean 0.7, sample standard deviation 0.1, t = 4.3027: half width 4.3027 * 0.1 / sqrt(3).
    interval = over_runs([0.6, 0.7, 0.8])
    assert interval.mean == pytest.approx(0.7)
    assert interval.low == pytest.approx(0.7 - 0.24841, abs=1e-4)
    assert interval.high == pytest.approx(0.7 + 0.24841, abs=1e-4)


def test_interval_over_episodes() -> None:
    # Worked by hand: centre (0.8 + 0.19207) / 1.38415, half 1.4160 * sqrt(0.016 + 0.0096036).
    interval = over_episodes(8, 10)
    assert interval.low == pytest.approx(0.4902, abs=5e-4)
    assert interval.high == pytest.approx(0.9433, abs=5e-4)
    nothing = over_episodes(0, 10)
    assert nothing.low == pytest.approx(0)
    assert nothing.high == pytest.approx(0.2775, abs=5e-4)


def test_final_is_the_last_window_and_best_the_highest(tmp_path: Path) -> None:
    rates = [0.1, 0.3, 0.9, 0.7, 0.5, 0.5]
    row = compare(load_runs([write(tmp_path / "a", rates)]), window=2).rows[0]
    assert row.final is not None and row.best is not None
    assert row.final.mean == pytest.approx(0.5)
    assert row.final.n == 20
    assert row.final.method == "wilson"
    assert row.best.mean == pytest.approx(0.8)
    assert (row.episodes, row.turns, row.sampled_tokens) == (60, 180, 600)


def test_seeds_of_one_experiment_are_one_row_with_an_interval_over_runs(tmp_path: Path) -> None:
    folders = [write(tmp_path / str(s), [0.6 + 0.1 * s] * 3, seed=s) for s in range(3)]
    rows = compare(load_runs(folders)).rows
    assert len(rows) == 1
    assert rows[0].final is not None
    assert rows[0].final.method == "t"
    assert rows[0].final.high - rows[0].final.low == pytest.approx(2 * 0.24841, abs=1e-4)
    assert rows[0].episodes == 30  # per run, not in all


def test_trainers_and_settings_make_rows_of_their_own(tmp_path: Path) -> None:
    other = {"spec": {"name": "x", "seed": 0, "algorithm": {"advantage": "grpo", "gamma": 0.9}}}
    groups = load_runs(
        [
            write(tmp_path / "a", [0.5]),
            write(tmp_path / "b", [0.5], meta=other),
            write(tmp_path / "c", [0.5], trainer="verl"),
        ]
    )
    assert [group.label for group in groups] == ["reference, rebn", "reference, grpo", "verl, rebn"]
    comparison = compare(groups)
    assert comparison.differing == {"algorithm.advantage": ["rebn", "grpo", "rebn"]}
    assert "differ in: algorithm.advantage" in RENDERERS["text"](comparison)


def test_seeds_may_bring_tasks_of_their_own_but_the_same_to_every_trainer(tmp_path: Path) -> None:
    def run(trainer: str, seed: int, tasks: int) -> Path:
        meta = {"spec": {"name": "x", "seed": seed, "env": {"seed": tasks}}}
        return write(tmp_path / f"{trainer}{seed}", [0.5], trainer=trainer, meta=meta)

    same = compare(load_runs([run(t, s, 100 * s) for t in ("a", "b") for s in (0, 1)]))
    assert [row.seeds for row in same.rows] == [[0, 1], [0, 1]]
    assert not same.differing
    other = compare(load_runs([run("a", 0, 0), run("b", 1, 100)]))
    assert other.differing == {"env.seed": [[0], [100]]}


def test_what_spoils_a_comparison_is_said(tmp_path: Path) -> None:
    folders = [
        write(tmp_path / "a", [0.5]),
        write(tmp_path / "b", [0.5]),
        write(tmp_path / "c", [0.5], seed=1, meta={"status": "failed"}),
    ]
    notes = "\n".join(compare(load_runs(folders)).notes)
    assert "share a seed" in notes
    assert f"{tmp_path / 'c'}: this run is not finished (failed)" in notes


@pytest.mark.parametrize("form", sorted(RENDERERS))
def test_every_form_of_output_names_numbers_and_unmatched_settings(
    tmp_path: Path, form: str
) -> None:
    parity = [
        {"name": "seed", "status": "unmatched", "how": "the engine | seeds itself"},
        {"name": "algorithm.gamma", "status": "matched", "how": "gamma"},
    ]
    folder = write(tmp_path / "a", [0.25, 0.75], meta={"parity": parity})
    text = RENDERERS[form](compare(load_runs([folder]), window=1))
    assert "0.75" in text
    assert "unmatched" in text
    assert "the engine" in text
    assert "gamma" not in text


def test_json_output_is_the_comparison(tmp_path: Path) -> None:
    data = json.loads(RENDERERS["json"](compare(load_runs([write(tmp_path / "a", [0.5] * 4)]))))
    assert data["rows"][0]["final"]["mean"] == 0.5
    assert data["rows"][0]["folders"] == [str(tmp_path / "a")]


def test_markdown_output_is_a_table(tmp_path: Path) -> None:
    lines = RENDERERS["markdown"](compare(load_runs([write(tmp_path / "a", [0.5])]))).splitlines()
    assert {line.count("|") for line in lines[:3]} == {lines[0].count("|")}


def test_a_record_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", [0.5, 0.6])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 2, "split": "tr')
    row = compare(load_runs([folder]), window=1).rows[0]
    assert row.iterations == 2
    assert row.final is not None
    assert row.final.mean == pytest.approx(0.6)


def test_a_record_without_run_json_is_compared_under_its_folder_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "by-hand", [0.5])
    (folder / "run.json").unlink()
    comparison = compare(load_runs([folder]))
    assert comparison.rows[0].label == "by-hand"
    assert "settings are not known" in comparison.notes[0]


def test_a_folder_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=str(tmp_path)):
        load_runs([tmp_path])


def test_tokens_count_what_the_policy_had_learned_from(tmp_path: Path) -> None:
    curve = load_runs([write(tmp_path / "a", [0.5] * 3)])[0].runs[0].curves["train"]
    assert curve.tokens == [0, 100, 200]


def test_smoothing_is_a_trailing_mean_that_skips_gaps() -> None:
    assert smooth([1.0, 3.0, None, 5.0], 2) == [1.0, 2.0, None, 5.0]


def test_the_command_compares_folders(
    make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(make_run(trainer)) for trainer in ("reference", "verl")]
    assert main(["compare", *folders]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].startswith("reference")
    assert out.splitlines()[3].startswith("verl")
    assert main(["compare", "nowhere"]) == 2
    assert "nowhere holds no run" in capsys.readouterr().err


@pytest.mark.parametrize("window", ["0", "-3", "many"])
def test_a_wrong_option_says_what_is_allowed(
    window: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "runs/a", "--window", window])
    assert "must be an integer from 1 on" in capsys.readouterr().err
