"""Tasks as rows of a trainer's dataset, for trainers that read their prompts from a file.

- `Source`: a task set by URI, and the settings of its evaluation.
- `encode_task`, `decode_task`: a task as the text of one column.
- `DatasetRow`, `dataset_rows`, `dataset_command`: the rows of a dataset file, and the command that
  writes it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote

from gem.errors import ConfigurationError, exit_status
from gem.json_lines import parse
from gem.multi import of_one_seat
from gem.tables import build, setting
from gem.tasks import Task
from gem_train.experiment.mixtures import Tasks, parse_tasks, samples

Line: TypeAlias = "Callable[[DatasetRow], Mapping[str, Any]]"
"""Makes a trainer's columns of a row."""


@dataclass(frozen=True, kw_only=True)
class EvalSampling:
    """How the turns of an evaluation are sampled."""

    temperature: float = setting("sampling temperature; 0 is greedy", 1.0, least=0)
    top_p: float = setting("nucleus mass", 1.0, above=0, most=1)
    top_k: int = setting("number of candidates; -1 is all", -1, least=1, special=-1)
    min_p: float = setting(
        "leave out candidates that are less likely than `min_p` times the likeliest",
        0.0,
        least=0,
        most=1,
    )

    @property
    def engine(self) -> dict[str, Any]:
        """The settings under the names that vLLM and SGLang have for them."""
        return asdict(self)


@dataclass(frozen=True)
class Source:
    """A task set or mixture, and the settings of its evaluation."""

    tasks: Tasks
    name: str
    """Name in the trainer's metrics."""
    sampling: EvalSampling | None = None
    """How its turns are sampled; None: as in training."""
    samples: int = 1
    """Episodes of each task."""

    @classmethod
    def parse(cls, text: str, usual: Mapping[str, Any] | None = None) -> Source:
        """Parse `<task set URI>[#name=...&samples=...&temperature=...&top_p=...]`.

        `name` defaults to the env id. After `temperature` may stand any setting of `EvalSampling`.

        Args:
            text: The text.
            usual: Values for settings of `EvalSampling` that a text with a temperature leaves out.
                By default, those of `EvalSampling` are used.

        Raises:
            ConfigurationError: The text is malformed; the message names the part.
        """
        uri, _, fragment = text.partition("#")
        tasks = parse_tasks(uri)
        options: dict[str, Any] = {}
        for key, value in parse_qsl(fragment, keep_blank_values=True):
            if key in options:
                raise ConfigurationError(f"{text!r}: after '#' it names {key!r} twice")
            options[key] = value
        name = options.pop("name", tasks.env_id)
        numbers = {key: _number(value) for key, value in options.items()}
        samples = numbers.pop("samples", 1)
        if not name or not isinstance(samples, int) or samples < 1:
            raise ConfigurationError(f"{text!r}: needs a name, and samples above 0")
        if not numbers:
            return cls(tasks, name, samples=samples)
        if "temperature" not in numbers:
            raise ConfigurationError(f"{text!r}: {', '.join(numbers)} needs a temperature, too")
        try:
            return cls(tasks, name, build(EvalSampling, {**(usual or {}), **numbers}), samples)
        except ConfigurationError as error:
            raise ConfigurationError(f"{text!r}: after '#': {error}") from error

    @property
    def text(self) -> str:
        """Text of the source; the inverse of `parse`."""
        options = f"name={quote(self.name)}"
        if self.samples > 1:
            options += f"&samples={self.samples}"
        if self.sampling is not None:
            usual = EvalSampling().engine
            options += f"&temperature={self.sampling.temperature!r}"
            for key, value in self.sampling.engine.items():
                if key != "temperature" and value != usual[key]:
                    options += f"&{key}={value!r}"
        return f"{self.tasks.uri}#{options}"

    @property
    def plays(self) -> list[Task]:
        """The task of each episode; episodes of one task are neighbours."""
        return [task for task in self.tasks for _ in range(self.samples)]


def _number(text: str) -> Any:
    """Return the number that a text is, else the text."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return text


def parse_sources(texts: Sequence[str], key: str, *, unique: bool = True) -> list[Source]:
    """Parse several sources.

    Args:
        texts: See `Source.parse`.
        key: Setting to name in messages.
        unique: Whether names must differ, as those of evaluations must.

    Raises:
        ConfigurationError: A source is malformed, or two have the same name.
    """
    found = [Source.parse(text) for text in texts]
    if unique:
        check_names([source.name for source in found], key)
    return found


def task_at(sources: Iterable[Source], row: int) -> tuple[Source, Task]:
    """Return a task of sources that are played one after the other, and its source.

    Raises:
        IndexError: There are not so many.
    """
    left = row
    for source in sources:
        n = len(source.tasks) * source.samples
        if 0 <= left < n:
            return source, source.tasks[left // source.samples]
        left -= n
    raise IndexError(f"row {row} of {row - left}")


def check_names(names: Sequence[str], key: str) -> None:
    """Raise `ConfigurationError`, prefixed with `key`, if two evaluations have the same name."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"{key}: two evaluations are called {name!r}; names are given as #name=..."
            )


def encode_task(task: Task, sampling: EvalSampling | None = None) -> str:
    """Encode a task and how it is sampled as the text of one column of a dataset."""
    return json.dumps(_label(task, sampling))


def _label(task: Task, sampling: EvalSampling | None) -> dict[str, Any]:
    return {**task.to_dict(), "sampling": sampling and sampling.engine}


def decode_task(text: str) -> tuple[Task, EvalSampling | None]:
    """Decode the text of `encode_task`: the task, and how it is sampled or None.

    Raises:
        ConfigurationError: `encode_task` did not write this text.
    """
    try:
        data = parse(text, "the row")
        sampling = data["sampling"]
        return Task.from_dict(data), None if sampling is None else build(EvalSampling, sampling)
    except (ConfigurationError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"not a task of a GEM dataset: {text[:200]!r}") from error


@dataclass(frozen=True)
class DatasetRow:
    """A row of a dataset file; `encode` and `decode` convert it to and from one column's text."""

    task: Task
    sampling: EvalSampling | None = None
    """How it is sampled, instead of as the trainer's configuration says."""
    number: int = 0
    """Place in the file: the episodes of a row are a group."""
    name: str = ""
    """Name of its source."""
    evaluation: str | None = None
    """Name of the evaluation that the row belongs to; None in training."""

    def encode(self) -> str:
        """Return the text from which `decode` rebuilds the row, without the name."""
        label = _label(self.task, self.sampling)
        return json.dumps({**label, "number": self.number, "eval": self.evaluation})

    @classmethod
    def decode(cls, text: str) -> DatasetRow:
        """Rebuild a row.

        Raises:
            ConfigurationError: `encode` did not write this text.
        """
        task, sampling = decode_task(text)
        rest = parse(text, "the row")
        return cls(task, sampling, rest.get("number", 0), evaluation=rest.get("eval"))


def dataset_rows(texts: Sequence[str], *, evaluation: bool) -> Iterator[DatasetRow]:
    """Yield the rows of a dataset file.

    Args:
        texts: `Source` URIs, played one after the other.
        evaluation: Whether the file is for evaluation.

    Raises:
        ConfigurationError: A URI is malformed, or two evaluations have the same name.
        UnknownEnvError: No such environment.
        UnknownParameterError: The environment has no such parameter.
    """
    sources = parse_sources(texts, "dataset", unique=evaluation)
    for source in sources:
        for task in samples(source.tasks):
            replace(task, params=of_one_seat(task.env_id, task.params)).make().close()
    number = 0
    for source in sources:
        for task in source.plays:
            name = source.name
            yield DatasetRow(task, source.sampling, number, name, name if evaluation else None)
            number += 1


def dataset_text(line: Line, texts: Sequence[str], *, evaluation: bool) -> str:
    """Return the text of a JSON Lines file.

    Args:
        line: Makes the trainer's columns of a row.
        texts: See `dataset_rows`.
        evaluation: Whether the file is for evaluation.

    Raises:
        ConfigurationError: A training set has a temperature; or see `dataset_rows`.
    """
    for text in () if evaluation else texts:
        if Source.parse(text).sampling is not None:
            raise ConfigurationError(
                f"{text!r}: temperature is for evaluations; leave it out, because in training all "
                "turns are sampled as the trainer's configuration says, or make the file with "
                "--eval"
            )
    rows = dataset_rows(texts, evaluation=evaluation)
    return "".join(json.dumps(line(row)) + "\n" for row in rows)


def dataset_command(line: Line, argv: Sequence[str] | None, *, program: str, trainer: str) -> int:
    """Run the command `<program> [--eval] FILE URI...`; return its exit status.

    Args:
        line: Makes the trainer's columns of a row.
        argv: Arguments; None for those of this process.
        program: Name of the command.
        trainer: Name of the trainer, for the help text.
    """
    parser = argparse.ArgumentParser(
        prog=program, description=f"Write seeded tasks of environments as a dataset of {trainer}."
    )
    parser.add_argument("file", type=Path, help="file to write, *.jsonl")
    parser.add_argument(
        "uri",
        nargs="+",
        help="gem:<env id>?n=..&seed=..[#name=..&temperature=..&top_p=..&samples=..]",
    )
    parser.add_argument("--eval", action="store_true", help="for evaluation")
    args = parser.parse_args(argv)

    def write() -> None:
        text = dataset_text(line, args.uri, evaluation=args.eval)
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(text, encoding="utf-8")
        print(f"{args.file}: {text.count(chr(10))} tasks")

    return exit_status(write, OSError)
