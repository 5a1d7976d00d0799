"""Sweeps: which runs a file means, and that each is run once whatever ends the sweep."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gem.errors import ConfigurationError
from gem_bench import forks
from gem_bench.run import signals_collected
from gem_bench.runspec import load_spec
from gem_bench.sweep import Changes, read
from gem_train.record import read_run

Start = Callable[..., subprocess.Popen[str]]
WriteSpec = Callable[..., Path]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_texts_of_a_sweep_file_reach_the_spec_as_they_are(
    spec_file: WriteSpec, tmp_path: Path
) -> None:
    said = 'Think 🤔 of "é", C:\\x'
    path = write(
        tmp_path / "sweep.toml",
        f"[[runs]]\nspec = \"{spec_file().name}\"\nset.policy.system_prompt = '{said}'\n",
    )
    [run] = read([path])
    assert run.spec.policy.system_prompt == said
    assert load_spec(run.path, run.overrides) == run.spec


def test_a_part_is_every_combination_of_trainers_values_and_seeds(
    spec_file: WriteSpec, tmp_path: Path
) -> None:
    spec = spec_file()
    path = write(
        tmp_path / "sweep.toml",
        f'[[runs]]\nname = "a"\nspec = "{spec.name}"\nto = ["x", "y"]\nseeds = [0, 2]\n'
        'set.env = {seed = 5, params.hint = "range"}\n'
        'vary.algorithm = {advantage = ["rebn", "grpo"], gamma = [0.5]}\n',
    )
    runs = read([path])
    assert [run.name for run in runs] == [
        f"a-{trainer}-{advantage}-0.5-{seed}"
        for trainer in "xy"
        for advantage in ("rebn", "grpo")
        for seed in (0, 2)
    ]
    last = runs[-1].spec
    assert (last.algorithm.advantage, last.algorithm.gamma) == ("grpo", 0.5)
    assert (last.seed, last.env[0].seed, last.env[0].params) == (2, 2_000_005, {"hint": "range"})
    changed = read([path], Changes(("y",), (7,), ("algorithm.gamma=1.0",)))
    assert [run.name for run in changed] == ["a-y-rebn-1.0-7", "a-y-grpo-1.0-7"]
    assert changed[0].spec.algorithm.gamma == 1.0
    # One value instead of several: not two runs with the same value under different names.
    single = read([path], Changes(("y",), (7,), ("algorithm.advantage=gae", "env.seed=1")))
    assert [(run.name, run.spec.algorithm.advantage) for run in single] == [
        ("a-y-gae-0.5-7", "gae")
    ]
    assert single[0].spec.env[0].seed == 7_000_001


def test_a_seed_moves_the_tasks_of_every_environment(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "guess-easy.toml"
    text = recipe.read_text(encoding="utf-8")
    games = [f'[[env]]\nid = "game:{name}"\n' for name in ("GuessTheNumber-v0", "Wordle-v0")]
    before, _, after = text.partition("[env]")
    write(tmp_path / "spec.toml", before + "".join(games) + after[after.index("[policy]") :])
    path = write(tmp_path / "sweep.toml", '[[runs]]\nspec = "spec.toml"\nseeds = [2]\n')
    [run] = read([path])
    assert [env.seed for env in run.spec.env] == [2_000_000, 12_000_000]
    assert load_spec(tmp_path / "spec.toml", run.overrides) == run.spec


def test_no_seed_is_evaluated_on_what_it_trains_on(spec_file: WriteSpec, tmp_path: Path) -> None:
    spec = spec_file()
    evaluation = '[[eval]]\nname = "same"\nid = "game:GuessTheNumber-v0"\n'
    write(spec, f"{spec.read_text()}\n{evaluation}")
    path = write(tmp_path / "sweep.toml", f'[[runs]]\nspec = "{spec.name}"\nseeds = [0, 1, 2, 3]\n')
    for run in read([path]):
        iterations = range(run.spec.training.iterations)
        trained = {task.seed for i in iterations for task in run.spec.train_tasks(i)}
        assert trained.isdisjoint(task.seed for task in run.spec.evaluations[0].tasks)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (Changes(overrides=("seed=7",)), "a sweep's seeds are in `seeds`"),
        (Changes(overrides=("env.params={max_turns=3}",)), "this part varies env.params.hint"),
        (Changes(to=("reference", "refrence")), "no run is for trainer 'refrence'"),
    ],
)
def test_a_change_that_would_be_lost_is_refused(
    changes: Changes, problem: str, spec_file: WriteSpec, tmp_path: Path
) -> None:
    path = write(
        tmp_path / "sweep.toml",
        f'[[runs]]\nspec = "{spec_file().name}"\nvary.env.params.hint = ["direction", "range"]\n',
    )
    with pytest.raises(ConfigurationError) as caught:
        read([path], changes)
    assert problem in str(caught.value)


def test_a_varied_setting_is_replaced_however_it_is_spaced(
    spec_file: WriteSpec, tmp_path: Path
) -> None:
    spec = spec_file()
    write(spec, spec.read_text().replace("[env]\n", "[env]\nparams = {max_turns = 2}\n"))
    path = write(
        tmp_path / "sweep.toml",
        f'[[runs]]\nspec = "{spec.name}"\nvary.algorithm.advantage = ["rebn", "rloo"]\n'
        "set.env.params = {}\n",
    )
    [run] = read([path], Changes(overrides=("algorithm.advantage = grpo",)))
    assert run.name == "fine-reference-grpo-0"
    assert run.spec.env[0].params == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no run is left"),
        ('[[runs]]\nspec = "none.toml"', "no RunSpec at"),
        ('[[runs]]\nspecs = "spec.toml"', "did you mean runs[0].spec?"),
        ('[[runs]]\nspec = "{spec}"\nto = "verl"', "runs[0].to must be an array"),
        ('[[runs]]\nspec = "{spec}"\nseeds = ["a"]', r"runs[0].seeds[0] must be of type int"),
        ('[[runs]]\nspec = "{spec}"\nvary.seed = 3', "runs.vary.seed must be an array of values"),
        ('[[runs]]\nspec = "{spec}"\nset.algorithm.gama = 1', "did you mean algorithm.gamma?"),
        ('[[runs]]\nspec = "{spec}"\n[[runs]]\nspec = "{spec}"', "two runs are called"),
        (
            '[[runs]]\nspec = "{spec}"\n[[runs]]\nspec = "{spec}"\nname = "b"',
            "b-reference-0 are the same run under two names",
        ),
        ('[[runs]]\nspec = "{spec}"\nvary.seed = [3, 4]', "a sweep's seeds are in `seeds`"),
        ('[[runs]]\nspec = "{spec}"\nset.seed = 7', "a sweep's seeds are in `seeds`"),
    ],
)
def test_a_wrong_file_is_refused(
    text: str, problem: str, spec_file: WriteSpec, tmp_path: Path
) -> None:
    path = write(tmp_path / "sweep.toml", text.format(spec=spec_file().name))
    with pytest.raises(ConfigurationError) as caught:
        read([path])
    assert problem in str(caught.value)


def test_what_is_finished_is_not_run_again_and_a_failure_ends_no_other_run(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    good, bad = spec_file().name, spec_file("crash").name
    path = write(
        tmp_path / "sweep.toml",
        f'[[runs]]\nname = "bad"\nspec = "{bad}"\nto = ["fake"]\n'
        f'[[runs]]\nname = "good"\nspec = "{good}"\nto = ["fake"]\nseeds = [0, 1]\n',
    )
    out = tmp_path / "out"
    code, said, err = finish(gem_bench("sweep", path, "--out", out, "--cpu"))
    assert (code, said) == (1, "2 finished, 1 failed\n"), err
    assert "worker 3 died" in (out / "bad-fake-0.txt").read_text()
    assert f"{out / 'bad-fake-0'}.txt says why" in err
    began = {seed: read_run(out / f"good-fake-{seed}").meta["started"] for seed in (0, 1)}
    assert read_run(out / "good-fake-1").meta["spec"]["env"]["seed"] == 1_000_000
    code, said, err = finish(gem_bench("sweep", path, "--out", out, "--cpu"))
    assert (code, said) == (1, "2 finished, 1 failed\n")
    assert "2 of 3 runs are finished already" in err
    assert began == {s: read_run(out / f"good-fake-{s}").meta["started"] for s in (0, 1)}
    code, _, err = finish(
        gem_bench("sweep", path, "--out", out, "--cpu", "--set", "algorithm.gamma=0.5")
    )
    assert code == 2
    assert "spec.algorithm.gamma: 0.9 there, 0.5 here" in err


def test_an_interrupted_sweep_ends_its_runs_and_goes_on_with_them(
    gem_bench: Start, spec_file: WriteSpec, tmp_path: Path
) -> None:
    """The first run hangs until it is ended; from its checkpoint on it does not."""
    specs = [spec_file(name).name for name in ("hang", "good")]
    path = write(
        tmp_path / "sweep.toml",
        "".join(f'[[runs]]\nspec = "{spec}"\nto = ["fake"]\n' for spec in specs),
    )
    hardware = write(tmp_path / "saved.toml", 'device = "cpu"\ncheckpoint_every = 1\n')
    out = tmp_path / "out"
    again = ["sweep", path, "--out", out, "--hardware", hardware, "--jobs", "1"]
    process = gem_bench(*again, "--every", "0.01")
    [hangs] = [run.name for run in read([path]) if "hang" in run.name]
    hanging = out / hangs / "hanging"
    deadline = time.monotonic() + 60
    while not (hanging.exists() and hanging.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    code, said, err = finish(process)
    assert (code, said) == (130, "2 interrupted\n"), err
    assert f"sweep: {hangs}  " in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(hanging.read_text()), 0)
    code, said, err = finish(gem_bench(*again))
    assert (code, said) == (0, "2 finished\n"), err
    assert read_run(out / hangs).meta["resumed"][0]["iteration"] == 3


def reference_sweep(folder: Path, iterations: int) -> Path:
    recipe = Path(__file__).parents[2] / "recipes" / "guess-easy.toml"
    fewer = f"training = {{iterations = {iterations}, tasks = 2}}"
    text = f'[[runs]]\nname = "r"\nspec = "{recipe}"\nset.{fewer}\nset.eval = []\n'
    return write(folder / "sweep.toml", text)


def test_a_forked_run_of_the_reference_is_the_run_that_is_started_anew(
    gem_bench: Start, tmp_path: Path
) -> None:
    path = reference_sweep(tmp_path, 2)
    code, said, err = finish(gem_bench("sweep", path, "--out", tmp_path / "out", "--cpu"))
    assert (code, said) == (0, "1 finished\n"), err
    forked, alone = tmp_path / "out" / "r-reference-0", tmp_path / "alone"
    command, said = Path(f"{forked}.txt").read_text().split("\n", 1)
    assert "2 of 2 iterations" in said
    words = shlex.split(command)[3:]
    words[words.index("--out") + 1] = str(alone)
    code, _, err = finish(gem_bench(*words))
    assert code == 0, err
    lines = [read_run(folder).metrics for folder in (forked, alone)]
    timed = ("time_s", "rollout_s", "update_s", "tokens_per_s")
    assert len(lines[0]) == 2
    for a, b in zip(*lines, strict=True):
        assert {k: v for k, v in a.items() if k not in timed} == {
            k: v for k, v in b.items() if k not in timed
        }
    packed = [sorted(folder.glob("episodes*"))[0].read_bytes() for folder in (forked, alone)]
    assert packed[0] == packed[1]


@pytest.mark.skipif(not forks.POSSIBLE, reason="runs are forked on Linux only")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_right_after_the_fork_is_not_lost(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A forked process begins with the sweep's handlers, which do not end it."""
    leave = os.setsid
    monkeypatch.setattr(os, "setsid", lambda: (time.sleep(1), leave()))
    with (tmp_path / "log").open("wb") as log, signals_collected() as received:
        forked = forks.Forked(lambda _: time.sleep(60) or 0, [], log=log)
        forked.send_signal(number)
        until = time.monotonic() + 30
        while forked.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if forked.poll() is None:
            forked.send_signal(signal.SIGKILL)
        forked.wait()
        assert forked.returncode != -signal.SIGKILL
        assert received == []
        os.kill(os.getpid(), number)
        assert received == [number]


@pytest.mark.skipif(not forks.POSSIBLE, reason="runs are forked on Linux only")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_makes_a_model_ends_with_the_run_that_waits_for_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    """It would hold the lock of the run's folder otherwise."""
    code = """
import os, sys, time
from pathlib import Path
from gem_bench.forks import apart

def hang(path):
    Path(path + ".part").write_text(str(os.getpid()))
    os.rename(path + ".part", path)
    time.sleep(600)

apart(hang, sys.argv[1])
"""
    path = tmp_path / "pid"
    run = subprocess.Popen([sys.executable, "-c", code, str(path)])
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.02)
    maker = int(path.read_text())
    assert maker in of_process(run.pid)
    run.send_signal(number)
    assert run.wait(60) == -number
    try:
        while is_running(maker):
            assert time.monotonic() < deadline, "it is still there"
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):
            os.kill(maker, signal.SIGKILL)


@pytest.mark.nightly
def test_forked_runs_end_with_the_sweep_and_a_killed_trainer_is_a_failed_run(
    gem_bench: Start, tmp_path: Path
) -> None:
    process = gem_bench("sweep", reference_sweep(tmp_path, 9_999), "--out", tmp_path, "--cpu")
    run = tmp_path / "r-reference-0"

    def trainer() -> int:
        """Return the trainer's pid when it has recorded an iteration."""
        deadline = time.monotonic() + 100
        while not (run / "metrics.jsonl").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        return max(of_process(process.pid))

    os.kill(trainer(), signal.SIGKILL)
    code, said, err = finish(process)
    assert (code, said) == (1, "1 failed\n"), err
    assert "killed by SIGKILL" in Path(f"{run}.txt").read_text()
    (run / "metrics.jsonl").unlink()
    process = gem_bench("sweep", tmp_path / "sweep.toml", "--out", tmp_path, "--cpu")
    running = trainer()
    process.send_signal(signal.SIGTERM)
    code, said, err = finish(process)
    assert (code, said) == (130, "1 interrupted\n"), err
    with pytest.raises(ProcessLookupError):
        os.kill(running, 0)


def test_without_what_the_reference_needs_runs_are_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert forks.load() is forks.POSSIBLE
    monkeypatch.setattr(forks, "_LOADED", ("gem_bench.run", "gem_no_such_module"))
    assert not forks.load()


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def of_process(pid: int) -> list[int]:
    """Return the descendants of a process that have its command line: forked ones."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text().split():
                waiting.append(int(child))
                if Path(f"/proc/{child}/cmdline").read_bytes() == command:
                    found.append(int(child))
    return found
