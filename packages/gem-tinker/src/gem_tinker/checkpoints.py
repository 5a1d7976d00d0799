"""What a run needs to go on where it stopped: its saved states, and a record without loose ends.

`checkpoints.jsonl` in the record's folder has a line per saved state: `{"iteration": next
iteration to train, "state": "tinker://..."}`. Weights and optimiser live on the server. Whoever
goes on from a checkpoint first removes from the record what was trained after it: those weights
are lost, and each iteration stands in the record once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gem.errors import RecordError
from gem.training.record import EPISODES, METRICS

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

    def __init__(self, folder: Path | None) -> None:
        """Look into the record's folder; None keeps nothing.

        Raises:
            RecordError: The list of checkpoints is damaged.
        """
        self._folder = folder
        self.last: Checkpoint | None = None
        """The newest, or None."""
        path = None if folder is None else folder / CHECKPOINTS
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self.last = Checkpoint(**json.loads(line))
                except (TypeError, ValueError) as error:
                    raise RecordError(f"{path}: not a checkpoint: {line!r}") from error

    def add(self, checkpoint: Checkpoint) -> None:
        """Note a saved state.

        Raises:
            RecordError: It cannot be written.
        """
        self.last = checkpoint
        if self._folder is None:
            return
        line = {"iteration": checkpoint.iteration, "state": checkpoint.state}
        try:
            with (self._folder / CHECKPOINTS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RecordError(f"cannot write {self._folder / CHECKPOINTS}: {error}") from error

    def rewind(self, iteration: int) -> None:
        """Remove iteration `iteration` and later ones from the record.

        Raises:
            RecordError: It cannot be rewritten; the old one is intact.
        """
        if self._folder is None:
            return
        for name in (METRICS, EPISODES):
            path = self._folder / name
            partial = path.with_suffix(".partial")
            try:
                if path.exists():
                    with (
                        path.open(encoding="utf-8") as old,
                        partial.open("w", encoding="utf-8") as new,
                    ):
                        new.writelines(
                            line
                            for line in old
                            if line.endswith("\n") and json.loads(line)["iteration"] < iteration
                        )
                    partial.replace(path)
            except (OSError, ValueError, KeyError) as error:
                raise RecordError(f"cannot rewind {path}: {error}") from error
