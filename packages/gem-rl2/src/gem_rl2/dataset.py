"""RL2's rows: seeded tasks as lines of a JSON file, the same for both forms of RL2.

A row has the one column `extra_info`, the only one besides a prompt that RL2 passes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gem.errors import ConfigurationError
from gem_train.experiment.tasksets import DatasetRow

KEY = "gem"
"""Entry of `extra_info` that holds the row."""


def line(row: DatasetRow) -> dict[str, Any]:
    """Return RL2's columns of a row."""
    return {"extra_info": {KEY: row.encode()}}


def read(columns: Mapping[str, Any]) -> DatasetRow:
    """Rebuild a row.

    Args:
        columns: Of a line of the file.

    Raises:
        ConfigurationError: The line is not one of `make_dataset`.
    """
    try:
        return DatasetRow.decode(columns["extra_info"][KEY])
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            f"not a row of `python -m gem_rl2.make_dataset`: {str(dict(columns))[:200]}"
        ) from error
