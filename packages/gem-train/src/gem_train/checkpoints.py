"""The saved states of a run, so that it can go on where it stopped.

- `Checkpoints`: for trainers that save weights and optimiser but leave it to others to note where
  and when. `checkpoints.jsonl` in the record's folder has a line per saved state: `{"iteration":
  next iteration to train, "state": where the trainer has it}`.
- `save_state`, `read_state`: the state of an estimator, in a file beside a trainer's checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gem.errors import RecordError
from gem.json_lines import append_lines, drop_torn_line, read_json, read_lines

CHECKPOINTS = "checkpoints.jsonl"


@dataclass(frozen=True)
class Checkpoint:
    """A saved state."""

    iteration: int
    """The next iteration to train."""
    state: str
    """Where the trainer has weights and optimiser: a path or an address."""


class Checkpoints:
    """The saved states of one run."""

    def __init__(self, folder: str | None) -> None:
        """Look into the record's folder; None keeps only the newest, in memory.

        Raises:
            RecordError: The list of checkpoints is damaged.
        """
        self._path = None if folder is None else Path(folder) / CHECKPOINTS
        self.last: Checkpoint | None = None
        """The newest, or None."""
        if self._path is not None:
            drop_torn_line(self._path)
            for line in read_lines(self._path, Checkpoint):
                self.last = Checkpoint(**line)

    def add(self, checkpoint: Checkpoint) -> None:
        """Note a saved state.

        Raises:
            RecordError: It cannot be written.
        """
        self.last = checkpoint
        if self._path is not None:
            append_lines(self._path, [json.dumps(asdict(checkpoint))])


def save_state(path: Path, state: Mapping[str, float]) -> None:
    """Write the state of an estimator; the file appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(dict(state)), encoding="utf-8")
    part.replace(path)


def read_state(path: Path) -> dict[str, float]:
    """Read what `save_state` wrote.

    Raises:
        RecordError: The file is not there or damaged.
    """
    try:
        found = read_json(path, dict[str, float])
        return {key: float(value) for key, value in found.items()}
    except RecordError as error:
        raise RecordError(
            f"{path}: the estimator's state, which is part of the checkpoint, cannot be read "
            f"({error}); put the file back, or resume from a checkpoint that has its own"
        ) from error
