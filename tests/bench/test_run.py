"""Running a trainer: how a run ends, what it leaves behind, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gem_bench.__main__ import main
from gem_bench.learning import nothing_learnt
from gem_bench.processes import Family, _processes, _processes_by_ps
from gem_bench.run import _exit, signals_collected
from gem_train.experiment.runspec import RunSpec
from gem_train.preflight import check, environments
from gem_train.record import Recorder, read_run

Start = Callable[..., subprocess.Popen[str]]
WriteSpec = Callable[..., Path]


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def wait_for(path: Path) -> None:
    """Wait until a file is there and has something in it: it appears before it is written."""
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"nothing was written to {path}"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    return any(process.pid == pid for process in _processes())


def command_lines() -> list[str]:
    answer = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True)
    return answer.stdout.splitlines()


def meta(out: Path) -> dict[str, Any]:
    return dict(read_run(out).meta)


def test_a_run_leaves_a_record_that_says_what_was_run(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _, err = finish(gem_bench("run", spec_file(), "--to", "fake", "--out", out, "--seed", 7))
    assert code == 0, err
    run = meta(out)
    assert run["status"] == "finished"
    assert run["iterations"] == 6
    assert run["spec"]["seed"] == 7
    assert run["model"] == "some/model"
    assert run["versions"]["gem-fake"] == "1.2"
    assert {"name": "seed", "status": "unmatched", "how": "fake has no seed"} in run["parity"]
    assert run["machine"]["cores"] == os.cpu_count()
    assert {"model", "compile", "check", "start_up", "command", "total"} == set(run["seconds"])
    assert [line["iteration"] for line in read_run(out).metrics] == list(range(6))
    assert (out / "conf" / "fake.yaml").read_text() == "lr: 1\n"


def test_the_launcher_gets_the_environment_that_the_adapter_asked_for(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    finish(gem_bench("run", spec_file(), "--to", "fake", "--out", tmp_path / "out"))
    assert "fake trainer starts a b False" in (tmp_path / "out" / "trainer.log").read_text()


def test_what_is_recorded_of_the_episodes_is_told_to_the_trainer(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    finish(gem_bench("run", spec_file(), "--to", "fake", "--out", out, "--record", "sample:8"))
    assert meta(out)["environment"]["GEM_RECORD"] == "sample:8"
    code, _, err = finish(
        gem_bench("run", spec_file(), "--to", "fake", "--out", out, "--record", "few")
    )
    assert code == 2
    assert "argument --record: must be 'all', 'metrics' or 'sample:<n>'" in err


def test_progress_without_a_terminal_is_a_few_plain_lines(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    spec = spec_file(iterations=100)
    _, _, err = finish(gem_bench("run", spec, "--to", "fake", "--out", tmp_path / "out"))
    lines = [line for line in err.splitlines() if "/100" in line]
    assert 5 <= len(lines) <= 15
    assert "success" in lines[-1]
    assert "return 0.500" in lines[-1]
    assert "turns 3.0" in lines[-1]
    assert "\r" not in err


def test_a_policy_that_never_changes_is_told_at_the_end(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _, err = finish(gem_bench("run", spec_file("idle"), "--to", "fake", "--out", out))
    assert code == 0, err
    assert err.rstrip().splitlines()[-1] == (
        "warning: the policy never changed: its gradient was 0 in all of 6 iterations; all "
        "episodes of an iteration earned the same, so that none is better than another"
    )
    code, _, err = finish(
        gem_bench("run", spec_file(), "--to", "fake", "--out", tmp_path / "other")
    )
    assert "warning" not in err


LINE = {"split": "train", "grad_norm": 0.0, "episodes": 8.0, "return_mean": 0.0, "return_std": 0.0}


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([LINE], "all of 1 iteration; no episode earned anything"),
        ([LINE, {**LINE, "return_mean": 1.0}], "of 2 iterations; all episodes of an iteration"),
        ([LINE, {**LINE, "return_std": 0.3}], "but not within what the advantage compares"),
        ([{**LINE, "episodes": 0.0}], "no episode was valid"),
        ([LINE, {"split": "eval:hard", "grad_norm": 2.0}], "no episode earned anything"),
    ],
)
def test_a_gradient_of_zero_is_told_with_its_likely_cause(
    lines: list[dict[str, Any]], cause: str
) -> None:
    assert cause in nothing_learnt(lines)


@pytest.mark.parametrize(
    "lines", [[], [LINE, {**LINE, "grad_norm": 0.1}], [{"split": "train"}], [{"split": "eval:x"}]]
)
def test_a_policy_that_changed_or_of_which_nobody_knows_is_not_warned_of(
    lines: list[dict[str, Any]],
) -> None:
    assert nothing_learnt(lines) == ""


def test_a_crash_shows_the_end_of_the_log_and_where_it_is(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _, err = finish(gem_bench("run", spec_file("crash"), "--to", "fake", "--out", out))
    assert code == 1
    assert "exit status 1 after 3 of 6 iterations" in err
    assert "worker 3 died: tensor shapes differ" in err
    assert str(out / "trainer.log") in err
    assert meta(out)["status"] == "failed"
    assert len(read_run(out).metrics) == 3


def test_the_end_of_a_run_says_how_many_episodes_failed_of_what(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _, err = finish(gem_bench("run", spec_file("lossy"), "--to", "fake", "--out", out))
    assert code == 0
    assert "18 episodes failed (sandbox 12, environment 6); they count nowhere" in err
    assert meta(out)["failed_by_cause"] == {"sandbox": 12, "environment": 6}


def test_a_killed_trainer_is_reported_with_its_signal(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _, err = finish(gem_bench("run", spec_file("killed"), "--to", "fake", "--out", out))
    assert code == 1
    assert "killed by SIGKILL" in err
    assert len(read_run(out).metrics) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_reported_and_what_was_recorded_stays_readable(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _, err = finish(gem_bench("run", spec_file("disk-full"), "--to", "fake", "--out", out))
    assert code == 1
    assert "No space left on device: 'metrics.jsonl'" in err
    assert f"cannot write {out / 'run.json'}" in err
    assert len(read_run(out).metrics) == 3
    assert meta(out)["status"] == "running"


def test_a_trainer_that_stops_early_without_an_error_has_failed(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _, err = finish(gem_bench("run", spec_file("short"), "--to", "fake", "--out", out))
    assert code == 1
    assert "recorded only 3 of 6 iterations" in err


def test_a_trainer_that_damages_its_record_has_failed(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _, err = finish(gem_bench("run", spec_file("damaged"), "--to", "fake", "--out", out))
    assert code == 1, err
    assert "metrics.jsonl, line 4 is damaged" in err
    run = json.loads((out / "run.json").read_text())
    assert run["status"] == "failed"
    assert "command" in run["seconds"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_the_trainer_and_keeps_the_record(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    process = gem_bench("run", spec_file("hang"), "--to", "fake", "--out", out)
    wait_for(out / "hanging")
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 130
    assert "interrupted after 3 of 6 iterations" in err
    assert not runs(int((out / "hanging").read_text()))
    assert meta(out)["status"] == "interrupted"
    assert len(read_run(out).metrics) == 3


@pytest.mark.parametrize(("before", "heard"), [(signal.SIG_IGN, []), (signal.SIG_DFL, [1])])
def test_a_run_under_nohup_outlives_its_terminal(before: Any, heard: list[int]) -> None:
    usual = signal.signal(signal.SIGHUP, before)
    try:
        with signals_collected() as received:
            os.kill(os.getpid(), signal.SIGHUP)
        assert received == heard
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_a_second_interrupt_kills_a_trainer_that_ignores_the_first(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = gem_bench("run", spec_file("stubborn"), "--to", "fake", "--out", out)
    wait_for(out / "hanging")
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    assert runs(int((out / "hanging").read_text()))
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process)
    assert code == 130
    assert not runs(int((out / "hanging").read_text()))


def test_a_run_that_takes_too_long_is_ended(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    spec = spec_file("hang")
    code, _, err = finish(gem_bench("run", spec, "--to", "fake", "--out", out, "--timeout", 2))
    assert code == 124
    assert "out of time" in err
    assert not [line for line in command_lines() if str(out) in line]
    assert meta(out)["status"] == "timeout"


def test_daemons_that_left_the_process_group_do_not_outlive_the_run(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, _, err = finish(gem_bench("run", spec_file("orphans"), "--to", "fake", "--out", out))
    assert code == 0, err
    assert not runs(int((out / "orphan.pid").read_text()))


def test_a_folder_that_holds_a_run_is_only_used_again_when_told_so(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("run", spec_file(), "--to", "fake", "--out", out)
    assert finish(gem_bench(*command))[0] == 0
    code, _, err = finish(gem_bench(*command))
    assert code == 2
    assert "already holds a run" in err
    assert "--overwrite" in err
    assert finish(gem_bench(*command, "--overwrite"))[0] == 0
    assert len(read_run(out).metrics) == 6


def test_a_second_run_into_the_folder_of_one_that_goes_on_is_refused_with_its_process(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = gem_bench("run", spec_file("hang"), "--to", "fake", "--out", out)
    wait_for(out / "hanging")
    for words in ((), ("--overwrite",), ("--resume",)):
        code, _, err = finish(
            gem_bench("run", spec_file("hang"), "--to", "fake", "--out", out, *words)
        )
        assert code == 2
        assert f"another process writes a record into {out}: process id {first.pid}" in err
    first.send_signal(signal.SIGINT)
    assert finish(first)[0] == 130
    assert [line["iteration"] for line in read_run(out).metrics] == [0, 1, 2]


def test_of_two_runs_that_are_started_together_one_runs(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("run", spec_file(), "--to", "fake", "--out", out)
    both = [gem_bench(*command) for _ in range(2)]
    ended = sorted(finish(process)[0] for process in both)
    assert ended == [0, 2]
    assert [line["iteration"] for line in read_run(out).metrics] == list(range(6))


def test_a_run_that_could_not_be_started_leaves_no_folder(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    for name in ("refused", "missing"):
        spec = spec_file(name)
        assert finish(gem_bench("run", spec, "--to", "fake", "--out", tmp_path / "out"))[0] == 2
        assert not (tmp_path / "out").exists()


def test_a_run_that_recorded_nothing_is_in_nobodys_way(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    command = ("run", spec_file(), "--to", "fake", "--out", tmp_path / "out")
    failed = {"command": ["x"], "status": "failed", "iterations": 0}
    Recorder(tmp_path / "out").start(failed)
    assert finish(gem_bench(*command))[0] == 0
    # Another program's record, or one with an iteration, is.
    for meta, line in (({"trainer": "trl"}, False), (failed, True)):
        recorder = Recorder(tmp_path / f"other-{line}")
        recorder.start(meta)
        if line:
            recorder.metrics(0, {"loss": 1.0})
        code, _, err = finish(gem_bench(*command[:-1], recorder.folder))
        assert code == 2
        assert "already holds a run" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "fkae"), "did you mean 'fake'"),
        (("--to", "fake", "--set", "name=refused"), "algorithm.gamma: fake cannot discount"),
        (("--to", "fake", "--set", "env.id=game:Nope"), "game:Nope"),
        (("--to", "fake", "--set", "env.params.nope=1"), "nope"),
    ],
)
@pytest.mark.parametrize(
    "model", ["small", "small?competent=0.3", "smollm2", "smollm2?form=rg:gcd", "tiny"]
)
def test_what_is_wrong_is_said_before_a_model_is_made(
    words: tuple[str, ...],
    said: str,
    model: str,
    fake_installed: Path,
    spec_file: WriteSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def made(*_: Any) -> None:
        raise AssertionError("a model is made")

    monkeypatch.setattr("gem_bench.models._maker", made)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(fake_installed))
    monkeypatch.setattr("gem_bench.run.check_environments", checked_here)
    asked = [str(spec_file()), *words, "--set", f"policy.model={model}", "--cpu", "--out", "out"]
    assert main(["run", *asked]) == 2
    assert said in capsys.readouterr().err


def checked_here(compiled: Any, spec: RunSpec) -> None:
    """What `check_environments` asks the trainer's Python, without another process."""
    check(environments(spec))


def test_nothing_goes_on_from_what_an_earlier_run_left(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("run", spec_file(), "--to", "fake", "--out", out)
    (out / "left").mkdir(parents=True)
    (out / "left" / "weights").touch()
    (out / "left.txt").touch()
    (out / "notes.txt").touch()
    code, _, err = finish(gem_bench(*command))
    assert code == 2
    assert "already holds a run (left, left.txt)" in err
    code, _, err = finish(gem_bench(*command, "--overwrite"))
    assert code == 0, err
    assert not (out / "left").exists()
    assert not (out / "left.txt").exists()
    assert (out / "notes.txt").exists()


def test_a_run_does_not_end_because_nobody_looks_any_more(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = gem_bench("run", spec_file(), "--to", "fake", "--out", out)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(120) == 0
    assert meta(out)["status"] == "finished"
    assert len(read_run(out).metrics) == 6
    process = gem_bench("run", spec_file("crash"), "--to", "fake", "--out", tmp_path / "crash")
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(120) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refused", "algorithm.gamma: fake cannot discount"),
        ("old", "fake 0.3 is installed, gem-fake supports >=1"),
        ("missing", "'missing-command' is not on the PATH"),
    ],
)
def test_what_cannot_be_started_is_said_before_anything_starts(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path, name: str, words: str
) -> None:
    code, _, err = finish(gem_bench("run", spec_file(name), "--to", "fake", "--out", "out"))
    assert code == 2
    assert words in err
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_an_unwritable_run_folder_is_named(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, err = finish(gem_bench("run", spec_file(), "--to", "fake", "--out", "file/out"))
    assert code == 2
    assert "file/out" in err


def test_a_daemon_that_hides_its_environment_is_known_by_descent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hide = f"setsid env -i sleep 600 & echo $! > {pid_file}; exec sleep 600"
    with (tmp_path / "log").open("wb") as log:
        family = Family(["sh", "-c", hide], env=dict(os.environ), log=log, run_id="hidden")
    wait_for(pid_file)
    daemon = int(pid_file.read_text())
    while daemon not in family.alive():  # noticed as a child ...
        time.sleep(0.02)
    family.launcher.kill()
    family.launcher.wait()
    assert runs(daemon)
    assert family.alive() == [daemon]  # ... and remembered as an orphan
    family.end(grace_s=5)
    assert not runs(daemon)


def metrics_line(iteration: int) -> str:
    return json.dumps({"iteration": iteration, "split": "train", "time_s": 0.0}) + "\n"


def test_metrics_are_read_while_the_last_line_is_still_being_written(tmp_path: Path) -> None:
    from gem_bench.progress import Tail

    tail = Tail(tmp_path)
    assert tail.read() == []
    path = tmp_path / "metrics.jsonl"
    first, second = map(metrics_line, range(2))
    path.write_text(first + second[:6])
    assert tail.read() == [{"iteration": 0, "split": "train", "time_s": 0.0}]
    path.write_text(first + second)
    assert tail.read() == [{"iteration": 1, "split": "train", "time_s": 0.0}]


def test_metrics_that_are_replaced_by_fewer_lines_are_read_anew(tmp_path: Path) -> None:
    from gem_bench.progress import Tail

    tail = Tail(tmp_path)
    path, partial = tmp_path / "metrics.jsonl", tmp_path / "metrics.partial"
    path.write_text("".join(map(metrics_line, range(3))))
    assert len(tail.read()) == 3
    again = {"iteration": 0, "split": "train", "time_s": 0.0, "again": 1.25}
    again |= {f"longer than all that was read {i}": float(i) for i in range(9)}
    partial.write_text(json.dumps(again))
    partial.replace(path)
    with path.open("a") as file:
        file.write("\n")
    assert [line["iteration"] for line in tail.read()] == [0]


def test_processes_are_found_without_proc_too() -> None:
    assert os.getpid() in {process.pid for process in _processes_by_ps()}
    assert os.getpid() in {process.pid for process in _processes()}


def test_a_run_whose_environment_cannot_be_played_is_not_started(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    tools = 'env.params.tools=[{name="mcp", servers={gone={command="no-such-command"}}}]'
    code, _, err = finish(
        gem_bench("run", spec_file(), "--to", "fake", "--out", out, "--set", tools)
    )
    assert code == 2
    assert "no command 'no-such-command'" in err
    assert not (out / "run.json").exists()


def test_a_run_that_a_signal_without_a_name_ended_says_its_number() -> None:
    assert "signal 40" in _exit(-40)
