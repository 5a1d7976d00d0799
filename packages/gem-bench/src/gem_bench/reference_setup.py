"""Set-up of a reference run: reads the spec, refuses unsupported settings, opens the record."""

from __future__ import annotations

from pathlib import Path

from gem.errors import ConfigurationError
from gem_bench.models import resolved
from gem_train.experiment.runspec import RunSpec
from gem_train.record import METRICS, read_run
from gem_train.recording import RunRecording

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints, in the record's."""


def read_spec(path: Path) -> RunSpec:
    """Read a RunSpec from a `.toml` or `.json` file; resolve its model.

    Raises:
        ConfigurationError: The file cannot be read, is not a RunSpec, or names no model.
        MissingExtraError: The spec names a model of gem-cpu and gem-cpu is not installed.
    """
    return resolved(RunSpec.read(path))


def check_supported(spec: RunSpec) -> None:
    """Refuse settings that this trainer would otherwise ignore.

    Raises:
        ConfigurationError: A setting is unsupported; the message names key, value and options.
    """
    grouped = spec.algorithm.estimator.compares == "group"
    if grouped and spec.training.group_size < 2:
        raise ConfigurationError(
            f"training.group_size: {spec.algorithm.advantage} compares episodes of one task and "
            f"needs at least 2, got {spec.training.group_size}"
        )


def check_positions(spec: RunSpec, positions: int | None) -> None:
    """Refuse episodes that may be longer than the model's context; None for no limit.

    Raises:
        ConfigurationError: They may be longer; the message names both numbers.
    """
    wanted = spec.policy.prompt_tokens + spec.policy.response_tokens
    if positions is not None and wanted > positions:
        raise ConfigurationError(
            f"policy.prompt_tokens + policy.response_tokens is {wanted}, but the model has "
            f"{positions} positions"
        )


def success_rates(
    spec: RunSpec, folder: str | Path, iteration: int
) -> dict[str, list[float | None]]:
    """Return what decides about parameters that depend on the success rate.

    Args:
        spec: The experiment.
        folder: Of the record.
        iteration: The next one.

    Returns:
        The success rate of each such environment, by name, in each earlier iteration.

    Raises:
        RecordError: The record cannot be read.
    """
    waiting = [env for env in spec.env if env.adaptive]
    if not waiting or not iteration:
        return {}
    lines = [m for m in read_run(folder).metrics if m["split"] == "train"]
    before = {m["iteration"]: m for m in lines if m["iteration"] < iteration}
    named = len(spec.env) > 1 or spec.env[0].name is not None
    return {
        env.shown: [
            before.get(k, {}).get(f"env/{env.shown}/success_rate" if named else "success_rate")
            for k in range(iteration)
        ]
        for env in waiting
    }


def open_record(spec: RunSpec, folder: str | Path, *, again: bool = False) -> RunRecording:
    """Return the recording of a run.

    Args:
        spec: The experiment.
        folder: Of the record.
        again: Whether the run may have a record already, which it goes on with.

    Raises:
        ConfigurationError: The folder holds the record of another run.
    """
    if (Path(folder) / METRICS).exists() and not again:
        raise ConfigurationError(f"{folder} holds the record of another run; choose a new folder")
    about = {"trainer": "reference", "spec": spec.to_mapping(), "model": spec.policy.model}
    return RunRecording(folder, about, info=spec.training.info_metrics)
