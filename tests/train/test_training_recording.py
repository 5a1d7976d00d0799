"""What an adapter does to leave a record of its trainer's run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError, RecordError, RolloutError
from gem.trajectory import Failure, Trajectory
from gem_train.experiment.metrics import (
    episode_metrics,
    progress,
    sampled_metrics,
    update_metrics,
)
from gem_train.packed import PackedTrajectory, Selection
from gem_train.record import EPISODES, METRICS, RUN, SCHEMA, TrainedRow, read_run
from gem_train.recording import Names, RunRecording, rows_wanted
from gem_train.testing.golden import golden_batch

ABOUT = {"trainer": "mine", "versions": {"mine": "1.0"}}
NAMES: Names = {
    "loss": "actor/loss",
    "rollout_s": "timing/gen",
    "kl": ("actor/kl", "actor/ref_kl"),
}
ROW = TrainedRow([3, 4], [5, 6], [1, 0], [0.5, 0.0], [1.0, 0.0])


@pytest.fixture(autouse=True)
def _no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEM_RECORD_ROWS", raising=False)
    monkeypatch.delenv("GEM_RECORD", raising=False)


def lines(folder: Path, name: str = METRICS) -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ones(batch: list[Trajectory]) -> list[list[float]]:
    return [[1.0] * len(t.turns) for t in batch]


def test_the_trainer_and_its_versions_stand_in_run_json(tmp_path: Path) -> None:
    RunRecording(tmp_path / "a" / "run", {**ABOUT, "config": {"lr": 0.1}})
    assert json.loads((tmp_path / "a" / "run" / RUN).read_text()) == {
        "schema": SCHEMA,
        "trainer": "mine",
        "versions": {"mine": "1.0"},
        "config": {"lr": 0.1},
    }


def test_whoever_watches_the_run_is_told_what_is_recorded(tmp_path: Path) -> None:
    told: list[Any] = []
    recording = RunRecording(tmp_path, ABOUT, report=lambda *each: told.append(each))
    found = recording.write_evaluation(0, "same", golden_batch())
    recording.keep_batch(golden_batch())
    written = recording.write_iteration(0, metrics={"loss": 0.5})
    assert told == [(0, "eval:same", found), (0, "train", written)]
    RunRecording(None, ABOUT, report=lambda *each: told.append(each)).write_evaluation(1, "b", [])
    assert told[-1][:2] == (1, "eval:b")


LAUNCHED = {**ABOUT, "spec": {}, "command": ["train"], "status": "running", "run_id": "r"}


def test_a_launchers_run_json_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text(json.dumps(LAUNCHED))
    RunRecording(tmp_path, {**ABOUT, "spec": {"model": "/where/it/is"}, "config": {"lr": 0.1}})
    assert json.loads((tmp_path / RUN).read_text()) == LAUNCHED


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trainer": "other"}, "trainer: 'mine' there, 'other' here"),
        ({"versions": {"mine": "2.0"}}, "versions.mine: '1.0' there, '2.0' here"),
    ],
)
def test_another_trainer_does_not_record_a_launchers_run(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    (tmp_path / RUN).write_text(json.dumps(LAUNCHED))
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        RunRecording(tmp_path, {**ABOUT, **changes})


def test_whatever_a_launcher_starts_records_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an adapter that is made of another one, whose name it records under."""
    monkeypatch.setenv("GEM_RUN_ID", "r")
    (tmp_path / RUN).write_text(json.dumps(LAUNCHED))
    RunRecording(tmp_path, {**ABOUT, "trainer": "other"})
    assert json.loads((tmp_path / RUN).read_text()) == LAUNCHED


@pytest.mark.parametrize("status", ["finished", "interrupted", "failed"])
def test_a_trainers_own_command_does_not_go_on_with_a_launchers_run(
    tmp_path: Path, status: str
) -> None:
    (tmp_path / RUN).write_text(json.dumps({**LAUNCHED, "status": status}))
    with pytest.raises(ConfigurationError, match="gem-bench run --resume"):
        RunRecording(tmp_path, ABOUT)


def test_metrics_are_recorded_under_the_records_names_in_the_order_of_the_table(
    tmp_path: Path,
) -> None:
    batch = golden_batch()
    recording = RunRecording(tmp_path, ABOUT, NAMES)
    recording.keep_batch(batch, metrics={"logprob_difference_max": 0.25})
    logged = {"timing/gen": 2, "actor/kl": 0.125, "actor/loss": 0.5, "stranger": object()}
    recording.write_iteration(3, logged, metrics={"update_s": 4.0})
    [line] = lines(tmp_path)
    known = episode_metrics(batch)
    names = ["logprob_difference_max", "loss", "rollout_s", "kl", "update_s", "tokens_per_s"]
    assert list(line) == ["iteration", "split", "time_s", *known, *names]
    assert (line["iteration"], line["split"]) == (3, "train")
    assert [line[name] for name in known] == list(known.values())
    assert [line[name] for name in names] == [
        *(0.25, 0.5, 2.0, 0.125, 4.0),
        known["sampled_tokens"] / 2,
    ]


def test_the_share_of_negative_advantages_counts_the_turns_of_valid_episodes(
    tmp_path: Path,
) -> None:
    batch = golden_batch()
    valid = [episode.valid for episode in batch]
    assert not all(valid)
    # Failed episodes have advantage 0; below, the first turn of each valid episode is negative.
    signs = [[-1.0 if turn == 0 else 1.0 for turn in range(len(e.turns))] for e in batch]
    signs = [row if ok else [-1.0] * len(row) for row, ok in zip(signs, valid, strict=True)]
    found = RunRecording(tmp_path, ABOUT).keep_batch(batch, signs)
    turns = [len(e.turns) for e in batch if e.valid]
    negative = sum(map(bool, turns))
    assert found["negative_advantage_rate"] == negative / sum(turns)
    assert "negative_advantage_rate" not in RunRecording(tmp_path, ABOUT).keep_batch(batch)


def test_metrics_that_the_trainer_did_not_log_are_missing(tmp_path: Path) -> None:
    recording = RunRecording(tmp_path, ABOUT, NAMES)
    recording.keep_batch(golden_batch())
    recording.write_iteration(0, {"actor/grad_norm": 1.0})
    [line] = lines(tmp_path)
    assert not {"loss", "rollout_s", "kl", "tokens_per_s", "actor/grad_norm"} & set(line)


def test_of_several_names_the_first_that_is_logged_counts(tmp_path: Path) -> None:
    recording = RunRecording(tmp_path, ABOUT, NAMES)
    named = {"actor/ref_kl": 2.0}, {"actor/ref_kl": 2.0, "actor/kl": 1.0}
    for iteration, logged in enumerate(named):
        recording.keep_batch(golden_batch())
        recording.write_iteration(iteration, logged)
    assert [line["kl"] for line in lines(tmp_path)] == [2.0, 1.0]


def test_the_last_logged_value_of_several_optimiser_steps_is_recorded_once(
    tmp_path: Path,
) -> None:
    recording = RunRecording(tmp_path, ABOUT, NAMES)
    recording.log({"timing/gen": 4.0})  # before the batch is known
    recording.keep_batch(golden_batch())
    recording.log({"actor/loss": 1.0})
    recording.log({"actor/loss": 0.5})
    recording.write_iteration(0)
    recording.keep_batch(golden_batch())
    recording.write_iteration(1)
    first, second = lines(tmp_path)
    assert (first["loss"], first["rollout_s"]) == (0.5, 4.0)
    assert not {"loss", "rollout_s"} & set(second)


def test_a_rate_known_with_the_batch_stands_before_the_metrics_of_the_update(
    tmp_path: Path,
) -> None:
    recording = RunRecording(tmp_path, ABOUT)
    kept = recording.keep_batch(golden_batch(), metrics={"rollout_s": 0.5, "advantage_s": 1.0})
    assert kept["tokens_per_s"] == kept["sampled_tokens"] * 2
    written = recording.write_iteration(0, metrics={"loss": 0.5})
    [line] = lines(tmp_path)
    assert list(line)[-4:] == ["rollout_s", "advantage_s", "tokens_per_s", "loss"]
    assert {name: line[name] for name in written} == written == {**kept, "loss": 0.5}


def test_episodes_are_recorded_with_advantages_of_all_parts(tmp_path: Path) -> None:
    batch = golden_batch()
    recording = RunRecording(tmp_path, ABOUT)
    recording.keep_batch(batch, ones(batch))
    recording.write_iteration(5)
    episodes = list(read_run(tmp_path).episodes())
    assert [(e.iteration, e.split) for e in episodes] == [(5, "train")] * len(batch)
    assert [e.trajectory for e in episodes] == batch
    assert [e.advantages for e in episodes] == ones(batch)


def test_an_iteration_is_written_once_and_only_with_a_batch(tmp_path: Path) -> None:
    recording = RunRecording(tmp_path, ABOUT, NAMES)
    assert recording.write_iteration(0, {"actor/loss": 0.5}) == {}
    recording.keep_batch(golden_batch())
    recording.write_iteration(1)
    assert recording.write_iteration(2) == {}
    [line] = lines(tmp_path)
    assert line["iteration"] == 1
    assert "loss" not in line


@pytest.mark.parametrize("resumed", [False, True])
def test_an_iteration_that_was_not_recorded_is_missed(tmp_path: Path, resumed: bool) -> None:
    recording = RunRecording(tmp_path, ABOUT)
    for iteration in (3, 4):  # goes on with a run that another record has
        recording.keep_batch(golden_batch())
        recording.write_iteration(iteration)
    if resumed:
        recording = RunRecording(tmp_path, ABOUT)
    recording.keep_batch(golden_batch())
    with pytest.raises(RecordError, match="iteration 6 would follow iteration 4"):
        recording.write_iteration(6)
    assert [line["iteration"] for line in lines(tmp_path)] == [3, 4]


def test_a_batch_that_was_not_trained_is_replaced(tmp_path: Path) -> None:
    batch = golden_batch()
    recording = RunRecording(tmp_path, ABOUT)
    recording.keep_batch(batch)
    recording.keep_batch(batch[:2])
    recording.write_iteration(0)
    assert [e.trajectory for e in read_run(tmp_path).episodes()] == batch[:2]


def test_failures_without_a_trajectory_are_counted(tmp_path: Path) -> None:
    batch = [t for t in golden_batch() if t.valid]
    recording = RunRecording(tmp_path, ABOUT)
    recording.keep_batch(batch, lost=[Failure("engine", "never arrived", 1)])
    recording.write_iteration(0)
    [line] = lines(tmp_path)
    assert (line["episodes"], line["failed_episodes"]) == (len(batch), 1)
    assert line["failed_engine"] == 1


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("0", False), (None, False)])
def test_training_rows_are_made_and_recorded_only_if_they_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, wanted: bool
) -> None:
    if value is not None:
        monkeypatch.setenv("GEM_RECORD_ROWS", value)
    calls = []

    def rows() -> list[list[TrainedRow]]:
        calls.append(1)
        return [[ROW], [ROW, ROW]]

    recording = RunRecording(tmp_path, ABOUT)
    recording.keep_batch(golden_batch()[:2], rows=rows)
    assert rows_wanted() is wanted
    assert len(calls) == wanted  # now: the update may change the trainer's tensors
    recording.write_iteration(0)
    assert [e.rows for e in read_run(tmp_path).episodes()] == (
        [[ROW], [ROW, ROW]] if wanted else [None, None]
    )


def test_an_evaluation_has_a_split_of_its_name(tmp_path: Path) -> None:
    batch = golden_batch()
    recording = RunRecording(tmp_path, ABOUT)
    recording.keep_batch(batch)
    written = recording.write_evaluation(2, "easy", batch[:3], metrics={"rollout_s": 2.0})
    [line] = lines(tmp_path)
    assert (line["iteration"], line["split"]) == (2, "eval:easy")
    known = episode_metrics(batch[:3]) | sampled_metrics(batch[:3])
    rate = {"rollout_s": 2.0, "tokens_per_s": known["sampled_tokens"] / 2}
    assert written == known | rate
    assert list(line) == ["iteration", "split", "time_s", *known, *rate]
    episodes = list(read_run(tmp_path).episodes("eval:easy"))
    assert [e.trajectory for e in episodes] == batch[:3]
    assert all(e.advantages is None and e.rows is None for e in episodes)
    recording.write_iteration(2)  # the kept batch is still there
    assert [line["split"] for line in lines(tmp_path)] == ["eval:easy", "train"]


def test_an_evaluation_is_written_in_the_order_that_it_is_given_in(tmp_path: Path) -> None:
    RunRecording(tmp_path, ABOUT).write_evaluation(0, "x", of_tasks((0, 3), (0, 1), (0, 2)))
    assert [e.trajectory.task.seed for e in read_run(tmp_path).episodes()] == [3, 1, 2]


def of_tasks(*tasks: tuple[int, int]) -> list[Trajectory]:
    """An episode of each group and seed."""
    [played, *_] = golden_batch()
    return [
        replace(played, group=group, task=replace(played.task, seed=seed)) for group, seed in tasks
    ]


def test_kept_evaluations_are_written_once_in_the_order_of_their_tasks(tmp_path: Path) -> None:
    recording = RunRecording(tmp_path, ABOUT)
    recording.keep_evaluated("b", of_tasks((1, 5), (0, 9)))
    recording.keep_evaluated("a", of_tasks((0, 2), (0, 1)))
    recording.keep_evaluated("b", of_tasks((1, 4)))
    assert lines(tmp_path) == []
    recording.write_evaluated(3)
    recording.write_evaluated(4)
    episodes = read_run(tmp_path).episodes()
    assert [(e.split, e.trajectory.group, e.trajectory.task.seed) for e in episodes] == [
        *(("eval:b", 0, 9), ("eval:b", 1, 4), ("eval:b", 1, 5)),
        *(("eval:a", 0, 1), ("eval:a", 0, 2)),
    ]
    written = [(line["iteration"], line["split"], line["episodes"]) for line in lines(tmp_path)]
    assert written == [(3, "eval:b", 3.0), (3, "eval:a", 2.0)]


def test_too_many_failures_in_a_kept_evaluation_stop_the_run() -> None:
    recording = RunRecording(None, ABOUT)
    recording.keep_evaluated("fine", of_tasks((0, 1)))
    recording.check_evaluated(0.0)
    void = replace(*of_tasks((0, 2)), failure=Failure("tool", "the search is down", 2))
    recording.keep_evaluated("broken", [*of_tasks((0, 1)), void])
    recording.check_evaluated(0.5)
    with pytest.raises(RolloutError, match="1 of 2 episodes of evaluation 'broken' failed.*search"):
        recording.check_evaluated(0.4)


def test_without_a_folder_metrics_are_computed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEM_RECORD_ROWS", "1")
    batch = golden_batch()
    recording = RunRecording(None, ABOUT, NAMES)
    assert recording.folder is None
    kept = recording.keep_batch(batch, rows=lambda: pytest.fail("rows were made"))
    assert kept == episode_metrics(batch)
    assert recording.write_iteration(0, {"actor/loss": 0.5}) == {**kept, "loss": 0.5}
    assert recording.write_evaluation(0, "x", batch) == kept | sampled_metrics(batch)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_a_record_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file"):
        RunRecording(tmp_path / "file", ABOUT)


@pytest.mark.parametrize("name", [METRICS, EPISODES])
def test_a_file_that_cannot_be_written_is_a_record_error(tmp_path: Path, name: str) -> None:
    recording = RunRecording(tmp_path, ABOUT)
    (tmp_path / name).mkdir()
    recording.keep_batch(golden_batch())
    with pytest.raises(RecordError, match=name):
        recording.write_iteration(0)
    with pytest.raises(RecordError, match=name):
        recording.write_evaluation(0, "x", golden_batch())


def iterations(folder: Path, name: str) -> list[tuple[int, str]]:
    return [(line["iteration"], line["split"]) for line in lines(folder, name)]


@pytest.mark.parametrize("evaluates_first", [False, True])
def test_a_resumed_run_sets_aside_what_it_trains_again(
    tmp_path: Path, evaluates_first: bool
) -> None:
    batch = list(golden_batch())

    def run(first: int, evaluates: bool) -> None:
        recording = RunRecording(tmp_path, ABOUT, NAMES)
        for iteration in range(first, 3):
            if evaluates or iteration > first:
                recording.write_evaluation(iteration, "same", batch[:1])
                recording.write_evaluation(iteration, "other", batch[:1])
            recording.keep_batch(batch, ones(batch))
            recording.write_iteration(iteration)

    run(0, True)
    once = iterations(tmp_path, METRICS)
    run(1, evaluates_first)
    assert iterations(tmp_path, METRICS) == once
    episodes = iterations(tmp_path, EPISODES)
    assert len(episodes) == 3 * (len(batch) + 2)
    aside = iterations(tmp_path, "metrics.replaced.jsonl")
    assert aside == once[3 if evaluates_first else 5 :]
    assert len(iterations(tmp_path, "episodes.replaced.jsonl")) == 2 * (len(batch) + 2) - (
        0 if evaluates_first else 2
    )


def test_a_record_that_cannot_be_rewound_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"iteration": 0}\n')
    recording = RunRecording(tmp_path, ABOUT)
    recording.keep_batch(list(golden_batch()))
    with pytest.raises(RecordError, match="cannot rewind"):
        recording.write_iteration(0)
    assert (tmp_path / METRICS).read_text() == '{"iteration": 0}\n'


@pytest.mark.parametrize("again", [0, 1])
def test_an_iteration_is_not_written_twice(tmp_path: Path, again: int) -> None:
    batch = list(golden_batch())
    recording = RunRecording(tmp_path, ABOUT)
    for iteration in range(2):
        recording.keep_batch(batch)
        recording.write_iteration(iteration)
    recording.keep_batch(batch)
    with pytest.raises(RecordError, match=f"iteration {again} is recorded already"):
        recording.write_iteration(again)
    assert len(read_run(tmp_path).metrics) == 2
    recording.write_iteration(2)


def test_a_record_of_which_one_file_is_damaged_stays_as_it_is(tmp_path: Path) -> None:
    batch = list(golden_batch())
    first = RunRecording(tmp_path, ABOUT)
    for iteration in range(2):
        first.keep_batch(batch)
        first.write_iteration(iteration)
    with (tmp_path / EPISODES).open("a") as file:
        file.write("what is no JSON\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = RunRecording(tmp_path, ABOUT)
    again.keep_batch(batch)
    with pytest.raises(RecordError, match=f"{EPISODES}, line {2 * len(batch) + 1} is damaged"):
        again.write_iteration(1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trainer": "other"}, "trainer: 'mine' there, 'other' here"),
        ({"versions": {"mine": "1.1"}}, "versions.mine: '1.0' there, '1.1' here"),
        ({"spec": {"seed": 1}}, "spec.seed: 0 there, 1 here"),
        ({"config": {"lr": 2.0, "log": "b"}}, "config.lr: 1.0 there, 2.0 here"),
    ],
)
def test_a_run_does_not_go_on_with_the_record_of_another(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    about = {**ABOUT, "spec": {"seed": 0}, "config": {"lr": 1.0, "log": "a"}}
    RunRecording(tmp_path, about)
    # Nothing is recorded yet: the record is that of the later start.
    RunRecording(tmp_path, {**about, **changes}, free=["log"])
    assert read_run(tmp_path).meta.items() >= {**about, **changes}.items()
    RunRecording(tmp_path, about, free=["log"])
    (tmp_path / METRICS).write_text('{"iteration": 0, "split": "train", "time_s": 1}\n')
    RunRecording(tmp_path, {**about, "config": {"lr": 1.0, "log": "c"}}, free=["log"])
    with pytest.raises(ConfigurationError, match=re.escape(said)) as error:
        RunRecording(tmp_path, {**about, **changes}, free=["log"])
    assert "config.log" not in str(error.value)
    assert "begin a run in another folder" in str(error.value)


def test_configurations_are_compared_only_where_it_is_known_what_may_differ(tmp_path: Path) -> None:
    RunRecording(tmp_path, {**ABOUT, "config": {"lr": 1.0}})
    (tmp_path / METRICS).write_text('{"iteration": 0, "split": "train", "time_s": 1}\n')
    RunRecording(tmp_path, {**ABOUT, "config": {"lr": 2.0}})


def test_time_counts_on_where_a_run_is_resumed(tmp_path: Path) -> None:
    batch = list(golden_batch())
    (tmp_path / METRICS).write_text(
        "".join(
            json.dumps({"iteration": i, "split": "train", "time_s": 100.0 * (i + 1)}) + "\n"
            for i in range(3)
        )
    )
    recording = RunRecording(tmp_path, ABOUT)
    recording.keep_batch(batch)
    recording.write_iteration(2)
    assert [line["time_s"] // 100 for line in lines(tmp_path, METRICS)] == [1, 2, 2]


def test_whoever_watches_sees_the_metrics_that_there_are() -> None:
    metrics = {"success_rate": 0.5, "kl": 0.1, "loss": -1.23456}
    assert progress(7, "eval:a", metrics) == "    7 eval:a  success_rate 0.5000  loss -1.2346"


@pytest.mark.parametrize(
    ("record", "found"), [("all", 8), ("sample:4", 4), ("sample:20", 8), ("metrics", 0), (None, 8)]
)
def test_a_setting_says_which_episodes_are_recorded(
    tmp_path: Path, record: str | None, found: int
) -> None:
    batch = golden_batch()
    packed = [PackedTrajectory.of(trajectory) for trajectory in batch]
    recording = RunRecording(tmp_path, ABOUT, record=record)
    recording.keep_batch(packed, ones(batch))
    recording.write_iteration(0)
    recording.write_evaluation(1, "same", packed)
    run = read_run(tmp_path)
    kept = [batch[i] for i in Selection(record).of(batch)]
    for split, line in zip(("train", "eval:same"), run.metrics, strict=True):
        episodes = list(run.episodes(split))
        assert [e.trajectory for e in episodes] == kept
        assert len(kept) == found
        assert line["episodes"] + line["failed_episodes"] == 8
        assert line.get("recorded_episodes", 8.0) == found
        assert run.missing(split) == run.missing(split, {line["iteration"]}) == 8 - found
        assert run.missing(split, {7}) == 0
    assert [e.advantages for e in run.episodes("train")] == ones(kept)


def test_rows_are_those_of_the_recorded_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEM_RECORD_ROWS", "1")
    rows = [[replace(ROW, rewards=[float(i), 0.0])] for i in range(8)]
    recording = RunRecording(tmp_path, ABOUT, record="sample:2")
    recording.keep_batch(golden_batch(), rows=lambda: rows)
    recording.write_iteration(0)
    chosen = Selection("sample:2").of(golden_batch())
    assert [e.rows for e in read_run(tmp_path).episodes()] == [rows[i] for i in chosen]


def test_nothing_is_decoded_for_a_record_of_metrics(tmp_path: Path) -> None:
    heads = [PackedTrajectory.of(trajectory).head for trajectory in golden_batch()]
    packed = [PackedTrajectory.from_bytes(head) for head in heads]
    for folder, record in ((None, "all"), (tmp_path, "metrics")):
        recording = RunRecording(folder, ABOUT, record=record)
        recording.keep_batch(packed)
        recording.write_iteration(0)
    assert len(lines(tmp_path)) == 1 and lines(tmp_path, EPISODES) == []


def test_an_episode_that_cannot_be_decoded_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    packed = [PackedTrajectory.of(trajectory) for trajectory in golden_batch()]
    packed[3] = PackedTrajectory.from_bytes(packed[3].head)
    recording = RunRecording(tmp_path, ABOUT)
    with pytest.raises(ConfigurationError, match="only the numbers are there"):
        recording.write_evaluation(0, "same", packed)
    assert lines(tmp_path, EPISODES) == []


def test_updates_are_summarised_by_means() -> None:
    steps = [{"loss": 1.0, "kl": 0.5}, {"loss": 2.0}, {"loss": 6.0, "kl": 0.5}]
    assert update_metrics(steps) == {"loss": 3.0}
    assert update_metrics(steps[:1]) == steps[0]
    assert update_metrics([]) == {}
