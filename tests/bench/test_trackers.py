"""Experiment trackers get a run's record: each point once, however often the sender is killed.

The trackers are the real ones; those that are not installed here are tried in the environment
`trackers` (`make test-trackers`).
"""

from __future__ import annotations

import collections
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import (
    ConfigurationError,
    GemError,
    MissingExtraError,
    RecordError,
    UnreachableError,
)
from gem_bench import trackers
from gem_bench.__main__ import main
from gem_bench.trackers import NAMES, About, Point, follow
from gem_bench.trackers.follow import FOLDER, SENT, Logged, log
from gem_bench.trackers.to_trackio import TrackioRun
from gem_train.folders import alone
from gem_train.record import METRICS, RUN, Recorder

MakeRun = Callable[..., Path]
GemBench = Callable[..., "subprocess.Popen[str]"]
Points = dict[tuple[str, int], list[float]]
"""Values by name and step; more than one is a doubled point."""


def tensorboard_runs(folder: Path, home: Path) -> list[Points]:
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={SCALARS: 0})
    found.Reload()
    points: Points = collections.defaultdict(list)
    for tag in found.Tags()[SCALARS]:
        for each in found.Scalars(tag):
            points[tag, each.step].append(each.value)
    return [points]


def trackio_runs(folder: Path, home: Path) -> list[Points]:
    runs: dict[str, Points] = {}
    with sqlite3.connect(home / "trackio" / "gem.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id")
        for run, step, metrics in rows:
            points = runs.setdefault(run, collections.defaultdict(list))
            for name, value in json.loads(metrics).items():
                points[name, step].append(value)
    return list(runs.values())


def wandb_runs(folder: Path, home: Path) -> list[Points]:
    from wandb.proto import wandb_internal_pb2

    runs: dict[str, Points] = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        points = runs.setdefault(path.stem, collections.defaultdict(list))
        for data in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                if not name.startswith("_"):
                    points[name, record.history.step.num].append(json.loads(item.value_json))
    return list(runs.values())


def wandb_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of an offline run: LevelDB's format of logs after a header of 7 bytes.

    A block has 32,768 bytes; a piece has a checksum of 4 bytes, a length of 2 and a type: whole,
    first, middle or last.
    """
    whole, first, _, last = range(1, 5)
    at, parts = 7, b""
    while at + 7 <= len(content):
        if 32_768 - at % 32_768 < 7:  # a header does not fit: the rest of the block is empty
            at += 32_768 - at % 32_768
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        piece = content[at + 7 : at + 7 + length]
        at += 7 + length
        parts = piece if kind in (whole, first) else parts + piece
        if kind in (whole, last):
            yield parts


def mlflow_runs(folder: Path, home: Path) -> list[Points]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    number = client.get_experiment_by_name("gem").experiment_id
    runs = []
    for run in reversed(client.search_runs([number])):
        points: Points = collections.defaultdict(list)
        for name in run.data.metrics:
            for each in client.get_metric_history(run.info.run_id, name):
                points[name, each.step].append(each.value)
        runs.append(points)
    return runs


READERS: dict[str, Callable[[Path, Path], list[Points]]] = {
    "tensorboard": tensorboard_runs,
    "trackio": trackio_runs,
    "wandb": wandb_runs,
    "mlflow": mlflow_runs,
}


@pytest.fixture(params=NAMES)
def tracker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> str:
    """A tracker that is installed, with a home of its own."""
    name: str = request.param
    if trackers.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; make test-trackers has it")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return name


def send(folder: Path, tracker: str) -> None:
    """Send what is recorded, in a process of its own as a user does."""
    command = [sys.executable, "-m", "gem_bench", "log", str(folder), "--to", tracker, "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def expected(folder: Path) -> Points:
    """What a tracker must have of a record, computed from its file alone."""
    points: Points = {}
    for text in (folder / METRICS).read_text().splitlines():
        line = json.loads(text)
        iteration, split = line.pop("iteration"), line.pop("split").replace("eval:", "eval/")
        del line["time_s"]
        for name, value in line.items():
            if value is not None:
                points[f"{split}/{name}", iteration] = [value]
    return points


def same(found: Points, wanted: Points) -> None:
    assert {key: len(values) for key, values in found.items()} == dict.fromkeys(wanted, 1)
    for key, values in wanted.items():
        assert found[key] == pytest.approx(values, rel=1e-6), key


def test_a_tracker_has_the_record_and_each_point_once(
    tracker: str, make_run: MakeRun, tmp_path: Path
) -> None:
    folder = make_run(iterations=4)
    recorder = Recorder(folder)
    recorder.metrics(4, {"success_rate": 0.75, "loss": float("nan")}, split="eval:held-out")
    send(folder, tracker)
    send(folder, tracker)
    recorder.metrics(4, {"success_rate": 0.5})
    send(folder, tracker)
    [points] = READERS[tracker](folder, tmp_path)
    same(points, expected(folder))
    assert points["eval/held-out/success_rate", 4] == [0.75]
    assert ("eval/held-out/loss", 4) not in points


def test_a_record_keeps_the_name_that_it_was_sent_under(
    tracker: str, make_run: MakeRun, capsys: Any
) -> None:
    words = ["log", str(make_run(iterations=2)), "--to", tracker, "--once"]
    for again in ([], ["--name", "mine"], ["--name", "other"]):
        status = main([*words, *(again or ["--name", "mine"])])
        assert status == (2 if "other" in again else 0)
    assert f"--name other: {tracker} has this record as 'mine'" in capsys.readouterr().err
    assert main(words) == 0


def test_a_batch_that_was_cut_off_is_not_doubled(
    tracker: str, make_run: MakeRun, tmp_path: Path
) -> None:
    folder = make_run(iterations=3)
    send(folder, tracker)
    path = folder / FOLDER / tracker / SENT
    sent = json.loads(path.read_text())
    assert (sent["sent"], sent["sending"]) == (3, 3)
    # As if the process had been killed before it could write down that the batch was sent.
    path.write_text(json.dumps({**sent, "sent": 1}))
    Recorder(folder).metrics(3, {"success_rate": 0.5})
    send(folder, tracker)
    [points] = READERS[tracker](folder, tmp_path)
    same(points, expected(folder))


def test_a_batch_that_never_arrived_is_sent_where_the_tracker_can_say(
    tracker: str, make_run: MakeRun, tmp_path: Path, capsys: Any
) -> None:
    folder = make_run(iterations=3)
    content = (folder / METRICS).read_text()
    (folder / METRICS).write_text("".join(content.splitlines(keepends=True)[:1]))
    send(folder, tracker)
    (folder / METRICS).write_text(content)
    path = folder / FOLDER / tracker / SENT
    digest = follow._digest([json.loads(line) for line in content.splitlines()])
    path.write_text(json.dumps({**json.loads(path.read_text()), "sending": 3, "digest": digest}))
    assert main(["log", str(folder), "--to", tracker, "--once"]) == 0
    [points] = READERS[tracker](folder, tmp_path)
    if tracker in ("tensorboard", "mlflow"):
        same(points, expected(folder))
    else:
        assert {step for _, step in points} == {0}
        assert "iterations 1, 2; they may be missing" in capsys.readouterr().err


def test_iterations_that_a_resumed_run_does_again_are_a_new_run(
    tracker: str, make_run: MakeRun, tmp_path: Path
) -> None:
    folder = make_run(iterations=4)
    send(folder, tracker)
    first = expected(folder)
    recorder = Recorder(folder)
    recorder.rewind(2)
    recorder.metrics(2, {"success_rate": 0.125})
    send(folder, tracker)
    runs = READERS[tracker](folder, tmp_path)
    same(runs[-1], expected(folder))
    if tracker != "tensorboard":  # whose files are replaced
        assert len(runs) == 2
        same(runs[0], first)


def test_tensorboard_has_the_runspec_as_hyperparameters(make_run: MakeRun) -> None:
    pytest.importorskip("tensorboard", reason="reads its files")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    folder = make_run()
    log(folder, "tensorboard", once=True)
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    tag = metadata.SESSION_START_INFO_TAG
    content = found.SummaryMetadata(tag).plugin_data.content
    values = metadata.parse_session_start_info_plugin_data(content).hparams
    assert values["algorithm.gamma"].number_value == 0.9
    assert values["env.id"].string_value == "game:GuessTheNumber-v0-easy"


def test_files_of_other_programs_stay_in_the_folder(make_run: MakeRun) -> None:
    pytest.importorskip("tensorboard", reason="writes files")
    folder = make_run()
    other = folder / "tensorboard" / "events.out.tfevents.1.machine.2.0"
    other.parent.mkdir()
    other.write_bytes(b"")
    log(folder, "tensorboard", once=True)
    assert other.exists()


class Double:
    """A tracker in memory that cannot say what it has, and fails when told to."""

    def __init__(self, about: About, earlier: str | None) -> None:
        self.about, self.id, self.place = about, earlier or "id", "memory"
        self.points: list[Point] = []
        self.closed: list[str] = []

    def write(self, points: Sequence[Point]) -> None:
        self.points += points

    def missing(self, point: Point) -> Point | None:
        return None

    def close(self, status: str) -> None:
        self.closed.append(status)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> list[Double]:
    """Takes the place of each tracker; the runs that were opened."""
    opened: list[Double] = []

    def open_run(about: About, earlier: str | None) -> Double:
        opened.append(Double(about, earlier))
        return opened[-1]

    monkeypatch.setattr(follow, "opener", lambda name: open_run)
    return opened


def status(folder: Path, text: str) -> None:
    """Set the status of a run."""
    meta = json.loads((folder / RUN).read_text())
    (folder / RUN).write_text(json.dumps({**meta, "status": text}))


def test_a_run_is_followed_from_before_its_begin_to_its_end(
    double: list[Double], make_run: MakeRun, tmp_path: Path
) -> None:
    folder, written = tmp_path / "later", make_run(iterations=2)
    status(written, "running")
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: shutil.copytree(written, folder, dirs_exist_ok=True),
        lambda: Recorder(folder).metrics(2, {"loss": 1.0}),
        lambda: status(folder, "failed"),
    ]
    found = log(folder, "wandb", sleep=lambda _: steps.pop(0)())
    assert found == Logged(3, "memory", "failed")
    assert steps == []
    [run] = double
    assert [point.step for point in run.points] == [0, 1, 2]
    assert run.closed == ["failed"]
    assert run.about.name == "later"
    assert run.about.group == "small"
    assert run.about.config["algorithm.gamma"] == 0.9


def test_a_failing_tracker_is_named_and_the_next_call_goes_on(
    double: list[Double], make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(iterations=2)
    log(folder, "wandb", once=True)
    Recorder(folder).metrics(2, {"loss": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(Double, "write", lambda self, points: 1 / 0)
        with pytest.raises(
            UnreachableError, match="wandb failed: ZeroDivisionError.*--to wandb --project gem`"
        ):
            log(folder, "wandb", once=True)
    said: list[str] = []
    log(folder, "wandb", once=True, say=said.append)
    assert double[-1].points == []
    assert "killed while it sent the iterations 2" in said[0]


def test_another_project_gets_a_run_with_the_whole_record(
    double: list[Double], make_run: MakeRun
) -> None:
    folder = make_run(iterations=3)
    said: list[str] = []
    for project in ("a", "b", "b"):
        log(folder, "wandb", project=project, once=True, say=said.append)
    assert [run.about.project for run in double] == ["a", "b", "b"]
    assert [[point.step for point in run.points] for run in double] == [[0, 1, 2], [0, 1, 2], []]
    second = f"{folder.name}-2"
    assert [run.about.name for run in double] == [folder.name, second, second]
    assert said == ["wandb: the record was sent to the project 'a'; a new run of 'b' has all of it"]


def test_two_processes_cannot_send_the_same_record(double: list[Double], make_run: MakeRun) -> None:
    folder = make_run()
    with alone(folder / FOLDER / "wandb"), pytest.raises(ConfigurationError, match="already"):
        log(folder, "wandb", once=True)


def test_a_damaged_note_of_what_was_sent_is_named(double: list[Double], make_run: MakeRun) -> None:
    folder = make_run()
    log(folder, "wandb", once=True)
    (folder / FOLDER / "wandb" / SENT).write_text('{"sent": "many"}')
    with pytest.raises(RecordError, match=SENT):
        log(folder, "wandb", once=True)


def test_what_is_damaged_in_the_record_is_said(double: list[Double], make_run: MakeRun) -> None:
    folder = make_run(iterations=2)
    with (folder / METRICS).open("a") as file:
        file.write("{broken\n")
    said: list[str] = []
    assert log(folder, "wandb", once=True, say=said.append) == Logged(2, "memory", "finished")
    assert f"{METRICS}, line 3 is damaged" in said[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_that_is_not_installed_is_named_before_anything_starts(
    name: str, monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'gem-bench\[{name}\]'"):
        trackers.require(name)
    assert main(["log", str(tmp_path / "run"), "--to", name]) == 2
    arguments = ["run", "x.toml", "--to", "reference", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--log", name]) == 2
    assert f"{name} is not installed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(GemError, match="known: tensorboard"):
        trackers.opener("neptune")


def test_run_sends_what_it_records(gem_bench: GemBench, spec_file: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="is the tracker")
    arguments = ["--to", "fake", "--cpu", "--out", "run", "--log", "tensorboard"]
    done = gem_bench("run", spec_file("fine"), *arguments)
    _, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    assert "tensorboard: run/tensorboard: 6 points sent" in err
    [points] = tensorboard_runs(tmp_path / "run", tmp_path)
    same(points, expected(tmp_path / "run"))


def test_an_interrupted_run_is_sent_to_its_end(
    gem_bench: GemBench, spec_file: Any, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="is the tracker")
    arguments = ["--to", "fake", "--cpu", "--out", "run", "--log", "tensorboard"]
    done = gem_bench("run", spec_file("hang"), *arguments)
    until = time.monotonic() + 120
    while not (tmp_path / "run" / "hanging").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    done.send_signal(signal.SIGINT)
    _, err = done.communicate(timeout=300)
    assert done.returncode == 130, err
    assert "3 points sent" in err
    [points] = tensorboard_runs(tmp_path / "run", tmp_path)
    same(points, expected(tmp_path / "run"))


def test_a_broken_tracker_does_not_break_the_run(
    gem_bench: GemBench, spec_file: Any, fake_site: Path
) -> None:
    (fake_site / "trackio.py").write_text("def init(**_):\n    raise OSError('no network')\n")
    arguments = ["--to", "fake", "--cpu", "--out", "run", "--log", "trackio"]
    done = gem_bench("run", spec_file("fine"), *arguments)
    _, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    assert "trackio failed: OSError: no network" in err
    assert "fake: finished" in err


def test_a_run_that_trackio_could_not_open_is_opened_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: dict[str, list[Any]] = {}
    network = iter([False, True])

    def init(*, name: str, resume: str, **_: Any) -> Any:
        if not next(network):
            raise OSError("no network")
        if resume == "must" and name not in runs:  # as trackio does
            raise ValueError(f"Run {name!r} does not exist")
        kept = runs.setdefault(name, [])
        return SimpleNamespace(log=lambda values, step: kept.append(step), finish=lambda: None)

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    about = About(tmp_path, "gem", "run", None, {})
    first = TrackioRun(about, None)
    with pytest.raises(OSError, match="no network"):
        first.write([Point(0, {"train/loss": 0.5}, 1.0)])
    TrackioRun(about, first.id).write([Point(1, {"train/loss": 0.25}, 2.0)])
    assert runs == {first.id: [1]}


def test_the_sender_ends_when_its_parent_is_gone(gem_bench: GemBench, make_run: MakeRun) -> None:
    pytest.importorskip("tensorboard", reason="is the tracker")
    folder = make_run(iterations=2)
    status(folder, "running")
    arguments = ["--to", "tensorboard", "--until-eof", "--interval", "0.1"]
    sender = gem_bench("log", folder, *arguments, stdin=subprocess.PIPE)
    _, err = sender.communicate(timeout=120)
    assert sender.returncode == 0, err
    assert "2 points sent" in err
