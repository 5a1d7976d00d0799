"""The record of a run on disk."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from full_disk import full_disk

from gem.errors import RecordError
from gem_train.record import (
    EPISODES,
    METRICS,
    RUN,
    SCHEMA,
    Recorder,
    TrainedRow,
    read_episodes,
    read_run,
)
from gem_train.table import Status
from gem_train.testing.golden import golden_batch


def test_a_record_reads_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a" / "run")
    parity = [{"name": "x", "status": each, "how": "y"} for each in get_args(Status)]
    recorder.start({"name": "x", "parity": parity})
    batch = golden_batch()
    advantages = [[0.5] * len(t.turns) for t in batch]
    recorder.metrics(0, {"success_rate": 0.25, "loss": math.nan})
    row = TrainedRow([3, 4], [5, 6], [1, 0], [0.5, 0.0], [1.0, 0.0])
    recorder.episodes(0, batch, advantages, rows=[[row]] * len(batch))
    recorder.metrics(1, {"success_rate": 0.5}, split="eval:easy")
    recorder.episodes(1, batch[:1], split="eval:easy", notes=[{"sample": 2}])
    run = read_run(tmp_path / "a" / "run")
    assert run.meta == {"name": "x", "parity": parity}
    assert [(m["iteration"], m["split"], m["success_rate"]) for m in run.metrics] == [
        (0, "train", 0.25),
        (1, "eval:easy", 0.5),
    ]
    assert run.metrics[0]["loss"] is None
    assert run.metrics[1]["time_s"] >= run.metrics[0]["time_s"] >= 0
    episodes = list(run.episodes())
    assert [e.trajectory for e in episodes] == [*batch, batch[0]]
    assert episodes[0].advantages == [0.5, 0.5, 0.5]
    assert episodes[0].rows == [row]
    assert episodes[-1].advantages is episodes[-1].rows is None
    assert [e.notes for e in episodes] == [{}] * len(batch) + [{"sample": 2}]


def test_a_line_cut_off_by_a_crash_loses_only_itself(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.metrics(0, {"success_rate": 0.25})
    whole = (tmp_path / METRICS).read_bytes()
    (tmp_path / METRICS).write_bytes(whole + whole[: len(whole) // 2])
    assert len(read_run(tmp_path).metrics) == 1
    Recorder(tmp_path).metrics(1, {"success_rate": 0.5})
    assert [m["iteration"] for m in read_run(tmp_path).metrics] == [0, 1]


def test_a_damaged_line_elsewhere_is_named(tmp_path: Path) -> None:
    Recorder(tmp_path).metrics(0, {})
    path = tmp_path / METRICS
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(RecordError, match=r"metrics.jsonl, line 1"):
        read_run(tmp_path)


def test_a_full_disk_keeps_what_was_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    batch = golden_batch()
    recorder.episodes(0, batch)
    size = (tmp_path / EPISODES).stat().st_size
    with (
        full_disk(tmp_path / EPISODES, 100),
        pytest.raises(RecordError, match="what was recorded before is intact"),
    ):
        recorder.episodes(1, batch)
    assert (tmp_path / EPISODES).stat().st_size == size
    (tmp_path / "run.json").write_text("{}")
    assert len(list(read_run(tmp_path).episodes())) == len(batch)


@pytest.mark.parametrize("room", [0, 20])
def test_a_short_line_that_a_full_disk_cuts_off_leaves_nothing(tmp_path: Path, room: int) -> None:
    recorder = Recorder(tmp_path)
    recorder.metrics(0, {"success_rate": 0.25})
    path = tmp_path / METRICS
    size = path.stat().st_size
    with full_disk(path, room), pytest.raises(RecordError, match="before is intact"):
        recorder.metrics(1, {"success_rate": 0.5})
    assert path.stat().st_size == size
    recorder.metrics(1, {"success_rate": 0.5})
    assert [m["iteration"] for m in read_run(tmp_path).metrics] == [0, 1]


def test_a_record_says_its_schema_and_one_without_is_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.start({"name": "x"})
    recorder.episodes(0, golden_batch())
    run, episodes = tmp_path / RUN, tmp_path / EPISODES
    assert json.loads(run.read_text())["schema"] == SCHEMA
    assert {json.loads(line)["schema"] for line in episodes.open()} == {SCHEMA}
    for path in (run, episodes):
        path.write_text(re.sub(r'"schema": ?1,', "", path.read_text()))
    assert "schema" not in run.read_text() + episodes.read_text()
    record = read_run(tmp_path)
    assert record.meta == {"name": "x"}
    assert [e.trajectory for e in record.episodes()] == golden_batch()


@pytest.mark.parametrize(
    ("schema", "message"),
    [(SCHEMA + 1, f"has schema {SCHEMA + 1}, .* reads up to {SCHEMA}"), ("x", "from 0, got 'x'")],
)
def test_a_record_of_a_newer_schema_is_refused(tmp_path: Path, schema: Any, message: str) -> None:
    recorder = Recorder(tmp_path)
    recorder.start({"schema": schema})
    recorder.episodes(0, golden_batch())
    with pytest.raises(RecordError, match=f"run.json: .*{message}"):
        read_run(tmp_path)
    path = tmp_path / EPISODES
    first, *rest = path.read_text().splitlines(keepends=True)
    second = json.dumps({**json.loads(rest[0]), "schema": schema, "turns": "of the future"})
    path.write_text(first + second + "\n")
    with pytest.raises(RecordError, match=f"line 2: .*{message}"):
        list(read_episodes(path))


@pytest.mark.parametrize("line", ["[1]", "3", '"text"', "null"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    first = '{"iteration": 0, "split": "train", "time_s": 1.0}'
    (tmp_path / METRICS).write_text(f"{first}\n\n{line}\n")
    with pytest.raises(RecordError, match=r"metrics.jsonl, line 3 is damaged: .* an object"):
        read_run(tmp_path)


def test_an_episode_that_lacks_a_field_is_named_with_it(tmp_path: Path) -> None:
    (tmp_path / EPISODES).write_text("{}\n")
    with pytest.raises(RecordError, match="line 1 is damaged: [a-z]+ is missing"):
        list(read_episodes(tmp_path / EPISODES))


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file"):
        Recorder(tmp_path / "file")
    with pytest.raises(RecordError, match="holds no run"):
        read_run(tmp_path)
