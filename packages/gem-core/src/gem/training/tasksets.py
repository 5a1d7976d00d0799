"""Tasks as rows of a trainer's dataset, for trainers that read their prompts from a file.

Users name task sets by URI; `make_dataset` is the command that writes their tasks to a file;
`encode_task` and `decode_task` convert a task to and from the text of one column.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote

from gem.errors import ConfigurationError, GemError
from gem.tasks import Task, TaskSet


@dataclass(frozen=True)
class Source:
    """A task set and the settings of its evaluation."""

    tasks: TaskSet
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


def check_names(names: Sequence[str], key: str) -> None:
    """Raise `ConfigurationError`, prefixed with `key`, if two evaluations have the same name."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"{key}: two evaluations are called {name!r}; names are given as #name=..."
            )


def make_dataset(
    write: Callable[..., str], argv: Sequence[str] | None, *, program: str, trainer: str
) -> int:
    """Run the command `<program> [--eval] FILE URI...`; return its exit status.

    Args:
        write: `write(uris, evaluation=...)` returns the file's text, one line per task.
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
    """Encode a task and its temperature as the text of one column of a dataset."""
    return json.dumps({**task.to_dict(), "temperature": temperature})


def decode_task(text: str) -> tuple[Task, float | None]:
    """Decode the text of `encode_task`: the task and its sampling temperature or None.

    Raises:
        ConfigurationError: `encode_task` did not write this text.
    """
    try:
        data = json.loads(text)
        return Task.from_dict(data), data["temperature"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"not a task of a GEM dataset: {text[:200]!r}") from error
