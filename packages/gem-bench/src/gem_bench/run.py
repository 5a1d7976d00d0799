"""Runs an experiment with a trainer's own launcher, supervises it and records its outcome.

`run` resolves the model, compiles the command, starts it, shows its progress, and terminates all
of its processes however the run ends. It writes `run.json`: the setup at the start, the outcome at
the end. The trainer writes `metrics.jsonl` and `episodes.jsonl`. A run that was killed goes on with
the same command, which finds the trainer's last checkpoint in the folder (`gem_bench.resuming`).
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from gem.errors import ConfigurationError, RecordError
from gem.foreign import signal_name
from gem_bench.adapters import Compiled, check_environments, compile_launch
from gem_bench.forks import TRAINER, apart
from gem_bench.learning import nothing_learnt_in
from gem_bench.logs import explain
from gem_bench.models import is_made, resolved
from gem_bench.processes import Family
from gem_bench.progress import Progress, Tail, clock
from gem_bench.provenance import decisive, git_commit, machine, versions
from gem_bench.resuming import check_begun_alike, check_ended, earlier_run, goes_on
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.metrics import failed_by_cause, failures_text
from gem_train.experiment.runspec import RunSpec
from gem_train.folders import alone
from gem_train.launch import Launch
from gem_train.record import EPISODES, METRICS, REPLACED, RUN, Recorder, read_run

LOG = "trainer.log"
STATUSES = {"finished": 0, "failed": 1, "timeout": 124, "interrupted": 130}
"""Final statuses of a run, with the exit status of `gem-bench run`."""
_POLL_S = 0.25
_NOTE_S = 1.0
"""Between two looks at all processes of the machine: a look reads a file of each."""
_GRACE_S = 10.0
"""Time between SIGTERM and SIGKILL when the processes of a run are ended."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: Literal["finished", "failed", "timeout", "interrupted"]
    message: str
    """One or more lines for the user; if the run failed, with the end of the log."""
    iterations: int
    """Number of recorded iterations."""
    failed_by_cause: dict[str, int] = field(default_factory=dict)
    """Failed episodes, evaluations included; see `gem.blame.CAUSES`."""


def run(
    spec: RunSpec,
    *,
    trainer: str,
    run_dir: Path,
    hardware: Hardware | None = None,
    python: Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
    warned: Callable[[RunSpec], object] = lambda _: None,
    begun: Callable[[], object] = lambda: None,
    forks: bool = False,
) -> Outcome:
    """Run `spec` with `trainer`.

    Trainer, settings and environments are checked before a model is made. No other run can be
    started in the folder from the first check on.

    Args:
        spec: The experiment; `policy.model` may be a name that `gem_bench.models` knows.
        trainer: Name of an adapter.
        run_dir: Folder for record, log and the launcher's files.
        hardware: What the run is given; by default one GPU of 80 GB.
        python: Interpreter of the trainer's environment; see `compile_launch`.
        overwrite: Remove an earlier record from the folder instead of refusing to use it.
        resume: Go on with the run in the folder from its last checkpoint, or from iteration 0 if it
            has none. One that is finished is left as it is.
        timeout_s: End the run after this many seconds.
        environment: Environment variables of the trainer, besides the launcher's.
        warned: Called with the experiment before the trainer is started, when its model is there;
            what it raises keeps the run from being started.
        begun: Called when `run.json` says that the run is running, before the trainer is started.
        forks: Fork the reference trainer instead of starting it, see `gem_bench.forks`. Only in a
            process that has done nothing but imports.

    Raises:
        ConfigurationError: The run cannot be started with these arguments, or another process
            writes into the folder; nothing was started.
        RecordError: The record cannot be written, or the one to go on with cannot be read.
    """
    if resume:
        earlier_run(run_dir)  # without one, no folder is made
    plan = _Plan(spec, trainer, run_dir, hardware or Hardware(), python, warned, begun, forks)
    with alone(run_dir):
        return _run(plan, overwrite, resume, timeout_s, environment or {})


@dataclass(frozen=True)
class _Plan:
    """What is to be run; see `run`."""

    spec: RunSpec
    trainer: str
    run_dir: Path
    hardware: Hardware
    python: Path | None
    warned: Callable[[RunSpec], object]
    begun: Callable[[], object]
    forks: bool

    def compile(self, spec: RunSpec) -> Compiled:
        """Return the trainer's command for the spec, whose model may be another."""
        return compile_launch(
            self.trainer, spec, run_dir=self.run_dir, hardware=self.hardware, python=self.python
        )


def _run(
    plan: _Plan,
    overwrite: bool,
    resume: bool,
    timeout_s: float | None,
    environment: Mapping[str, str],
) -> Outcome:
    """Do what `run` does, in a folder that is this process's alone."""
    spec, trainer, run_dir = plan.spec, plan.trainer, plan.run_dir
    given: dict[str, Any] = {
        "trainer": trainer,
        "spec": spec.to_mapping(),
        "hardware": plan.hardware.to_mapping(),
    }
    earlier: dict[str, Any] = {}
    if resume:
        earlier = earlier_run(run_dir)
        check_begun_alike(run_dir, earlier, given)
        if earlier.get("status") == "finished":
            done = int(earlier["iterations"])
            return Outcome("finished", f"it was already, after {done} iterations", done)
        check_ended(run_dir, earlier)
    else:
        with contextlib.suppress(RecordError):  # there is none, or it cannot be read
            there = read_run(run_dir).meta
            if overwrite or recorded_nothing(run_dir, there):
                check_ended(run_dir, there)
                overwrite = True
        clear(run_dir, (RUN, METRICS, EPISODES, *REPLACED), overwrite=overwrite)
    seconds: dict[str, float] = {}
    making = is_made(spec.policy.model)
    if making:
        # That may take minutes: everything else that can be wrong is said before.
        with _timed(seconds, "check"):
            check_environments(plan.compile(spec), spec)
    with _timed(seconds, "model"):
        ready = apart(resolved, spec) if plan.forks else resolved(spec)
    plan.warned(ready)
    with _timed(seconds, "compile"):
        compiled = plan.compile(ready)
    launch = compiled.launch
    compiled = replace(compiled, launch=replace(launch, env={**launch.env, **environment}))
    if not making:
        with _timed(seconds, "check"):
            check_environments(compiled, spec)
    program = _program(compiled)
    found = versions(compiled.python, trainer)
    if resume:
        decided = {"model": ready.policy.model, "versions": decisive(found)}
        check_begun_alike(run_dir, earlier, decided)
    else:
        clear(run_dir, compiled.launch.state, overwrite=overwrite)
    recorder = Recorder(run_dir)
    _write_files(run_dir, compiled.launch)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    meta: dict[str, Any] = {
        **given,
        "status": "running",
        "model": ready.policy.model,
        "command": compiled.launch.argv,
        "environment": compiled.launch.env,
        "unset": compiled.launch.unset,
        "parity": [asdict(each) for each in compiled.launch.parity],
        "untold": compiled.launch.untold,
        "versions": found,
        "git": git_commit(),
        "machine": machine(),
        "run_id": earlier.get("run_id", uuid.uuid4().hex),
        "started": earlier.get("started", started),
        "seconds": seconds,
    }
    if resume:
        meta["resumed"] = [*earlier.get("resumed", []), {"iteration": None, "started": started}]
    recorder.start(meta)
    plan.begun()
    outcome = _supervise(compiled, program, recorder, meta, timeout_s, _main(plan, compiled))
    if outcome.status != "finished" and given["hardware"]["checkpoint_every"] is not None:
        hint = "the same command with --resume goes on from its last checkpoint"
        outcome = replace(outcome, message=f"{outcome.message}\n{hint}")
    ended = {
        "status": outcome.status,
        "iterations": outcome.iterations,
        "failed_by_cause": outcome.failed_by_cause,
        "seconds": seconds,
    }
    try:
        recorder.start(meta | ended)
    except RecordError as error:
        # Report the outcome even if the disk is full.
        return replace(outcome, status="failed", message=f"{outcome.message}\n{error}")
    return outcome


def clear(run_dir: Path, names: Iterable[str], *, overwrite: bool) -> None:
    """Make sure that a folder contains no files of an earlier run.

    Args:
        run_dir: The folder; need not exist.
        names: Files and folders that a run creates in it.
        overwrite: Remove those that exist.

    Raises:
        ConfigurationError: One of them exists and `overwrite` is false.
        RecordError: One of them cannot be removed.
    """
    there = [name for name in names if (run_dir / name).exists()]
    if there and not overwrite:
        raise ConfigurationError(
            f"{run_dir} already holds a run ({', '.join(there)}); choose another folder, or "
            "replace it with --overwrite"
        )
    for name in there:
        try:
            if (run_dir / name).is_dir():
                shutil.rmtree(run_dir / name)
            else:
                (run_dir / name).unlink()
        except OSError as error:
            raise RecordError(f"cannot remove {run_dir / name}: {error}") from error


def recorded_nothing(run_dir: Path, meta: Mapping[str, Any]) -> bool:
    """Whether a run of gem-bench ended before it recorded anything: there is nothing to lose.

    Args:
        run_dir: Its folder.
        meta: Its `run.json`.
    """
    files = [run_dir / name for name in (METRICS, EPISODES, *REPLACED)]
    empty = not any(file.exists() and file.stat().st_size for file in files)
    return empty and "command" in meta and meta.get("status") != "finished"


def _program(compiled: Compiled) -> str:
    """Return the path of the trainer's command.

    Raises:
        ConfigurationError: It is not there.
    """
    program = compiled.launch.argv[0]
    found = shutil.which(program, path=compiled.environment()["PATH"])
    if found is None:
        raise ConfigurationError(
            f"the trainer's command {program!r} is not on the PATH of {compiled.python.parent}"
        )
    return found


def _write_files(run_dir: Path, launch: Launch) -> None:
    for name, content in launch.files.items():
        path = run_dir / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error}") from error


def _main(plan: _Plan, compiled: Compiled) -> Callable[[Sequence[str]], int] | None:
    """Return the trainer's `main` if it is to be forked."""
    if not plan.forks or compiled.launch.argv[:3] != [sys.executable, "-m", TRAINER]:
        return None
    from gem_bench.reference_command import main

    return main


def _supervise(
    compiled: Compiled,
    program: str,
    recorder: Recorder,
    meta: dict[str, Any],
    timeout_s: float | None,
    forked: Callable[[Sequence[str]], int] | None,
) -> Outcome:
    """Start the command and wait until all of its processes have ended or been terminated.

    Of `meta`, which is in `run.json`, the seconds are filled in, and where a resumed run goes on.
    """
    log_path = recorder.folder / LOG
    seconds, resumed = meta["seconds"], meta.get("resumed")
    began = time.monotonic()
    tail = Tail(recorder.folder)
    # Only a resumed run has any.
    done = [line["iteration"] + 1 for line in tail.read() if line["split"] == "train"]
    iterations = meta["spec"]["training"]["iterations"]
    progress = Progress(meta["trainer"], iterations, sys.stderr, done=max(done, default=0))
    stop: Literal["interrupted", "timeout"] | None = None
    damaged: list[str] = []

    def show() -> None:
        try:
            lines = tail.read()
        except RecordError as error:
            damaged.append(str(error))
            return
        if lines and resumed and resumed[-1]["iteration"] is None:
            resumed[-1]["iteration"] = lines[0]["iteration"]
            progress.say(goes_on(lines[0]["iteration"], progress.done))
            with contextlib.suppress(RecordError):  # whoever can write again does so at the end
                recorder.start(meta)
        progress.update(lines)
        if any(line["split"] == "train" for line in lines):
            seconds.setdefault("start_up", round(time.monotonic() - began, 2))

    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(log_path.open("ab" if resumed else "wb"))
            if resumed:
                log.write(f"\ngem-bench: resumed {resumed[-1]['started']}\n".encode())
                log.flush()
            log_began = log.tell()
            signals = stack.enter_context(signals_collected())
            command = [program, *compiled.launch.argv[1:]]
            env = compiled.environment()
            family = Family(command, env=env, log=log, run_id=meta["run_id"], forked=forked)
        except OSError as error:
            raise ConfigurationError(f"cannot start {program}: {error}") from error
        try:
            noted = began
            while family.launcher.poll() is None and stop is None and not damaged:
                time.sleep(_POLL_S)
                if time.monotonic() - noted >= _NOTE_S:
                    noted = time.monotonic()
                    family.note()
                show()
                if signals:
                    stop = "interrupted"
                elif timeout_s is not None and time.monotonic() - began > timeout_s:
                    stop = "timeout"
        finally:
            code = family.launcher.returncode
            # A second Ctrl-C skips the grace period.
            family.end(grace_s=_GRACE_S, hurry=lambda: len(signals) > 1)
            show()
            progress.close()
    seconds["command"] = round(time.monotonic() - began, 2)
    stages = ("model", "compile", "check", "command")
    seconds["total"] = round(sum(seconds.get(stage, 0.0) for stage in stages), 2)
    took = f"{progress.done} of {progress.iterations} iterations in {clock(seconds['command'])}"
    explained = partial(explain, log=log_path, after=log_began)
    if damaged:
        return Outcome("failed", explained(f"{damaged[0]}; ended after {took}"), progress.done)
    outcome = _judge(code, stop, progress, took, log_path, explained)
    failed = failed_by_cause(Tail(recorder.folder).read())
    if not failed:
        return outcome
    message = f"{outcome.message}\n{failures_text(failed)}; they count nowhere"
    return replace(outcome, message=message, failed_by_cause=failed)


def _judge(
    code: int | None,
    stop: Literal["interrupted", "timeout"] | None,
    progress: Progress,
    took: str,
    log: Path,
    explained: Callable[[str], str],
) -> Outcome:
    """Return the outcome of a run; `code` is None if the launcher had to be terminated."""
    if stop == "interrupted":
        return Outcome(stop, f"interrupted after {took}; its processes are ended", progress.done)
    if stop == "timeout":
        return Outcome(stop, explained(f"out of time after {took}"), progress.done)
    if code:
        return Outcome("failed", explained(f"{_exit(code)} after {took}"), progress.done)
    if progress.done < progress.iterations:
        why = f"the trainer ended without an error, but recorded only {took}"
        return Outcome("failed", explained(why), progress.done)
    learnt = nothing_learnt_in(log.parent)
    warning = f"\nwarning: {learnt}" if learnt else ""
    return Outcome("finished", f"{took}; log: {log}{warning}", progress.done)


@contextlib.contextmanager
def signals_collected() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in a list instead of letting them end the process.

    SIGHUP only if it would end the process: under `nohup` a run is to outlive its terminal.
    """
    received: list[int] = []

    def collect(number: int, frame: FrameType | None) -> None:
        received.append(number)

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, collect) for number in wanted}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[stage] = round(time.monotonic() - began, 2)


def _exit(code: int) -> str:
    if code >= 0:
        return f"the trainer ended with exit status {code}"
    name = signal_name(-code)
    hint = " (by the kernel, for lack of memory?)" if name == "SIGKILL" else ""
    return f"the trainer was killed by {name}{hint}"
