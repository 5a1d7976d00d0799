"""A trainer's native command, and what an adapter is to the programs that ask for one.

- `Launch`: a trainer's native command with its environment and files.
- `Adapter`: what an entry point of the group `gem.adapters` provides.

`python -m gem_train.launch NAME --run-dir DIR` reads `{"spec": ..., "hardware": ...}` as JSON
from standard input and writes the `Launch` of adapter NAME as JSON. Trainers live in virtual
environments of their own; this is how a program in another one asks them for their command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, exit_status
from gem.executors.named import VARIABLE
from gem.json_lines import parse_as
from gem.multi import ALL
from gem.plugins import entry_point, installed
from gem.tables import flatten
from gem_train import pairs
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.judges import CACHE_FILES, judges_file, judges_variable
from gem_train.passes import Passes
from gem_train.platforms import Platform
from gem_train.settings import NO_STATE, Refusal, refuse_values
from gem_train.table import Parity, Run, Table

ENTRY_POINT_GROUP = "gem.adapters"


def executor_variable(hardware: Hardware) -> dict[str, str]:
    """Return the environment of a program that is told by it where environments run."""
    return {} if hardware.executor is None else {VARIABLE: hardware.executor}


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
    parity: list[Parity] = field(default_factory=list)
    """How each setting of the RunSpec and the hardware is realised, and what differs besides."""
    state: list[str] = field(default_factory=list)
    """Files and folders in the run folder, beside the record, that the trainer would go on from if
    an earlier run had left them."""
    untold: dict[str, str] = field(default_factory=dict)
    """Metrics of the record (`gem_train.experiment.agreement`, `clip_fraction`) that the trainer
    cannot give in this run, and why."""
    passes: Passes | None = None
    """How the trainer divides a batch, as its settings say; None: the adapter does not tell."""
    images: bool = False
    """Whether environments may show images."""

    @classmethod
    def of(
        cls,
        spec: RunSpec,
        argv: Sequence[str],
        platform: Platform,
        env: Mapping[str, str] | None = None,
        **others: Any,
    ) -> Launch:
        """Make the launch of a command on a platform.

        Args:
            spec: The experiment; where its model is a folder, no model hub is asked.
            argv: The trainer's command, with the platform's settings.
            platform: What the machine adds; its environment wins.
            env: The trainer's environment variables.
            **others: Further fields.
        """
        offline = {"HF_HUB_OFFLINE": "1"} if Path(spec.policy.model).exists() else {}
        return cls(
            argv=[*platform.before, *argv],
            env={**offline, **(env or {}), **platform.env},
            unset=platform.unset,
            state=[*others.pop("state", ()), *platform.state],
            **others,
        )

    def to_json(self) -> str:
        """Return JSON that `from_json` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Launch:
        """Rebuild from `to_json`."""
        data = parse_as(text, dict[str, Any], "the command")
        parity = [Parity(**each) for each in data["parity"]]
        passes = data.get("passes")
        return cls(**{**data, "parity": parity, "passes": passes and Passes(**passes)})


@dataclass(frozen=True)
class Adapter:
    """What an entry point of the group `gem.adapters` names."""

    trainer: str
    """Name of the trainer's distribution, such as `verl`."""
    supported: str
    """Supported versions of it, such as `>=0.9.1,<0.10`."""
    venv: str
    """Name of the virtual environment that `make env-<name>` builds."""
    table: Table
    """How the trainer realises every setting."""
    compiler: Callable[[Run], Launch]
    """Makes the command of a run that the table does not refuse, without its parity."""
    _: KW_ONLY
    check: Callable[[], object] = lambda: None
    """Raises `MissingExtraError` or `UnsupportedVersionError` where a supported version of the
    trainer is not installed."""
    all_seats: bool = False
    """Whether it trains all seats of a match (`seat=all`)."""
    images: bool = False
    """Whether it trains on images (`gem.rollout.vision`)."""
    keeps_state: bool = False
    """Whether it keeps the state of an estimator from batch to batch, also in its checkpoints."""
    pairs: tuple[pairs.Pair, ...] = ()
    """Which settings of the hardware work together. A pair without a row stops the compile."""
    attention: str | None = None
    """The only implementation of attention that the trainer has, if it has only one."""

    def compile(
        self, spec: RunSpec, *, run_dir: Path, hardware: Hardware, unchecked: bool = False
    ) -> Launch:
        """Return the trainer's native command for a spec.

        Args:
            spec: The experiment.
            run_dir: Absolute folder where the run leaves its record and files.
            hardware: What the run is given.
            unchecked: Whether the trainer may be missing; the command is then for reading only.

        Raises:
            ConfigurationError: The trainer cannot run this spec; the message names the key. Or a
                pair of settings is refused, or nobody has said whether it works.
            MissingExtraError: The trainer is missing.
            UnsupportedVersionError: The trainer is of an unsupported version.
        """
        name, values = self.trainer, flatten(spec.settings())
        one = f"{name} trains one seat of a match; opponent=self lets the policy play the others"
        stateless = f"{name} keeps no state of an estimator from batch to batch; {NO_STATE}"
        seats = [] if self.all_seats else [key for key in values if key.endswith(".params.seat")]
        stateful = spec.algorithm.estimator.keeps_state and not self.keeps_state
        found: list[Refusal] = [(key, values[key] == ALL, one) for key in seats]
        refuse_values(values, [*found, ("algorithm.advantage", stateful, stateless)])
        run = self.table.run(spec, run_dir, hardware)
        self.table.refuse(run)
        if not unchecked:
            self.check()
        made = self.compiler(run)
        made = replace(
            made,
            env={**judges_variable(spec, run_dir), **made.env},
            files={**made.files, **judges_file(spec, run_dir)},
            state=[*made.state, *(CACHE_FILES if spec.judge else ())],
        )
        untried = list(pairs.check(self.pairs, spec, hardware, self.attention or run.attention))
        together = [Parity("together", "untried", "; ".join(untried))] if untried else []
        return replace(
            made,
            images=self.images,
            parity=[*self.table.parity(run), *made.parity, *together],
            untold={**self.table.missing(run), **made.untold},
        )


def unknown_trainer(name: str, known: Iterable[str]) -> str:
    """Say that there is no adapter of this name, which ones there are, and which may be meant."""
    close = get_close_matches(name, sorted(known), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no adapter for trainer {name!r}; known: {', '.join(sorted(known)) or 'none'}{hint}"


def find_adapter(name: str) -> Adapter:
    """Return the installed adapter called `name`.

    Raises:
        ConfigurationError: No such adapter is installed here.
    """
    entry = entry_point(ENTRY_POINT_GROUP, name, "trainer")
    if entry is None:
        raise ConfigurationError(unknown_trainer(name, installed(ENTRY_POINT_GROUP)))
    adapter: Adapter = entry.load()
    return adapter


def main(argv: list[str] | None = None) -> int:
    """Compile what is on standard input; exit status 2 and a message if that is impossible."""
    parser = argparse.ArgumentParser(prog="python -m gem_train.launch")
    parser.add_argument("adapter")
    parser.add_argument("--run-dir", type=Path, required=True)
    args = parser.parse_args(argv)

    def compile_spec() -> None:
        asked = parse_as(sys.stdin.read(), dict[str, dict[str, Any]], "standard input")
        launch = find_adapter(args.adapter).compile(
            RunSpec.from_mapping(asked["spec"]),
            run_dir=args.run_dir.absolute(),
            hardware=Hardware.from_mapping(asked["hardware"]),
        )
        sys.stdout.write(launch.to_json() + "\n")

    return exit_status(compile_spec)


if __name__ == "__main__":
    sys.exit(main())
