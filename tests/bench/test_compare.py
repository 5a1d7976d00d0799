"""Comparing runs: numbers against values computed by hand or from tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gem.errors import RecordError
from gem.tasks import Task
from gem.trajectory import Trajectory, Turn
from gem_bench.__main__ import main
from gem_bench.compare import RENDERERS, compare
from gem_bench.sections import numbers
from gem_bench.series import load_runs, smooth
from gem_bench.table import tabulate
from gem_train.record import Recorder

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


def test_final_is_the_last_window_and_best_the_highest(tmp_path: Path) -> None:
    rates = [0.1, 0.3, 0.9, 0.7, 0.5, 0.5]
    row = compare(load_runs([write(tmp_path / "a", rates)]), window=2).rows[0]
    assert row.final is not None and row.best is not None
    assert row.final.mean == pytest.approx(0.5)
    assert row.best == pytest.approx(0.8)
    # Without episodes nothing tells which belong to one task.
    assert (row.final.low, row.final.method) == (None, "none")
    assert (row.episodes, row.turns, row.sampled_tokens) == (60, 180, 600)


def test_seeds_of_one_experiment_are_one_row_with_an_interval_over_runs(tmp_path: Path) -> None:
    folders = [write(tmp_path / str(s), [0.6 + 0.1 * s] * 3, seed=s) for s in range(3)]
    rows = compare(load_runs(folders)).rows
    assert len(rows) == 1
    assert rows[0].final is not None
    assert rows[0].final.method == "runs"
    # Mean 0.7, sample standard deviation 0.1, t = 4.3027: half width 4.3027 * 0.1 / sqrt(3), which
    # is 0.27103 on the scale of asin(sqrt(0.7)) = 0.99116.
    assert rows[0].final.low == pytest.approx(math.sin(0.99116 - 0.27103) ** 2, abs=1e-4)
    assert rows[0].final.high == pytest.approx(math.sin(0.99116 + 0.27103) ** 2, abs=1e-4)
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
        folder = tmp_path / f"{trainer}{seed}-{tasks}"
        return write(folder, [0.5], trainer=trainer, meta=meta)

    same = compare(load_runs([run(t, s, 100 * s) for t in ("a", "b") for s in (0, 1)]))
    assert [row.seeds for row in same.rows] == [[0, 1], [0, 1]]
    assert not same.differing
    other = compare(load_runs([tmp_path / "a0-0", tmp_path / "b1-100"]))
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


def test_other_models_and_versions_of_one_trainer_are_said(tmp_path: Path) -> None:
    def run(file: str, seed: int, model: str, version: str, **more: Any) -> Path:
        versions = {"gem-bench": version, "numpy": version}
        meta = {"model": model, "versions": versions, "spec": {**SPEC, **more, "seed": seed}}
        return write(tmp_path / file, [0.5], seed=seed, meta=meta)

    one, same = run("a", 0, "tiny-1", "1"), run("b", 1, "tiny-1", "1")
    version, model = run("c", 2, "tiny-1", "2"), run("d", 3, "tiny-2", "1")
    grpo = run("e", 0, "tiny-2", "1", algorithm={"advantage": "grpo"})
    assert compare(load_runs([one, same])).notes == []
    # Numpy is not decisive.
    assert compare(load_runs([one, same, version])).notes == [
        "reference: runs are not of one model and version (gem-bench: 1, 2); "
        "these means are over several: reference"
    ]
    [note] = compare(load_runs([one, model])).notes
    assert "(model: tiny-1, tiny-2); these means are over several: reference" in note
    between = ["reference: runs are not of one model and version (model: tiny-1, tiny-2)"]
    assert compare(load_runs([one, grpo])).notes == between
    assert tabulate(load_runs([one, grpo])).notes == between
    # A model that the settings name is a difference of the experiment; so is the trainer.
    other = run("f", 0, "tiny-2", "1", policy={"model": "two"})
    verl = write(tmp_path / "g", [0.5], trainer="verl", meta={"versions": {"gem-bench": "2"}})
    assert compare(load_runs([one, other, verl])).notes == []
    # One setting makes a small model for each experiment's environment.
    elsewhere = run("h", 0, "tiny-2", "1", name="other")
    assert tabulate(load_runs([one, elsewhere]), columns="algorithm.advantage").notes == []


def episode(seed: int, won: bool, group: int) -> Trajectory:
    turn = Turn(
        observation="?",
        context_ids=[1],
        fresh=True,
        response_ids=[2],
        logprobs=None,
        text="x",
        reward=float(won),
        terminated=True,
        truncated=False,
        stop_reason="stop",
        info={"success": won},
    )
    return Trajectory(Task("mine:X", seed), turns=[turn], group=group, end="terminated")


def test_failures_are_shown_by_cause(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", [0.5])
    recorder = Recorder(folder)
    recorder.metrics(1, {"failed_episodes": 3, "failed_tool": 2, "failed_environment": 1})
    recorder.metrics(2, {"failed_episodes": 1, "failed_budget": 1}, "eval:easy")
    found = compare(load_runs([folder, write(tmp_path / "b", [0.5], seed=1)]))
    notes = "\n".join(found.notes)
    assert "train: 3 episodes failed (tool 2, environment 1)" in notes
    assert "eval:easy: 1 episode failed (budget 1)" in notes
    assert str(tmp_path / "b") not in notes
    assert found.rows[0].failed_by_cause == {"tool": 1, "environment": 0.5}
    assert "3 episodes failed (tool 2" in numbers(found)  # the report's table


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


def test_one_run_has_an_interval_over_its_tasks_and_a_paired_difference(
    make_run: Callable[..., Path],
) -> None:
    folders = [make_run(trainer) for trainer in ("reference", "verl")]
    comparison = compare(load_runs(folders), window=5)
    for row in comparison.rows:
        assert row.final is not None and row.final.low is not None and row.final.high is not None
        assert row.final.method == "tasks"
        assert row.final.low < row.final.mean < row.final.high
    (contrast,) = comparison.contrasts
    first, second = (row.final.mean for row in comparison.rows if row.final is not None)
    assert contrast.difference.mean == pytest.approx(second - first)
    assert contrast.difference.method == "paired tasks"
    line = next(x for x in RENDERERS["text"](comparison).splitlines() if " less " in x)
    assert line.startswith("verl less reference: final success ")
    assert f"over {contrast.difference.n} tasks that both played" in line


def test_episodes_of_one_task_are_not_taken_for_independent(tmp_path: Path) -> None:
    """Eight episodes a task that all end alike tell as much as one."""

    def interval(copies: int) -> float:
        folder = tmp_path / str(copies)
        recorder = Recorder(folder)
        for iteration in range(4):
            batch = [episode(16 * iteration + task, task % 2 == 0, task) for task in range(16)]
            batch = [t for t in batch for _ in range(copies)]
            values = {"success_rate": 0.5, "episodes": len(batch)}
            recorder.metrics(iteration, values)
            recorder.episodes(iteration, batch)
        final = compare(load_runs([folder])).rows[0].final
        assert final is not None and final.low is not None and final.high is not None
        return final.high - final.low

    assert interval(8) == pytest.approx(interval(1), rel=0.02)


def test_runs_of_the_same_seeds_are_compared_in_pairs(tmp_path: Path) -> None:
    def runs(trainer: str, shift: float) -> list[Path]:
        return [
            write(tmp_path / f"{trainer}{s}", [0.5 + 0.1 * s + shift], trainer=trainer, seed=s)
            for s in range(3)
        ]

    (contrast,) = compare(load_runs([*runs("a", 0.0), *runs("b", 0.05)])).contrasts
    assert contrast.difference.method == "paired runs"
    # Seeds differ by 0.1, but the difference is the same in each.
    assert contrast.difference.low == pytest.approx(0.05)
    assert contrast.difference.high == pytest.approx(0.05)


@pytest.mark.parametrize("spec", [{**SPEC, "seed": 0}, SPEC])
def test_runs_whose_seeds_repeat_or_are_not_known_are_not_paired(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    def runs(trainer: str, *rates: float) -> list[Path]:
        return [
            write(tmp_path / f"{trainer}{i}", [rate], trainer=trainer, meta={"spec": spec})
            for i, rate in enumerate(rates)
        ]

    comparison = compare(load_runs([*runs("a", 0.2, 0.4), *runs("b", 0.5, 0.7)]))
    [contrast] = comparison.contrasts
    assert contrast.difference.method == "unpaired runs"
    assert contrast.difference.mean == pytest.approx(0.3)
    assert contrast.difference.low is not None and contrast.difference.low < 0
    assert "same seed" not in RENDERERS["text"](comparison)


def test_runs_without_a_spec_are_not_taken_for_seeds_of_one_experiment(tmp_path: Path) -> None:
    folders = [write(tmp_path / name / "record", [0.5], meta={"spec": {}}) for name in "ab"]
    folders.append(write(tmp_path / "c", [0.5], trainer="verl", meta={"spec": {}}))
    comparison = compare(load_runs(folders))
    labels = [f"reference, {folder}" for folder in folders[:2]]
    assert [row.label for row in comparison.rows] == [*labels, "verl"]
    assert comparison.notes == [
        f"{folder}: run.json has no spec, so its settings are not known" for folder in folders
    ]


@pytest.mark.parametrize("window", ["0", "-3", "many"])
def test_a_wrong_option_says_what_is_allowed(
    window: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "runs/a", "--window", window])
    assert "must be an integer from 1 on" in capsys.readouterr().err


def test_other_hardware_is_said_and_no_difference_of_the_experiment(tmp_path: Path) -> None:
    one, eight = {"gpus_per_node": 1, "native": {}}, {"gpus_per_node": 8, "native": {}}
    folders = [
        write(tmp_path / "a", [0.5], meta={"hardware": one}),
        write(tmp_path / "b", [0.5], trainer="verl", meta={"hardware": eight}),
    ]
    comparison = compare(load_runs(folders))
    assert comparison.differing == {}
    [note] = comparison.notes
    assert "no difference of the experiment (gpus_per_node: 1, 8)" in note


def test_a_limit_of_updates_that_acts_in_one_run_only_is_named(tmp_path: Path) -> None:
    def with_metrics(name: str, trainer: str, **metrics: float) -> Path:
        spec = {**SPEC, "optimizer": {"grad_clip": 1.0}, "seed": 0}
        folder = write(tmp_path / name, [0.5, 0.5], trainer=trainer, meta={"spec": spec})
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        text = "".join(json.dumps(line | metrics) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text)
        return folder

    def notes(*folders: Path) -> list[str]:
        return compare(load_runs(folders)).notes

    clipped = with_metrics("clipped", "a", clip_fraction=0.2, grad_norm=3.0, tis_fraction=0.3)
    free = with_metrics("free", "b", clip_fraction=0.0, grad_norm=0.5, tis_fraction=0.2)
    policy, gradient = notes(clipped, free)
    assert policy.startswith("the policy's clip acts in a, and is not seen to act in b")
    assert "a: 20.0% of tokens; b: 0.0% of tokens" in policy
    assert gradient.startswith("the gradient's clip acts in a, and is not seen to act in b")
    # In both or in neither there is nothing to say.
    assert notes(clipped, with_metrics("too", "c", **{**vars_of(clipped)})) == []
    assert notes(free, with_metrics("neither", "d", **{**vars_of(free)})) == []
    silent = with_metrics("silent", "e", clip_fraction=0.2, grad_norm=3.0)
    [weights] = notes(clipped, silent)
    assert "tis_" in weights and "e: not recorded" in weights


def test_a_metric_that_one_trainer_cannot_give_is_named_where_another_does(tmp_path: Path) -> None:
    untold = {"sampler_kl": "it computes none", "mismatched_tokens": "it computes none"}
    silent = write(tmp_path / "a", [0.5], trainer="rl2", meta={"untold": untold})
    telling = write(tmp_path / "b", [0.5], trainer="verl")
    other = write(tmp_path / "c", [0.5], trainer="oat")
    line = json.loads((telling / "metrics.jsonl").read_text())
    (telling / "metrics.jsonl").write_text(json.dumps(line | {"sampler_kl": 1e-9}) + "\n")
    assert compare(load_runs([silent, telling])).notes == [
        "rl2: not recorded: sampler_kl (it computes none)"
    ]
    assert compare(load_runs([silent, other])).notes == []


def vars_of(folder: Path) -> dict[str, float]:
    """Metrics of updates in the record of a run."""
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    return {name: line[name] for name in ("clip_fraction", "grad_norm", "tis_fraction")}


def test_the_wall_time_of_a_resumed_run_is_its_records_not_that_of_the_last_start(
    tmp_path: Path,
) -> None:
    resumed = {"resumed": [{"iteration": 1}]}
    for name, entries in (("whole", {}), ("resumed", resumed)):
        folder = write(tmp_path / name, [0.5], meta={"seconds": {"command": 7.0}, **entries})
        line = json.loads((folder / "metrics.jsonl").read_text())
        (folder / "metrics.jsonl").write_text(json.dumps(line | {"time_s": 100.0}) + "\n")
    [group] = load_runs([tmp_path / "whole", tmp_path / "resumed"])
    assert [run.seconds for run in group.runs] == [7.0, 100.0]


def test_native_settings_make_another_experiment(tmp_path: Path) -> None:
    given = {"native": {"verl": {"actor.x": 2}, "oat": {"y": 1}}}
    folders = [
        write(tmp_path / "a", [0.5], trainer="verl"),
        write(tmp_path / "b", [0.5], trainer="verl", seed=1, meta={"hardware": given}),
    ]
    comparison = compare(load_runs(folders))
    assert len(comparison.rows) == 2
    assert comparison.differing == {"native.actor.x": [None, 2]}


def test_episodes_that_are_not_recorded_are_named(tmp_path: Path) -> None:
    recorder = Recorder(write(tmp_path / "a", [0.5]))
    recorder.metrics(1, {"episodes": 9, "failed_episodes": 1, "recorded_episodes": 4})
    recorder.metrics(1, {"episodes": 9, "failed_episodes": 1, "recorded_episodes": 0}, "eval:easy")
    comparison = compare(load_runs([tmp_path / "a"]))
    notes = "\n".join(comparison.notes)
    assert "train: 6 episodes are not recorded" in notes
    assert "eval:easy: 10 episodes are not recorded" in notes
    assert "6 episodes are not recorded" in numbers(comparison)


def test_a_sample_of_the_episodes_neither_decides_a_difference_nor_has_an_interval(
    tmp_path: Path,
) -> None:
    """The first iteration has only its won episodes of a, and its lost ones of b."""

    def one(name: str, won: int, sample: bool) -> Path:
        folder = tmp_path / name
        recorder = Recorder(folder)
        recorder.start({"trainer": name, "status": "finished", "spec": {**SPEC, "seed": 0}})
        values = {"success_rate": won / 8, "episodes": 8, "failed_episodes": 0}
        recorder.metrics(0, {**values, "recorded_episodes": 2})
        recorder.episodes(0, [episode(i, sample, i) for i in range(2)])
        recorder.metrics(1, values)
        recorder.episodes(1, [episode(8 + i, i < won, i) for i in range(8)])
        return folder

    groups = load_runs([one("a", 6, sample=True), one("b", 4, sample=False)])
    both = compare(groups, window=2)
    assert {row.final.method for row in both.rows if row.final is not None} == {"none"}
    assert both.contrasts[0].difference.mean == pytest.approx(-0.25)
    assert both.contrasts[0].difference.method == "none"
    assert "over tasks is left out" in both.notes[0]
    last = compare(groups, window=1)
    assert last.contrasts[0].difference.mean == pytest.approx(-0.25)
    assert last.contrasts[0].difference.method == "paired tasks"
