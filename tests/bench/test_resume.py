"""`gem-bench run --resume`: what it goes on with, what it says, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gem_bench.processes import of_run
from gem_train.record import read_run

Start = Callable[..., subprocess.Popen[str]]
WriteSpec = Callable[..., Path]


@pytest.fixture
def hardware(tmp_path: Path) -> Callable[..., Path]:
    """Writes a hardware file; without a number no checkpoints are saved."""

    def write(every: int | None, **others: str) -> Path:
        path = tmp_path / f"hardware-{every}.toml"
        lines = [] if every is None else [f"checkpoint_every = {every}"]
        path.write_text("\n".join([*lines, *(f'{k} = "{v}"' for k, v in others.items())]))
        return path

    return write


@pytest.fixture
def call(gem_bench: Start) -> Callable[..., tuple[int, str]]:
    """Run gem-bench with the fake trainer; returns exit status and what it said."""

    def start(spec: Path, out: Path, hardware: Path, *options: object) -> tuple[int, str]:
        where = ("--to", "fake", "--out", out, "--hardware", hardware)
        process = gem_bench("run", spec, *where, *options)
        _, err = process.communicate(timeout=120)
        return process.returncode, err

    return start


Call = Callable[..., tuple[int, str]]
WriteHardware = Callable[..., Path]


def iterations(out: Path) -> list[int]:
    return [line["iteration"] for line in read_run(out).metrics]


def change(out: Path, **entries: Any) -> None:
    path = out / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("every", "begins", "said"),
    [
        (2, 2, "goes on from iteration 2; what was recorded of 1 later ones is set aside"),
        (3, 3, "goes on from iteration 3"),
        (5, 0, "begins again at iteration 0: the trainer loaded no checkpoint"),
        (None, 0, "begins again at iteration 0: the trainer loaded no checkpoint"),
    ],
)
def test_a_run_that_died_goes_on_from_its_checkpoint(
    every: int | None,
    begins: int,
    said: str,
    call: Call,
    spec_file: WriteSpec,
    hardware: WriteHardware,
    tmp_path: Path,
) -> None:
    spec, out, given = spec_file("killed"), tmp_path / "out", hardware(every)
    code, err = call(spec, out, given)
    assert code == 1
    assert ("the same command with --resume" in err) == (every is not None)
    started = read_run(out).meta["started"]
    if begins == 0:  # it dies at the same place again
        change(out, spec=dict(read_run(out).meta["spec"], name="fine"))
        spec = spec_file("fine")
    code, err = call(spec, out, given, "--resume")
    assert code == 0, err
    assert said in err
    run = read_run(out)
    assert iterations(out) == list(range(6))
    assert [line["time_s"] for line in run.metrics] == sorted(
        line["time_s"] for line in run.metrics
    )
    assert (run.meta["status"], run.meta["iterations"], run.meta["started"]) == (
        "finished",
        6,
        started,
    )
    assert [each["iteration"] for each in run.meta["resumed"]] == [begins]
    log = (out / "trainer.log").read_text()
    assert log.count("fake trainer starts") == 2
    assert "gem-bench: resumed" in log
    assert (out / "metrics.replaced.jsonl").exists() == (begins < 3)


def test_a_run_that_is_finished_is_left_as_it_is(
    call: Call, spec_file: WriteSpec, hardware: WriteHardware, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert call(spec_file(), out, hardware(2))[0] == 0
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir() if p.name != "lock"}
    code, err = call(spec_file(), out, hardware(2), "--resume")
    assert code == 0
    assert "finished: it was already, after 6 iterations" in err
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir() if p.name != "lock"} == before


def test_a_folder_without_a_run_is_refused(
    call: Call, spec_file: WriteSpec, hardware: WriteHardware, tmp_path: Path
) -> None:
    code, err = call(spec_file(), tmp_path / "out", hardware(2), "--resume")
    assert code == 2
    assert "out holds no run of gem-bench (run.json is not there)" in err
    code, err = call(spec_file(), tmp_path / "out", hardware(2), "--resume", "--overwrite")
    assert code == 2
    assert "not allowed with argument" in err


def test_a_run_of_the_trainers_own_command_is_not_gem_benchs(
    call: Call, spec_file: WriteSpec, hardware: WriteHardware, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('{"trainer": "fake", "versions": {}}')
    code, err = call(spec_file(), tmp_path / "out", hardware(2), "--resume")
    assert code == 2
    assert "was not begun by gem-bench; start the trainer's own command again" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_run_whose_disk_was_full_goes_on_when_there_is_room(
    call: Call, spec_file: WriteSpec, hardware: WriteHardware, tmp_path: Path
) -> None:
    spec, out = spec_file("disk-full"), tmp_path / "out"
    code, err = call(spec, out, hardware(2))
    assert code == 1
    assert f"cannot write {out / 'run.json'}" in err
    assert "the same command with --resume goes on from its last checkpoint" in err
    code, err = call(spec, out, hardware(2), "--resume")
    assert code == 2
    assert f"cannot write {out / 'run.json'}" in err
    assert iterations(out) == [0, 1, 2]
    (out / "run.partial").unlink()
    code, err = call(spec, out, hardware(2), "--resume")
    assert code == 0, err
    assert iterations(out) == list(range(6))


def test_another_run_than_the_one_in_the_folder_is_refused_with_its_keys(
    call: Call, spec_file: WriteSpec, hardware: WriteHardware, tmp_path: Path
) -> None:
    spec, out = spec_file("killed"), tmp_path / "out"
    assert call(spec, out, hardware(2))[0] == 1
    lines = len(read_run(out).metrics)
    changed = ("--set", "optimizer.lr=0.5", "--set", "algorithm.gamma=1.0")
    code, err = call(spec, out, hardware(3), "--resume", *changed)
    assert code == 2
    assert "spec.optimizer.lr: 0.001 there, 0.5 here" in err
    assert "spec.algorithm.gamma: 0.9 there, 1.0 here" in err
    assert "hardware.checkpoint_every: 2 there, 3 here" in err
    assert "spec.seed" not in err
    assert len(read_run(out).metrics) == lines
    change(out, trainer="verl")
    code, err = call(spec, out, hardware(2), "--resume")
    assert code == 2
    assert "trainer: 'verl' there, 'fake' here" in err


def test_another_version_of_the_trainer_is_refused_and_another_logger_is_not(
    call: Call, spec_file: WriteSpec, hardware: WriteHardware, fake_site: Path, tmp_path: Path
) -> None:
    spec, out = spec_file("killed"), tmp_path / "out"
    assert call(spec, out, hardware(2))[0] == 1
    info = fake_site / "gem_fake-1.2.dist-info" / "METADATA"
    old = info.read_text()
    info.write_text(old.replace("Version: 1.2", "Version: 1.3"))
    code, err = call(spec, out, hardware(2), "--resume")
    assert code == 2
    assert "versions.gem-fake: '1.2' there, '1.3' here" in err
    info.write_text(old)
    code, err = call(spec, out, hardware(2, logger="wandb"), "--resume")
    assert code == 0, err


def test_the_trainer_itself_counts_as_what_the_adapter_needs_in_certain_versions(
    call: Call, spec_file: WriteSpec, hardware: WriteHardware, fake_site: Path, tmp_path: Path
) -> None:
    info = fake_site / "gem_fake-1.2.dist-info" / "METADATA"
    info.write_text(
        info.read_text()
        + "Requires-Dist: fake-trainer<2,>=1; python_version < '9'\n"
        + "Requires-Dist: fake-tool\n"
    )
    for name in ("trainer", "tool"):
        folder = fake_site / f"fake_{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: fake-{name}\nVersion: 1.0\n"
        )
    spec, out = spec_file("killed"), tmp_path / "out"
    assert call(spec, out, hardware(2))[0] == 1
    versions = read_run(out).meta["versions"]
    assert (versions["fake-trainer"], versions.get("fake-tool")) == ("1.0", None)
    shutil.rmtree(fake_site / "fake_trainer-1.0.dist-info")
    code, err = call(spec, out, hardware(2), "--resume")
    assert code == 2
    assert "versions.fake-trainer: '1.0' there, nothing here" in err


def test_processes_of_a_killed_gem_bench_are_named_and_in_the_way_until_they_end(
    gem_bench: Start, call: Call, spec_file: WriteSpec, hardware: WriteHardware, tmp_path: Path
) -> None:
    spec, out, given = spec_file("hang"), tmp_path / "out", hardware(2)
    process = gem_bench("run", spec, "--to", "fake", "--out", out, "--hardware", given)
    deadline = time.monotonic() + 60
    while not (out / "hanging").exists() or not (out / "hanging").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=60)
    pid = int((out / "hanging").read_text())
    assert of_run(read_run(out).meta["run_id"]) == [pid]
    for option in ("--resume", "--overwrite"):
        code, err = call(spec, out, given, option)
        assert code == 2
        assert f"are still alive: {pid} (python" in err
        assert f"kill -9 {pid}" in err
    assert iterations(out) == [0, 1, 2]
    os.kill(pid, signal.SIGKILL)
    while of_run(read_run(out).meta["run_id"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    code, err = call(spec, out, given, "--resume")
    assert code == 0, err
    assert iterations(out) == list(range(6))


def test_a_run_that_is_begun_anew_keeps_nothing_that_was_set_aside(
    call: Call, spec_file: WriteSpec, hardware: WriteHardware, tmp_path: Path
) -> None:
    spec, out = spec_file("killed"), tmp_path / "out"
    assert call(spec, out, hardware(2))[0] == 1
    assert call(spec, out, hardware(2), "--resume")[0] == 0
    assert (out / "metrics.replaced.jsonl").exists()
    assert call(spec_file(), out, hardware(2), "--overwrite")[0] == 0
    assert not (out / "metrics.replaced.jsonl").exists()
    assert "resumed" not in read_run(out).meta


@pytest.mark.skipif(not Path("/proc").exists(), reason="only /proc tells")
def test_no_process_has_the_marker_of_no_run() -> None:
    assert of_run("none") == []
