"""What the adapters of all trainers have in common.

- `Source`, `parse_sources`, `encode_task`, `decode_task`: tasks in a trainer's dataset.
- `make_dataset`: the command that writes them into a file, where a trainer reads one.
- `Settings`: how episodes are played, the same keys in every trainer.
- `check_failures`: when a batch has lost too much to train on; `failure_reasons`: to what.
- `require`: the supported versions of a trainer.
- `Check`, `ProblemError`, `doctor`: what `python -m gem_<trainer>.doctor` is made of.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote

from gem.errors import (
    ConfigurationError,
    GemError,
    MissingExtraError,
    RolloutError,
    UnsupportedVersionError,
)
from gem.rollout.context import check_context
from gem.rollout.environment import STEP_TIMEOUT_S
from gem.tasks import Task, TaskSet
from gem.trajectory import Failure

SettingsT = TypeVar("SettingsT", bound="Settings")
MAX_FAILED_FRACTION = 0.1
"""Default of `Settings.max_failed_fraction`."""


@dataclass(frozen=True)
class Source:
    """A task set and how it is to be evaluated on."""

    tasks: TaskSet
    name: str
    """Name in the trainer's metrics."""
    temperature: float | None = None
    """Sampling temperature instead of the configured one; 0 is greedy."""

    @classmethod
    def parse(cls, text: str) -> Source:
        """Parse `<task set URI>[#name=...&temperature=...]`; the name is by default the id.

        Raises:
            ConfigurationError: It is malformed; the message names the part.
        """
        uri, _, fragment = text.partition("#")
        tasks = TaskSet.parse(uri)
        options = dict(parse_qsl(fragment, keep_blank_values=True))
        name = options.pop("name", tasks.env_id)
        temperature = options.pop("temperature", None)
        try:
            value = None if temperature is None else float(temperature)
        except ValueError:
            value = -1.0
        if options or not name or (value is not None and not 0 <= value < math.inf):
            raise ConfigurationError(
                f"{text!r}: after '#' may stand name=<text> and temperature=<number >= 0>"
            )
        return cls(tasks, name, value)

    @property
    def text(self) -> str:
        """What `parse` reads back."""
        options = f"name={quote(self.name)}"
        if self.temperature is not None:
            options += f"&temperature={self.temperature!r}"
        return f"{self.tasks.uri}#{options}"


def parse_sources(texts: Sequence[str], key: str, *, unique: bool = True) -> list[Source]:
    """Parse several sources.

    Args:
        texts: See `Source.parse`.
        key: Setting that is named in messages.
        unique: Whether each must have a name of its own, as evaluations must.

    Raises:
        ConfigurationError: One is malformed, or two have the same name.
    """
    found = [Source.parse(text) for text in texts]
    if unique:
        check_names([source.name for source in found], key)
    return found


def check_names(names: Sequence[str], key: str) -> None:
    """Raise `ConfigurationError` if two evaluations have the same name; it begins with `key`."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"{key}: two evaluations are called {name!r}; names are given as #name=..."
            )


def make_dataset(
    write: Callable[..., str], argv: Sequence[str] | None, *, program: str, trainer: str
) -> int:
    """Be the command `<program> [--eval] FILE URI...`; return its exit status.

    Args:
        write: `write(uris, evaluation=...)` returns the file's text, a line for each task.
        argv: Arguments; None takes those of this process.
        program: Name of the command.
        trainer: Whose dataset it is.
    """
    parser = argparse.ArgumentParser(
        prog=program, description=f"Write seeded tasks of environments as a dataset of {trainer}."
    )
    parser.add_argument("file", type=Path, help="file to write, *.jsonl")
    parser.add_argument("uri", nargs="+", help="gem:<env id>?n=..&seed=..[#name=..&temperature=..]")
    parser.add_argument("--eval", action="store_true", help="for evaluation")
    args = parser.parse_args(argv)
    try:
        text = write(args.uri, evaluation=args.eval)
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(text, encoding="utf-8")
    except (GemError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{args.file}: {text.count(chr(10))} tasks")
    return 0


def encode_task(task: Task, temperature: float | None = None) -> str:
    """Pack a task into one column of a dataset."""
    return json.dumps({**task.to_dict(), "temperature": temperature})


def decode_task(text: str) -> tuple[Task, float | None]:
    """Unpack `encode_task`: the task and its own sampling temperature, if it has one.

    Raises:
        ConfigurationError: The text is something else.
    """
    try:
        data = json.loads(text)
        return Task.from_dict(data), data["temperature"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"not a task of a GEM dataset: {text[:200]!r}") from error


@dataclass(frozen=True)
class Settings:
    """How an adapter plays episodes; a subclass may add keys of its own."""

    context: str = "chat"
    """What the policy is shown: `chat`, `concat`, `concat_with_action`, `window:<k>`."""
    system_prompt: str | None = None
    """Text of a system message before everything else."""
    turn_tokens: int | None = None
    """Most tokens sampled in one turn; by default all that fit into the response."""
    turns: int | None = None
    """Most turns of an episode, besides the environment's own limit."""
    retries: int = 1
    """Further attempts, each with a new environment, after an environment failed."""
    step_timeout_s: float | None = STEP_TIMEOUT_S
    """Limit of one environment reset or step in seconds; None for no limit."""
    seed: int | None = None
    """Seed every sampled turn on its own, so that the order of requests does not matter."""
    max_failed_fraction: float = MAX_FAILED_FRACTION
    """Share of failed episodes in a batch above which the run stops."""
    record_dir: str | None = None
    """Folder for `gem.record` files."""

    @classmethod
    def from_mapping(cls: type[SettingsT], table: Mapping[str, Any]) -> SettingsT:
        """Read and check a table of settings, called `gem` in messages.

        Raises:
            ConfigurationError: A key is unknown or its value is of the wrong type or range.
        """
        known = {field.name: field for field in fields(cls)}
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean gem.{near[0]}?" if near else f"known: {', '.join(known)}"
                raise ConfigurationError(f"unknown key gem.{key}; {hint}")
        settings = cls(**{str(key): table[key] for key in table})
        settings.check()
        return settings

    def check(self) -> None:
        """Raise `ConfigurationError` if a value is of the wrong type or range."""
        types: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}
        for field in fields(self):
            value = getattr(self, field.name)
            name, _, optional = str(field.type).partition(" | ")
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, types[name]):
                raise ConfigurationError(f"gem.{field.name} must be of type {name}, got {value!r}")
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigurationError(f"gem.{field.name} must be finite, got {value}")
        try:
            check_context(self.context)
        except ConfigurationError as error:
            raise ConfigurationError(f"gem.context: {error}") from None
        for key, least in (("turn_tokens", 1), ("turns", 1), ("retries", 0), ("seed", 0)):
            value = getattr(self, key)
            if value is not None and value < least:
                raise ConfigurationError(f"gem.{key} must be at least {least}, got {value}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and value is not None and value <= 0:
                raise ConfigurationError(f"gem.{field.name} must be above 0, got {value}")
        if not 0 <= self.max_failed_fraction <= 1:
            raise ConfigurationError(
                f"gem.max_failed_fraction must be within [0, 1], got {self.max_failed_fraction}"
            )


def check_failures(
    valid: Sequence[bool],
    limit: float = MAX_FAILED_FRACTION,
    failures: Iterable[Failure | None] = (),
    *,
    batch: str = "this batch",
) -> int:
    """Return the number of failed episodes.

    Args:
        valid: For each episode of a batch, whether it did not fail.
        limit: Largest share of failed episodes that training may go on with.
        failures: What is known of them; None is left out.
        batch: What the message calls it.

    Raises:
        RolloutError: Too many failed, or all. The message says of what causes.
    """
    failed = sum(not each for each in valid)
    if failed == len(valid) or failed > limit * len(valid):
        raise RolloutError(
            f"{failed} of {len(valid)} episodes of {batch} failed; at most a share of "
            f"{limit:g} may. {failure_reasons(failures) or 'The reasons are in the log.'}"
        )
    return failed


def failure_reasons(failures: Iterable[Failure | None]) -> str:
    """Return how many episodes failed of which cause, with a message for each; maybe empty.

    Args:
        failures: Of a batch; None is left out.
    """
    messages: dict[str, list[str]] = {}
    for failure in failures:
        if failure is not None:
            messages.setdefault(failure.cause, []).append(failure.message)
    causes = (f"{cause} {len(each)} ({each[0]})" for cause, each in messages.items())
    return f"By cause: {', '.join(causes)}." if messages else ""


def require(distribution: str, supported: str, *, by: str, install: str) -> str:
    """Return the installed version of a trainer.

    Args:
        distribution: Its name on the package index.
        supported: Version specifier, such as `>=0.9.1,<0.10`.
        by: Name and version of the adapter, for messages.
        install: Command that installs a supported version.

    Raises:
        MissingExtraError: It is not installed.
        UnsupportedVersionError: Its version is not supported.
    """
    try:
        found = version(distribution)
    except PackageNotFoundError:
        raise MissingExtraError(
            f"{distribution} is not installed; install it with: {install}"
        ) from None
    # packaging comes with every trainer; it is no dependency of what must work without one.
    from packaging.specifiers import SpecifierSet

    if not SpecifierSet(supported).contains(found, prereleases=True):
        raise UnsupportedVersionError(
            f"{distribution} {found} is installed, {by} supports {distribution} {supported}; "
            f"install a supported one with: {install}"
        )
    return found


class ProblemError(Exception):
    """What is wrong with an installation and what to do about it."""


Check: TypeAlias = Callable[[], str]
"""Returns a line that says what was found; raises `ProblemError` or `GemError`."""


def examine(checks: Sequence[Check]) -> Iterator[tuple[bool, str]]:
    """Yield for each check whether it passed and a line about it; ends at the first problem.

    Args:
        checks: In order; one may rely on those before it.
    """
    for check in checks:
        try:
            yield True, check()
        except (ProblemError, GemError) as error:
            yield False, str(error)
            return


def doctor(checks: Sequence[Check]) -> int:
    """Print the findings; return the exit status, 1 if something is wrong."""
    passed = True
    for passed, line in examine(checks):
        print(f"{'ok     ' if passed else 'PROBLEM'}  {line}")
    return 0 if passed else 1
