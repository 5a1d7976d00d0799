"""Runs that are killed and go on: real trainers, every process of them killed by SIGKILL.

A greedy run of ten iterations with a checkpoint every three is killed in its fifth and resumed.
What it leaves is compared with an uninterrupted run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from locks import one_at_a_time
from processes import marked, settles

from gem_train.record import METRICS, RUN, read_run

pytest.importorskip("gem_bench.runspec", reason="needs the development environment: make env-dev")
from gem_bench.processes import MARKER

ROOT = Path(__file__).parents[2]
ITERATIONS, EVERY, KILLED = 10, 3, 4
TIMEOUT_S = 900
HARDWARE = f"""\
device = "cpu"
checkpoint_every = {EVERY}
[learner]
checkpointing = false
"""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """What holds of a trainer that goes on from a checkpoint."""

    exact: bool
    """All metrics and episodes are those of an uninterrupted run, to the last bit."""
    close: tuple[str, ...] = ("return_mean",)
    """Otherwise: metrics that are equal nevertheless, rounding aside."""
    settings: tuple[str, ...] = ()
    """Further settings of the experiment, `key=value`."""
    recipe: str = "guess-easy-greedy"
    learns: str = "return_mean"
    """A metric that differs from iteration to iteration."""


TRAINERS = {
    "reference": Case(exact=True),
    "trl": Case(exact=True),
    "verl": Case(exact=True),
    # Both seats of a game: returns add up to nothing, and baselines of roles are part of the state.
    "verl, all seats": Case(exact=True, recipe="self-play/kuhn-all-greedy", learns="grad_norm"),
    "oat": Case(exact=False, close=("return_mean", "sampled_tokens", "grad_norm")),
    "rl2": Case(exact=False, close=("return_mean", "sampled_tokens", "grad_norm")),
    "skyrl": Case(exact=False, close=("return_mean", "sampled_tokens", "grad_norm")),
    "openrlhf": Case(exact=False, close=("return_mean", "grad_norm")),
    "tinker": Case(exact=True, settings=("policy.lora_rank=8", "optimizer.lr=1e-2")),
}
"""docs/resuming.md says why a trainer is not exact."""


def start(trainer: str, folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start `gem-bench run`, in the folder's parent the hardware."""
    hardware = folder.parent / "hardware.toml"
    hardware.write_text(HARDWARE)
    case = TRAINERS[trainer]
    recipe = ROOT / "recipes" / f"{case.recipe}.toml"
    command = [sys.executable, "-m", "gem_bench", "run", str(recipe)]
    command += ["--to", trainer.partition(",")[0]]
    command += ["--hardware", str(hardware), "--out", str(folder)]
    for setting in ("training.tasks=8", *case.settings):
        command += ["--set", setting]
    return subprocess.Popen([*command, *options], cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a run, which succeeds; return what it said."""
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return err


def recorded(folder: Path) -> list[int]:
    """The iterations in the record, as often as they are there."""
    path = folder / METRICS
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line["iteration"] for line in found if line["split"] == "train"]


def kill(process: subprocess.Popen[str], folder: Path) -> None:
    """Kill gem-bench first, so that it ends nothing in good order, then all of the trainer."""
    process.kill()
    process.wait()
    mark = f"{MARKER}={json.loads((folder / RUN).read_text())['run_id']}"

    def gone() -> bool:
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not marked(mark)

    assert settles(gone)


@dataclass(frozen=True)
class Resumed:
    """Two runs of one trainer."""

    trainer: str
    case: Case
    whole: Path
    folder: Path
    """Of the run that was killed and resumed."""
    before: list[int]
    """Iterations that were recorded when it was killed."""
    said: str


@pytest.fixture(scope="session", params=TRAINERS)
def resumed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    """Run a trainer twice: without an interruption, and killed and resumed."""
    trainer: str = request.param
    with one_at_a_time(trainer):
        return run_twice(trainer, tmp_path_factory.mktemp(trainer))


def run_twice(trainer: str, parent: Path) -> Resumed:
    """See `resumed`."""
    whole, folder = parent / "whole", parent / "resumed"
    finish(start(trainer, whole))
    process = start(trainer, folder)
    deadline = time.monotonic() + TIMEOUT_S
    while KILLED not in recorded(folder):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    kill(process, folder)
    before = recorded(folder)
    return Resumed(
        trainer,
        TRAINERS[trainer],
        whole,
        folder,
        before,
        finish(start(trainer, folder, "--resume")),
    )


def without_times(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics but for those that say how long something took."""
    return [{k: v for k, v in line.items() if not k.endswith("_s")} for line in metrics]


def test_a_killed_run_goes_on_from_its_checkpoint(resumed: Resumed) -> None:
    assert resumed.before == list(range(len(resumed.before)))
    meta = read_run(resumed.folder).meta
    begun = [each["iteration"] for each in meta["resumed"]]
    # A trainer may be killed before it has saved what it has recorded.
    assert begun in ([EVERY], [2 * EVERY]) and begun[0] <= len(resumed.before)
    assert f"goes on from iteration {begun[0]}" in resumed.said
    assert meta["status"] == "finished"


def test_no_iteration_is_recorded_twice_or_lost(resumed: Resumed) -> None:
    run, whole = read_run(resumed.folder), read_run(resumed.whole)
    lines = [(line["iteration"], line["split"]) for line in run.metrics]
    assert lines == [(line["iteration"], line["split"]) for line in whole.metrics]
    assert recorded(resumed.folder) == list(range(ITERATIONS))
    episodes = [(each.iteration, each.split) for each in run.episodes()]
    assert episodes == [(each.iteration, each.split) for each in whole.episodes()]
    times = [line["time_s"] for line in run.metrics]
    assert times == sorted(times)


def test_it_ends_as_if_it_had_not_been_killed(
    resumed: Resumed, keep: Callable[[str, str], None]
) -> None:
    run, whole = read_run(resumed.folder), read_run(resumed.whole)
    if resumed.case.exact:
        assert without_times(run.metrics) == without_times(whole.metrics)
        pairs = zip(run.episodes(), whole.episodes(), strict=True)
        assert all(ours.trajectory == theirs.trajectory for ours, theirs in pairs)
    for name in resumed.case.close:
        expected = [line[name] for line in whole.metrics]
        assert [line[name] for line in run.metrics] == pytest.approx(expected, rel=1e-5)
    # A run that learns nothing goes on alike without its weights.
    assert len({line[resumed.case.learns] for line in whole.metrics}) > 3
    if "," not in resumed.trainer:
        keep(resumed.trainer, "killed and resumed")
