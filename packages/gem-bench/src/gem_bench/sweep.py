"""Runs a set of experiments, several at a time: specs times trainers times settings times seeds.

`read` expands a sweep file to runs, each with a folder of its own; `sweep` starts `gem-bench run`
for each that is not finished. Started again, it goes on with what is missing. Runs of the reference
are forked, so that imports are paid for once.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gem.errors import ConfigurationError, RecordError
from gem.tables import build, filled, setting
from gem_bench import forks
from gem_bench.following import Follower
from gem_bench.progress import clock
from gem_bench.resuming import check_begun_alike
from gem_bench.run import STATUSES, signals_collected
from gem_bench.runspec import load_spec, read_toml
from gem_bench.state import State
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.record import RUN, read_run

SEED_STEP = 1_000_000
"""Seed s of a run moves the tasks of every environment to `env.seed + s * SEED_STEP`. The default
seed of evaluations (`EvalPart`) is half of it, so that no run is evaluated on what it trains on."""
_POLL_S = 0.1
_Process: TypeAlias = "forks.Forked | subprocess.Popen[bytes]"


@dataclass(frozen=True)
class RunsPart:
    """Runs of one spec: every combination of `to`, `vary` and `seeds`."""

    spec: str = setting("RunSpec, a TOML file; relative to the sweep file", check=filled)
    name: str | None = setting("first part of the folders' names; by default the spec's", None)
    to: tuple[str, ...] = setting("trainers", ("reference",))
    seeds: tuple[int, ...] = setting("seeds", (0,))
    set: Mapping[str, Any] = setting("settings of all runs, as in the RunSpec", {})
    vary: Mapping[str, Any] = setting("settings with an array of values instead of one", {})


@dataclass(frozen=True)
class SweepFile:
    """A sweep file."""

    runs: tuple[RunsPart, ...] = ()


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    name: str
    """Of its folder."""
    path: Path
    """Its RunSpec's file."""
    trainer: str
    overrides: tuple[str, ...]
    spec: RunSpec = field(repr=False)


@dataclass(frozen=True)
class Changes:
    """What the command line changes in every part of a sweep file."""

    to: tuple[str, ...] | None = None
    """Only these trainers."""
    seeds: tuple[int, ...] | None = None
    """These instead of the file's."""
    overrides: tuple[str, ...] = ()
    """`key=value`, after those of the file."""


def read(paths: Sequence[Path], changes: Changes | None = None) -> list[Planned]:
    """Return the runs of sweep files, in their order.

    Raises:
        ConfigurationError: A file or one of its specs cannot be read, a setting is unknown or not
            allowed, two runs would have the same folder or be the same run, or there is no run.
    """
    changes = changes or Changes()
    planned: list[Planned] = []
    known: set[str] = set()
    for path in paths:
        try:
            for part in build(SweepFile, read_toml(path, "sweep")).runs:
                known.update(part.to)
                planned += _expanded(part, path.parent, changes)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
    files = ", ".join(map(str, paths))
    for trainer in changes.to or ():
        if trainer not in known:
            raise ConfigurationError(
                f"{files}: no run is for trainer {trainer!r}; there are runs for "
                f"{', '.join(sorted(known))}"
            )
    if not planned:
        raise ConfigurationError(f"{files}: no run is left")
    names: set[str] = set()
    settings: dict[str, str] = {}
    for run in planned:
        if run.name in names:
            raise ConfigurationError(f"two runs are called {run.name}; give their parts a name")
        names.add(run.name)
        same = settings.setdefault(
            json.dumps([run.trainer, run.spec.to_mapping()], sort_keys=True), run.name
        )
        if same != run.name:
            raise ConfigurationError(f"{same} and {run.name} are the same run under two names")
    return planned


def sweep(
    planned: Sequence[Planned],
    *,
    out: Path,
    hardware: Hardware,
    arguments: Sequence[str],
    jobs: int,
    say: Callable[[str], None],
    every_s: float = 60.0,
) -> dict[str, str]:
    """Run what is not finished; return the status of each run by its name.

    A run that fails does not end the others. One that was interrupted goes on from its checkpoint
    if the hardware says that there are some, else it begins anew. SIGINT and SIGTERM end the runs
    that have begun.

    Args:
        planned: The runs.
        out: Folder of all runs; a run's output is in `<name>.txt` beside its folder.
        hardware: What each run is given.
        arguments: Which say so to `gem-bench run`, and further ones.
        jobs: Most runs at a time.
        say: Called with a line when a run begins or ends, and with the state of each run.
        every_s: Seconds between two states of a run.

    Raises:
        ConfigurationError: A folder holds another run than the planned one; nothing was started.
        RecordError: A folder cannot be read or written.
    """
    done = {run.name for run in planned if _finished(run, out / run.name, hardware)}
    statuses = dict.fromkeys((run.name for run in planned if run.name in done), "finished")
    waiting = iter([run for run in planned if run.name not in done])
    forking = any(_is_forked(r) for r in planned if r.name not in done) and forks.load()
    if done:
        say(f"{len(done)} of {len(planned)} runs are finished already")
    running: dict[str, tuple[_Process, float]] = {}
    followed: dict[str, Follower] = {}
    told = time.monotonic()
    with ExitStack() as stack:
        received = stack.enter_context(signals_collected())
        stack.callback(_end, running)
        while True:
            while len(running) < jobs and not received:
                run = next(waiting, None)
                if run is None:
                    break
                process = _start(run, out, hardware, arguments, forking and _is_forked(run))
                running[run.name] = process, time.monotonic()
                followed[run.name] = Follower(out / run.name)
                say(f"{run.name}: begins ({len(statuses) + len(running)} of {len(planned)})")
            if not running or received:
                break
            time.sleep(_POLL_S)
            if time.monotonic() - told >= every_s:
                told = time.monotonic()
                for name in running:
                    followed[name].poll_all()
                    say(State.of(followed[name]).line())
            for name, (process, began) in list(running.items()):
                code = process.poll()
                if code is not None:
                    del running[name]
                    statuses[name] = _status(code)
                    took = clock(time.monotonic() - began)
                    where = "" if code == 0 else f"; {out / name}.txt says why"
                    say(f"{name}: {statuses[name]} after {took}{where}")
    return {run.name: statuses.get(run.name, "interrupted") for run in planned}


def _expanded(part: RunsPart, folder: Path, changes: Changes) -> Iterator[Planned]:
    path = folder / part.spec
    varied, fixed = dict(_dotted(part.vary)), dict(_dotted(part.set))
    for key, values in varied.items():
        if not isinstance(values, list) or not values:
            raise ConfigurationError(f"runs.vary.{key} must be an array of values, got {values!r}")
    changed: list[str] = []
    for override in changes.overrides:
        key, _, value = map(str.strip, override.partition("="))
        if key in varied:  # one value instead of several, which names the folder
            varied[key] = [value]
        for other in varied:
            if other.startswith(f"{key}."):
                raise ConfigurationError(
                    f"--set {key}: this part varies {other}, which names its folders; set that"
                )
        changed.append(key)
    if "seed" in (*varied, *fixed, *changed):
        raise ConfigurationError("seed: a sweep's seeds are in `seeds` (`--seeds`)")
    combinations = list(itertools.product(*varied.values()))
    trainers = [each for each in part.to if changes.to is None or each in changes.to]
    seeds = part.seeds if changes.seeds is None else changes.seeds
    for trainer, values, seed in itertools.product(trainers, combinations, seeds):
        given = fixed | dict(zip(varied, values, strict=True))
        overrides = (*(f"{k}={json.dumps(v)}" for k, v in given.items()), *changes.overrides)
        spec = load_spec(path, overrides)
        spec = replace(
            spec,
            seed=seed,
            env=tuple(replace(env, seed=env.seed + seed * SEED_STEP) for env in spec.env),
        )
        single = isinstance(spec.to_mapping()["env"], dict)
        firsts = (
            f"env.{'' if single else f'{index}.'}seed={env.seed}"
            for index, env in enumerate(spec.env)
        )
        overrides = (*overrides, f"seed={seed}", *firsts)
        name = "-".join([part.name or path.stem, trainer, *map(_word, values), str(seed)])
        yield Planned(name, path, trainer, overrides, spec)


def _dotted(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted(value, f"{path}{key}.")
        else:
            yield path + key, value


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.]+", "_", text).strip("_")


def _finished(run: Planned, folder: Path, hardware: Hardware) -> bool:
    """Return whether a folder holds the run from its begin to its end."""
    if not (folder / RUN).exists():
        return False
    earlier = read_run(folder).meta
    given = {
        "trainer": run.trainer,
        "spec": run.spec.to_mapping(),
        "hardware": hardware.to_mapping(),
    }
    check_begun_alike(folder, earlier, given)
    return earlier.get("status") == "finished"


def _is_forked(run: Planned) -> bool:
    return run.trainer == "reference"


def _start(
    run: Planned, out: Path, hardware: Hardware, arguments: Sequence[str], forked: bool
) -> _Process:
    goes_on = hardware.checkpoint_every is not None and (out / run.name / RUN).exists()
    settings = [word for override in run.overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "gem_bench", "run", str(run.path), "--to", run.trainer]
    command += ["--out", str(out / run.name), "--resume" if goes_on else "--overwrite"]
    command += [*settings, *arguments]
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (out / f"{run.name}.txt").open("ab" if goes_on else "wb") as log:
            log.write(f"{shlex.join(command)}\n".encode())
            log.flush()
            if forked:
                from gem_bench.__main__ import main

                return forks.Forked(partial(main, forks=True), command[3:], log=log)
            # In a session of its own, so that Ctrl-C reaches it through `_end` alone.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise RecordError(f"cannot start {run.name}: {error}") from error


def _end(running: Mapping[str, tuple[_Process, float]]) -> None:
    """Ask runs to end, and wait: each ends its own processes."""
    for process, _ in running.values():
        process.send_signal(signal.SIGTERM)
    for process, _ in running.values():
        process.wait()


def _status(code: int) -> str:
    return next((name for name, exit_code in STATUSES.items() if exit_code == code), "failed")
