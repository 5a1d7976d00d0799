"""SkyRL's dataset: seeded tasks, one a line of a JSON Lines file, played in their order.

SkyRL's trainer takes any dataset with `__len__`, `__getitem__` and `collate_fn`. Its own, which
encodes and filters prompts, would know none: the prompt is an environment's first observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.json_lines import parse_as
from gem_train.experiment.tasksets import DatasetRow

ROW = "gem"
"""Column of a line, and of SkyRL's `env_extras`, with the task."""


def line(row: DatasetRow) -> dict[str, str]:
    """Return the columns of a row."""
    return {ROW: row.encode()}


class TaskDataset:
    """The tasks of one or several files."""

    def __init__(self, files: Sequence[str]) -> None:
        """Read the files.

        Raises:
            ConfigurationError: A file cannot be read, or a line is not one of `make_dataset`.
        """
        self._columns: list[dict[str, str]] = []
        for file in files:
            try:
                lines = Path(file).read_bytes().splitlines()
            except OSError as error:
                raise ConfigurationError(f"cannot read the dataset {file}: {error}") from error
            for n, text in enumerate(lines, 1):
                where = f"{file}, line {n}"
                self._columns.append(parse_as(text, dict[str, str], where, ConfigurationError))
        # Rows of a number are a group, and each file begins with 0.
        rows = enumerate(map(read, self._columns))
        self.rows = [replace(row, number=number) for number, row in rows]
        self._columns = [line(row) for row in self.rows]

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return what SkyRL's trainer knows of a task; it shows the prompt beside an example."""
        task = self.rows[index].task
        return {
            "prompt": [{"role": "user", "content": f"{task.env_id}, seed {task.seed}"}],
            "env_class": ROW,
            "env_extras": self._columns[index],
            "uid": str(index),
        }

    @staticmethod
    def collate_fn(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the tasks of a batch."""
        return items


def read(columns: Any) -> DatasetRow:
    """Return the task of a row.

    Raises:
        ConfigurationError: The row is not one of `make_dataset`.
    """
    try:
        return DatasetRow.decode(columns[ROW])
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            f"not a row of `python -m gem_skyrl.make_dataset`: {columns!r:.200}"
        ) from error
