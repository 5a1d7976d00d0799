"""Runs of a trainer and of the reference that `gem_bench.conformance` can compare.

- `run_with_rows`: one run that records what the trainer trains on.
- `run_both`: the reference and a trainer, one after the other, on the same experiment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem_bench.conformance import check_greedy
from gem_bench.run import Outcome, run
from gem_train.experiment.runspec import RunSpec
from gem_train.packed import VARIABLE

EXPERIMENT = Path(__file__).with_name("guess-easy-greedy.toml")
"""The RunSpec that trainers are compared on: greedy, fp32, a tiny model, ten iterations."""
REFERENCE = "reference"


def run_with_rows(spec: RunSpec, *, trainer: str, run_dir: Path, **options: Any) -> Outcome:
    """Run `spec` with `trainer`, which records all episodes with its own training rows.

    Args:
        spec: The experiment.
        trainer: Name of an adapter.
        run_dir: Folder of the record.
        **options: Of `gem_bench.run.run`.
    """
    environment = {"GEM_RECORD_ROWS": "1", VARIABLE: "all"}
    return run(spec, trainer=trainer, run_dir=run_dir, environment=environment, **options)


def run_both(
    spec: RunSpec, *, trainer: str, out: Path, python: Path | None = None, **options: Any
) -> Iterator[tuple[str, Path, Outcome]]:
    """Run the reference, then `trainer`; yield name, folder and outcome of each when it has ended.

    Args:
        spec: The experiment, greedy.
        trainer: Name of an adapter.
        out: Folder of the two run folders, `reference` and the trainer's name.
        python: Interpreter of the trainer's environment.
        **options: Of `gem_bench.run.run`.

    Raises:
        ConfigurationError: The trainer is the reference, the experiment samples, or a run cannot be
            started.
    """
    if trainer == REFERENCE:
        raise ConfigurationError("the reference is what trainers are compared with; name another")
    check_greedy(spec)
    for name, interpreter in ((REFERENCE, None), (trainer, python)):
        folder = out / name
        yield (
            name,
            folder,
            run_with_rows(spec, trainer=name, run_dir=folder, python=interpreter, **options),
        )
