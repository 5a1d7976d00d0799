"""The saved states of a run, so that it can go on where it stopped.

`checkpoints.jsonl` in the record's folder has a line per saved state: `{"iteration": next
iteration to train, "state": "tinker://..."}`. Weights and optimiser live on the server.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gem.errors import RecordError

CHECKPOINTS = "checkpoints.jsonl"


@dataclass(frozen=True)
class Checkpoint:
    """A saved state."""

    iteration: int
    """The next iteration to train."""
    state: str
    """`tinker://` path of weights and optimiser."""


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
        if self._path is not None and self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                try:
                    self.last = Checkpoint(**json.loads(line))
                except (TypeError, ValueError) as error:
                    raise RecordError(f"{self._path}: not a checkpoint: {line!r}") from error

    def add(self, checkpoint: Checkpoint) -> None:
        """Note a saved state.

        Raises:
            RecordError: It cannot be written.
        """
        self.last = checkpoint
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(checkpoint)) + "\n")
        except OSError as error:
            raise RecordError(f"cannot write {self._path}: {error}") from error
