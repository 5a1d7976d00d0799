"""Going on with a run that ended too early: it must be the same run, and nothing of it may live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem_bench.processes import name_of, of_run
from gem_bench.provenance import decisive
from gem_train.record import RUN, read_run
from gem_train.resuming import check_same

_FREE = ("hardware.logger", "hardware.executor")
"""What may differ: where a trainer logs."""


def earlier_run(run_dir: Path) -> dict[str, Any]:
    """Return the `run.json` of the run in a folder.

    Raises:
        ConfigurationError: There is none, or it is not of gem-bench.
        RecordError: It cannot be read.
    """
    if not (run_dir / RUN).exists():
        raise ConfigurationError(
            f"--resume: {run_dir} holds no run of gem-bench ({RUN} is not there); leave --resume "
            "out to begin one"
        )
    found = read_run(run_dir).meta
    if "command" not in found:
        raise ConfigurationError(
            f"--resume: the run in {run_dir} was not begun by gem-bench; start the trainer's own "
            "command again"
        )
    return found


def check_begun_alike(run_dir: Path, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was begun otherwise.

    Args:
        run_dir: Its folder.
        earlier: Its `run.json`.
        now: Entries of this start's.

    Raises:
        ConfigurationError: They differ; the message has the keys and both values.
    """
    before = {key: earlier.get(key, {}) for key in now}
    if "versions" in before:
        before["versions"] = decisive(before["versions"])
    check_same(run_dir, before, now, _FREE)


def check_ended(run_dir: Path, earlier: Mapping[str, Any]) -> None:
    """Refuse to touch a run whose processes still live, for instance after gem-bench was killed.

    Raises:
        ConfigurationError: Some do; the message has their ids.
    """
    alive = of_run(earlier["run_id"]) if "run_id" in earlier else []
    if alive:
        named = ", ".join(f"{pid} ({name_of(pid)})" for pid in alive)
        raise ConfigurationError(
            f"processes of the run in {run_dir} are still alive: {named}. Wait for them, or end "
            f"them: kill -9 {' '.join(map(str, alive))}"
        )


def goes_on(iteration: int, recorded: int) -> str:
    """Say where a resumed run goes on, from its first iteration and how many were recorded."""
    if iteration == 0:
        return "begins again at iteration 0: the trainer loaded no checkpoint"
    text = f"goes on from iteration {iteration}"
    if recorded > iteration:
        text += f"; what was recorded of {recorded - iteration} later ones is set aside"
    return text
