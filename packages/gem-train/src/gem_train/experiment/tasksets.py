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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote

from gem.errors import ConfigurationError, exit_status
from gem.json_lines import parse
from gem.multi import of_one_seat
from gem.tasks import Task
from gem_train.experiment.mixtures import Tasks, parse_tasks, samples

Line: TypeAlias = "Callable[[DatasetRow], Mapping[str, Any]]"
"""Makes a trainer's columns of a row."""


@dataclass(frozen=True)
class Source:
    """A task set or mixture, and the settings of its evaluation."""

    tasks: Tasks
    name: str
    """Name in the trainer's metrics."""
    temperature: float | None = None
    """Sampling temperature instead of the configured one; 0 is greedy."""

    @classmethod
    def parse(cls, text: str) -> Source:
        """Parse `<task set URI>[#name=...&temperature=...]`; `name` defaults to the env id.

        Raises:
            ConfigurationError: The text is malformed; the message names the part.
        """
        uri, _, fragment = text.partition("#")
        tasks = parse_tasks(uri)
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
        """Text of the source; the inverse of `parse`."""
        options = f"name={quote(self.name)}"
        if self.temperature is not None:
            options += f"&temperature={self.temperature!r}"
        return f"{self.tasks.uri}#{options}"


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
        if 0 <= left < len(source.tasks):
            return source, source.tasks[left]
        left -= len(source.tasks)
    raise IndexError(f"row {row} of {row - left}")


def check_names(names: Sequence[str], key: str) -> None:
    """Raise `ConfigurationError`, prefixed with `key`, if two evaluations have the same name."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"{key}: two evaluations are called {name!r}; names are given as #name=..."
            )


def encode_task(task: Task, temperature: float | None = None) -> str:
    """Encode a task and its temperature as the text of one column of a dataset."""
    return json.dumps({**task.to_dict(), "temperature": temperature})


def decode_task(text: str) -> tuple[Task, float | None]:
    """Decode the text of `encode_task`: the task and its sampling temperature or None.

    Raises:
        ConfigurationError: `encode_task` did not write this text.
    """
    try:
        data = parse(text, "the row")
        return Task.from_dict(data), data["temperature"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"not a task of a GEM dataset: {text[:200]!r}") from error


@dataclass(frozen=True)
class DatasetRow:
    """A row of a dataset file; `encode` and `decode` convert it to and from one column's text."""

    task: Task
    temperature: float | None = None
    """Sampling temperature instead of the trainer's."""
    number: int = 0
    """Place in the file: the episodes of a row are a group."""
    name: str = ""
    """Name of its source."""
    evaluation: str | None = None
    """Name of the evaluation that the row belongs to; None in training."""

    def encode(self) -> str:
        """Return the text from which `decode` rebuilds the row, without the name."""
        label = {**self.task.to_dict(), "temperature": self.temperature}
        return json.dumps({**label, "number": self.number, "eval": self.evaluation})

    @classmethod
    def decode(cls, text: str) -> DatasetRow:
        """Rebuild a row.

        Raises:
            ConfigurationError: `encode` did not write this text.
        """
        task, temperature = decode_task(text)
        rest = parse(text, "the row")
        return cls(task, temperature, rest.get("number", 0), evaluation=rest.get("eval"))


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
        for task in source.tasks:
            name = source.name
            yield DatasetRow(task, source.temperature, number, name, name if evaluation else None)
            number += 1


def dataset_text(line: Line, texts: Sequence[str], *, evaluation: bool) -> str:
    """Return the text of a JSON Lines file.

    Args:
        line: Makes the trainer's columns of a row.
        texts: See `dataset_rows`, which also says what is raised.
        evaluation: Whether the file is for evaluation.
    """
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
    parser.add_argument("uri", nargs="+", help="gem:<env id>?n=..&seed=..[#name=..&temperature=..]")
    parser.add_argument("--eval", action="store_true", help="for evaluation")
    args = parser.parse_args(argv)

    def write() -> None:
        text = dataset_text(line, args.uri, evaluation=args.eval)
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(text, encoding="utf-8")
        print(f"{args.file}: {text.count(chr(10))} tasks")

    return exit_status(write, OSError)
