"""A record is followed while it is written: half-written, replaced, damaged, or not there yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem.errors import RecordError
from gem_bench.following import Follower, Lines
from gem_train.record import EPISODES, METRICS, RUN, Recorder, read_run

MakeRun = Callable[..., Path]


def texts(lines: Lines) -> list[str]:
    return [line.decode().strip() for _, line in lines.read().lines]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_line_is_read_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x"
    lines = Lines(path)
    assert texts(lines) == []
    append(path, "one\ntw")
    assert texts(lines) == ["one"]
    assert texts(lines) == []
    append(path, "o\n\nthree\n")
    block = lines.read()
    assert block.lines == [("line 2", b"two\n"), ("line 4", b"three\n")]
    assert not block.again


@given(st.lists(st.text("ab\n", max_size=9), max_size=9), st.integers(1, 7))
def test_however_a_file_grows_all_its_lines_are_read_once(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], block: int
) -> None:
    path = tmp_path_factory.mktemp("grow") / "x"
    lines, found = Lines(path, block=block), []
    for part in parts:
        append(path, part)
        while (read := lines.read()).size:
            found += [line.decode().strip() for _, line in read.lines]
    whole = "".join(parts)
    complete = whole[: whole.rfind("\n") + 1]
    assert found == [line for line in complete.split("\n") if line]


@pytest.mark.parametrize("how", ["renamed", "in place"])
def test_a_replaced_file_is_read_from_its_beginning(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x"
    path.write_text("one\ntwo\n")
    lines = Lines(path)
    assert texts(lines) == ["one", "two"]
    if how == "renamed":
        (tmp_path / "new").write_text("one\nTWO\nthree\n")
        (tmp_path / "new").replace(path)
    else:  # the same file as far as its number and size tell
        path.write_text("one\nTWO\nthree\n")
    block = lines.read()
    assert block.again
    assert [line for _, line in block.lines] == [b"one\n", b"TWO\n", b"three\n"]


def test_a_removed_file_is_noticed_once(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("one\n")
    lines = Lines(path)
    lines.read()
    path.unlink()
    assert lines.read().again
    assert not lines.read().again


def test_of_a_large_file_only_the_end_is_read_and_placed_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("".join(f"{i:03}\n" for i in range(100)))
    lines = Lines(path, newest=True, block=10)
    block = lines.read()
    assert block.skipped
    assert block.lines == [("byte 392", b"098\n"), ("byte 396", b"099\n")]
    append(path, "100\n")
    assert lines.read().lines == [("byte 400", b"100\n")]
    append(path, "x" * 30)  # longer than a block, and not complete
    assert lines.read().lines == []
    append(path, "\nend\n")
    assert texts(lines) == ["end"]


def test_following_a_whole_record_gives_what_reading_it_gives(make_run: MakeRun) -> None:
    folder = make_run()
    run = Follower(folder, episodes=1000)
    run.poll_all()
    whole = read_run(folder)
    assert run.record == whole
    assert [each.record for each in run.episodes] == [*whole.episodes()]
    assert run.problems == []
    assert not run.poll()


def test_a_run_that_begins_later_is_followed(tmp_path: Path, make_run: MakeRun) -> None:
    run = Follower(tmp_path / "later", episodes=3)
    run.poll_all()
    assert not run.exists
    make_run().rename(tmp_path / "later")
    assert run.poll()
    assert run.exists
    assert len(run.metrics) == 12
    assert [each.number for each in run.episodes] == [1, 2, 3]


def test_a_resumed_run_replaces_what_it_does_again(make_run: MakeRun) -> None:
    folder = make_run(iterations=6)
    run = Follower(folder, episodes=100)
    run.poll_all()
    recorder = Recorder(folder)
    recorder.rewind(4)
    recorder.metrics(4, {"success_rate": 0.25})
    run.poll_all()
    assert [line["iteration"] for line in run.metrics] == [0, 1, 2, 3, 4]
    assert run.metrics[4]["success_rate"] == 0.25
    assert {each.record.iteration for each in run.episodes} == {0, 1, 2, 3}
    assert run.problems == []


def test_damaged_lines_are_named_and_the_others_are_read(make_run: MakeRun) -> None:
    folder = make_run(iterations=3)
    for name in (METRICS, EPISODES):
        lines = (folder / name).read_text().splitlines(keepends=True)
        lines[1] = "{broken\n"
        (folder / name).write_text("".join(lines))
    run = Follower(folder, episodes=100)
    run.poll_all()
    assert [line["iteration"] for line in run.metrics] == [0, 2]
    assert len(run.episodes) == 23
    assert len(run.problems) == 2
    assert f"{METRICS}, line 2 is damaged" in run.problems[0]
    assert f"{EPISODES}, line 2 is damaged" in run.problems[1]


def test_two_runs_in_one_folder_are_named(make_run: MakeRun) -> None:
    folder = make_run(iterations=2)
    content = (folder / METRICS).read_text()
    append(folder / METRICS, content)
    run = Follower(folder)
    run.poll_all()
    assert len(run.metrics) == 2
    assert "line 3: iteration 0 of train is already in line 1" in run.problems[0]


def test_endless_damage_is_named_in_few_lines(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text("{}\n" * 1000)
    run = Follower(tmp_path)
    run.poll_all()
    assert len(run.problems) == 21
    assert run.problems[-1].endswith("further lines are damaged")


def test_a_damaged_run_file_is_named_until_it_is_whole_again(make_run: MakeRun) -> None:
    folder = make_run()
    run = Follower(folder)
    run.poll_all()
    content = (folder / RUN).read_text()
    (folder / RUN).write_text(content[:40])
    assert run.poll()
    assert RUN in run.problems[0]
    assert run.meta["trainer"] == "reference"
    (folder / RUN).write_text(json.dumps({**json.loads(content), "status": "failed"}))
    assert run.poll()
    assert run.problems == []
    assert run.meta["status"] == "failed"


def test_what_cannot_be_read_at_all_is_an_error_of_the_record(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(RecordError, match="cannot read"):
        Lines(tmp_path / "x").read()
    (tmp_path / METRICS).mkdir()
    run = Follower(tmp_path)
    run.poll_all()
    assert "cannot read" in run.problems[0]
