"""RL2's rows: seeded tasks as lines of a JSON file, the same for both forms of RL2.

A row has the one column `extra_info`, the only one besides a prompt that the release passes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gem.errors import ConfigurationError
from gem.tasks import Task
from gem.training.tasksets import decode_task, encode_task, parse_sources


@dataclass(frozen=True)
class Row:
    """A row's `extra_info`."""

    task: str
    """Of `gem.training.tasksets.encode_task`."""
    number: int
    """Place in the file; the episodes of a row are a group."""
    evaluation: str | None = None
    """Name of the evaluation that the row belongs to; None in training."""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Row:
        """Rebuild from a line of the file.

        Raises:
            ConfigurationError: The line is not one of `make_dataset`.
        """
        try:
            return cls(**row["extra_info"])
        except (KeyError, TypeError) as error:
            raise ConfigurationError(
                f"not a row of `python -m gem_rl2.make_dataset`: {str(dict(row))[:200]}"
            ) from error

    def decode(self) -> tuple[Task, float | None]:
        """Return the task and its own sampling temperature, if it has one.

        Raises:
            ConfigurationError: The row holds something else.
        """
        return decode_task(self.task)


def rows(texts: Sequence[str], *, evaluation: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file.

    Args:
        texts: `gem.training.tasksets.Source` URIs, played one after the other.
        evaluation: Whether the file is for evaluation.

    Raises:
        ConfigurationError: A URI is malformed, or two evaluations have the same name.
        UnknownEnvError: No such environment.
        UnknownParameterError: The environment has no such parameter.
    """
    sources = parse_sources(texts, "dataset", unique=evaluation)
    for source in sources:
        source.tasks[0].make().close()
    number = 0
    for source in sources:
        for task in source.tasks:
            text = encode_task(task, source.temperature)
            row = Row(text, number, source.name if evaluation else None)
            yield {"extra_info": asdict(row)}
            number += 1


def write(texts: Sequence[str], *, evaluation: bool) -> str:
    """Return the text of a file; see `rows`."""
    return "".join(json.dumps(row) + "\n" for row in rows(texts, evaluation=evaluation))
