"""What an adapter makes of a RunSpec: a trainer's native command, and parity knob by knob.

- `Knob`: how faithfully a trainer realises one setting of the spec (parity).
- `Launch`: a trainer's native command with its environment and files.
- `Adapter`: what an entry point of the group `gem.adapters` provides.

`python -m gem.training.launch NAME --run-dir DIR [--cpu]` reads a RunSpec as JSON from standard
input and writes the `Launch` of adapter NAME as JSON. Trainers live in virtual environments of
their own; this is how a program in another one asks them for their command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal, Protocol

from gem.errors import ConfigurationError, GemError
from gem.tables import flatten
from gem.training.runspec import RunSpec

ENTRY_POINT_GROUP = "gem.adapters"


@dataclass(frozen=True)
class Knob:
    """How a trainer realises one setting."""

    name: str
    """Key of the RunSpec, or the trainer's own name for something the spec cannot say."""
    status: Literal["matched", "emulated", "unmatched"]
    how: str = ""
    """By which of the trainer's settings; why not, where unmatched."""


def parity(spec: RunSpec, how: Mapping[str, str], departures: Iterable[Knob] = ()) -> list[Knob]:
    """Say of every setting of a spec how it reaches a trainer.

    Args:
        spec: The experiment.
        how: By which of the trainer's settings, for a key of the spec or for all of its table.
        departures: What is not matched; entries that name no key of the spec come last.
    """
    left = {knob.name: knob for knob in departures}
    knobs = [
        left.pop(name)
        if name in left
        else Knob(name, "matched", how.get(name) or how[name.split(".")[0]])
        for name in flatten(spec.to_mapping())
    ]
    return [*knobs, *left.values()]


@dataclass(frozen=True)
class Launch:
    """A trainer's native command, ready to start."""

    argv: list[str]
    """Command line; the first word is found on the trainer's PATH."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables to add."""
    unset: list[str] = field(default_factory=list)
    """Environment variables to remove."""
    files: dict[str, str] = field(default_factory=dict)
    """Files to write into the run folder before the start: relative path, content."""
    parity: list[Knob] = field(default_factory=list)
    """One entry per setting of the RunSpec."""
    state: list[str] = field(default_factory=list)
    """Files and folders in the run folder, beside the record, that the trainer would go on from if
    an earlier run had left them."""

    def to_json(self) -> str:
        """Return JSON that `from_json` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Launch:
        """Rebuild from `to_json`."""
        data = json.loads(text)
        return cls(**{**data, "parity": [Knob(**k) for k in data["parity"]]})


class Adapter(Protocol):
    """What an entry point of the group `gem.adapters` names."""

    trainer: str
    """Name of the trainer's distribution, such as `verl`."""
    supported: str
    """Supported versions of it, such as `>=0.9.1,<0.10`."""
    venv: str
    """Name of the virtual environment that `make env-<name>` builds."""

    def compile(self, spec: RunSpec, *, run_dir: Path, cpu: bool) -> Launch:
        """Return the trainer's native command for a spec.

        Args:
            spec: The experiment.
            run_dir: Absolute folder where the run leaves its record and files.
            cpu: Use the settings that let the trainer run without a GPU.

        Raises:
            ConfigurationError: The trainer cannot run this spec; the message names the key.
            UnsupportedVersionError: The trainer is missing or of an unsupported version.
        """


def find_adapter(name: str) -> Adapter:
    """Return the installed adapter called `name`.

    Raises:
        ConfigurationError: No such adapter is installed here.
    """
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        raise ConfigurationError(
            f"no adapter {name!r} is installed; installed: {', '.join(sorted(found)) or 'none'}. "
            f"Install it with: pip install gem-{name}"
        )
    adapter: Adapter = found[name].load()
    return adapter


def main(argv: list[str] | None = None) -> int:
    """Compile the RunSpec on standard input; exit status 2 and a message if that is impossible."""
    parser = argparse.ArgumentParser(prog="python -m gem.training.launch")
    parser.add_argument("adapter")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args(argv)
    try:
        spec = RunSpec.from_mapping(json.load(sys.stdin))
        launch = find_adapter(args.adapter).compile(
            spec, run_dir=args.run_dir.absolute(), cpu=args.cpu
        )
    except (GemError, json.JSONDecodeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(launch.to_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
