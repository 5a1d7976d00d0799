"""`gem-bench watch` follows the records of runs, and ends when they have ended."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gem_bench.__main__ import main
from gem_bench.following import Follower
from gem_bench.state import State
from gem_bench.watch import bars, watch
from gem_train.record import METRICS, RUN, Recorder

MakeRun = Callable[..., Path]
GemBench = Callable[..., "subprocess.Popen[str]"]


def edit(folder: Path, **changes: Any) -> None:
    """Change entries of a `run.json`."""
    meta = json.loads((folder / RUN).read_text())
    (folder / RUN).write_text(json.dumps({**meta, **changes}))


def test_once_shows_a_line_for_each_run(make_run: MakeRun, capsys: Any, tmp_path: Path) -> None:
    done, going = make_run(), make_run("verl", iterations=4)
    edit(going, status="running")
    assert main(["watch", str(done), str(going), str(tmp_path / "later"), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("reference-rebn-0  finished  iteration 12/6  success 0.")
    assert "verl-rebn-0  running  iteration 4/6" in lines[1]
    assert lines[2] == "later  waiting"


def test_the_numbers_are_those_of_the_record(make_run: MakeRun) -> None:
    folder = make_run(iterations=20)
    run = Follower(folder)
    run.poll_all()
    state = State.of(run)
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    assert state.iterations == 20
    assert state.success == pytest.approx(sum(x["success_rate"] for x in lines[10:]) / 10)
    assert state.tokens == sum(x["sampled_tokens"] for x in lines)
    assert state.episodes == 160
    assert state.recent == [x["success_rate"] for x in lines]


def test_a_run_of_a_trainers_own_launcher_ends_with_its_last_iteration(make_run: MakeRun) -> None:
    folder = make_run(iterations=5)
    meta = json.loads((folder / RUN).read_text())
    del meta["status"]
    (folder / RUN).write_text(json.dumps(meta))
    run = Follower(folder)
    run.poll_all()
    assert State.of(run).status == "running"
    Recorder(folder).metrics(5, {"success_rate": 1.0})
    run.poll_all()
    assert State.of(run).status == "finished"


def test_silence_of_a_run_that_goes_on_is_told(make_run: MakeRun) -> None:
    folder = make_run()
    edit(folder, status="running")
    run = Follower(folder)
    run.poll_all()
    assert run.written is not None
    assert "nothing was written for 5:00" in State.of(run, run.written + 300).line()
    assert "nothing was written" not in State.of(run, run.written + 30).line()


def test_lines_are_written_for_changes_until_the_runs_end(make_run: MakeRun) -> None:
    folder = make_run(iterations=2)
    edit(folder, status="running")
    recorder = Recorder(folder)
    steps = [
        lambda: None,
        lambda: recorder.metrics(2, {"success_rate": 1.0}),
        lambda: edit(folder, status="failed"),
    ]
    out, err = io.StringIO(), io.StringIO()
    states = watch([folder], out, err, sleep=lambda _: steps.pop(0)())
    assert [line.split("  ")[1:3] for line in out.getvalue().splitlines()] == [
        ["running", "iteration 2/6"],
        ["running", "iteration 3/6"],
        ["failed", "iteration 3/6"],
    ]
    assert states[0].status == "failed"
    assert steps == []


@pytest.mark.parametrize(
    ("statuses", "code"),
    [(["finished"], 0), (["failed"], 1), (["timeout"], 124), (["finished", "interrupted"], 1)],
)
def test_the_exit_status_tells_how_the_runs_ended(
    make_run: MakeRun, statuses: list[str], code: int, capsys: Any
) -> None:
    folders = [make_run(seed=i) for i, _ in enumerate(statuses)]
    for folder, status in zip(folders, statuses, strict=True):
        edit(folder, status=status)
    assert main(["watch", *map(str, folders)]) == code
    shown = capsys.readouterr().out
    assert all(f"  {status}  " in shown for status in statuses)


def test_damage_is_named_once_on_standard_error(make_run: MakeRun, capsys: Any) -> None:
    folder = make_run()
    with (folder / METRICS).open("a") as file:
        file.write("{broken\n")
    assert main(["watch", str(folder)]) == 0
    assert capsys.readouterr().err.count(f"{METRICS}, line 13 is damaged") == 1


def test_json_has_an_object_a_line(make_run: MakeRun, capsys: Any) -> None:
    assert main(["watch", str(make_run()), "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert (state["status"], state["iterations"], state["failed"]) == ("finished", 12, {})


def test_a_run_that_is_started_later_is_watched_to_its_end(
    gem_bench: GemBench, spec_file: Any
) -> None:
    watching = gem_bench("watch", "run", "--interval", "0.05")
    assert watching.stdout is not None
    assert watching.stdout.readline() == "run  waiting\n"
    started = gem_bench("run", spec_file("fine"), "--to", "fake", "--cpu", "--out", "run")
    _, err = started.communicate(timeout=120)
    assert started.returncode == 0, err
    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, err
    last = out.splitlines()[-1]
    assert last.startswith("run  finished  iteration 6/6  success 0.250  return 0.500  turns 3.0")


def test_a_terminal_gets_a_view_that_no_reply_can_steer(make_run: MakeRun) -> None:
    pytest.importorskip("rich", reason="draws the view")
    folder = make_run(iterations=2)
    lines = (folder / "episodes.jsonl").read_text().splitlines()
    episode = json.loads(lines[-1])
    episode["trajectory"]["turns"][-1]["text"] = "\x1b]0;owned\x07 hello"
    (folder / "episodes.jsonl").write_text("\n".join([*lines[:-1], json.dumps(episode), ""]))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gem_bench", "watch", str(folder)]
    env = {**os.environ, "COLUMNS": "140", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            block = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        seen += block
    assert process.wait(timeout=10) == 0, seen
    text = seen.decode()
    assert "reference-rebn-0" in text
    assert "last episodes" in text
    assert "?]0;owned? hello" in text
    assert "\x1b]0;" not in text


def test_rates_are_drawn_as_bars() -> None:
    assert bars([0.0, 0.5, 1.0, None, 7.0]) == "▁▅█ █"
