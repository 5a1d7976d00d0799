"""How trainers divide the same batch: one table of passes, padding and optimiser steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, GemError, MissingExtraError
from gem_bench.adapters import WITH_ADAPTERS, compile_launch
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import Launch
from gem_train.passes import Passes

TRAINERS = ("reference", *WITH_ADAPTERS)

ROWS = {
    "packed": "packed: as many as fit, one after the other",
    "dynamic": "dynamic: as many as fit, side by side",
    "fixed": "a fixed number, side by side",
    "server": "the server decides",
}
"""What `Passes.layout` means."""


def compiled(trainer: str, spec: RunSpec, **how: Any) -> tuple[Launch, MissingExtraError | None]:
    """Compile a command, also where the trainer is missing; see `compile_launch`.

    Returns:
        The command, and what is missing to run it here.
    """
    try:
        return compile_launch(trainer, spec, **how).launch, None
    except MissingExtraError as missing:
        return compile_launch(trainer, spec, **how, unchecked=True).launch, missing


def divide(
    spec: RunSpec, hardware: Hardware, out: Path, trainers: Sequence[str] = TRAINERS
) -> dict[str, Passes | GemError]:
    """Ask each trainer's adapter how it divides the batches of an experiment.

    Args:
        spec: The experiment.
        hardware: What it is to run on.
        out: Folder of the runs' folders; nothing is written.
        trainers: Names of adapters.

    Returns:
        By trainer, what its adapter answers, or why there is no answer: the trainer cannot run the
        experiment, or its adapter is not here.
    """
    found: dict[str, Passes | GemError] = {}
    for trainer in trainers:
        try:
            launch, _ = compiled(trainer, spec, run_dir=out / trainer, hardware=hardware)
        except GemError as error:
            found[trainer] = error
            continue
        unknown = ConfigurationError("its adapter does not tell how batches are divided")
        found[trainer] = launch.passes or unknown
    return found


def table(found: Mapping[str, Passes | GemError]) -> Iterator[str]:
    """Yield the lines of the table; below it, why a trainer is not in it."""
    cells = [["trainer", "rows of a pass", "most tokens", "padding", "optimiser steps"]]
    missing = []
    for trainer, passes in found.items():
        if isinstance(passes, GemError):
            missing.append(f"{trainer}: {str(passes).partition(chr(10))[0]}")
            continue
        rows = ROWS[passes.layout] if passes.rows is None else f"{passes.rows:,}, side by side"
        most = "not known" if passes.tokens is None else f"{passes.tokens:,}"
        cells.append([trainer, rows, most, passes.padding, f"{passes.steps:,}"])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield (
        "A pass is a forward and backward pass of a data-parallel rank, with at most so many "
        "tokens, padding included; optimiser steps are of an iteration."
    )
    if missing:
        yield "not in the table:"
        yield from (f"  {line}" for line in missing)


def to_mapping(found: Mapping[str, Passes | GemError]) -> dict[str, Any]:
    """Return the table as JSON, with the trainers' settings from which it was read."""
    return {
        trainer: {"error": str(each)} if isinstance(each, GemError) else asdict(each)
        for trainer, each in found.items()
    }
