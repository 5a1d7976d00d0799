"""Where a run takes place, and what that changes in a trainer's command.

An adapter compiles the settings of the experiment; a platform adds those of the machine. Platforms
are entry points of the group `gem.platforms`, called `<platform>.<trainer>`: functions that take
`(spec, run_dir, hardware, **known)` and return a `Platform`. gem-cpu provides `cpu.<trainer>`.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.plugins import entry_point
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec

ENTRY_POINT_GROUP = "gem.platforms"


@dataclass(frozen=True)
class Platform:
    """What a machine adds to a trainer's command."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the trainer."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables to add."""
    unset: list[str] = field(default_factory=list)
    """Environment variables to remove."""
    before: list[str] = field(default_factory=list)
    """Words before the trainer's command, such as a server that it is run with."""
    state: list[str] = field(default_factory=list)
    """See `gem_train.launch.Launch.state`."""


def of(
    trainer: str, spec: RunSpec, run_dir: Path, hardware: Hardware, gpu: Platform, **known: Any
) -> Platform:
    """Return the platform of a run.

    Args:
        trainer: Name of the adapter.
        spec: The experiment.
        run_dir: Absolute folder of the run.
        hardware: What the run is given; without a GPU, how many processes stand for GPUs, and how
            they are used.
        gpu: The adapter's own platform, with GPUs.
        **known: What else the function of this trainer's platform without a GPU needs.

    Raises:
        ConfigurationError: There is no GPU, and gem-cpu is not installed.
    """
    if not hardware.cpu:
        return gpu
    entry = entry_point(ENTRY_POINT_GROUP, f"cpu.{trainer}", "platform")
    if entry is None:
        raise ConfigurationError("a run without a GPU needs gem-cpu: pip install gem-cpu")
    made: Platform = entry.load()(spec, run_dir, hardware, **known)
    return made


def python_path(*folders: str | Path) -> dict[str, str]:
    """Return the environment variable that puts folders before those of `PYTHONPATH`."""
    path = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def digest(run_dir: Path) -> bytes:
    """Return 32 bytes that tell runs on one machine apart."""
    return hashlib.sha256(str(run_dir).encode()).digest()


def socket_folder(run_dir: Path) -> str:
    """Return a folder for a run's sockets, whose paths must stay under 108 characters."""
    return str(Path(tempfile.gettempdir()) / f"gem-{digest(run_dir).hex()[:8]}")
