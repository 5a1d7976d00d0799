"""Shows the progress of a run, from the metrics that its trainer records."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import statistics
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, TextIO

from gem.errors import RecordError
from gem.json_lines import parse_as
from gem_train.record import METRICS, read_metrics_line

_RECENT = 10
"""Iterations over which a shown value is averaged."""
_LINES = 12
"""Approximate number of lines that a run prints without a terminal."""


class Tail:
    """Reads the complete lines appended to a run's metrics file.

    A trainer that resumes from a checkpoint replaces the file by one without the iterations after
    the checkpoint; of the new file, the lines that were kept are not returned again.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / METRICS
        self._file: int | None = None
        self._offset = 0
        self._known: list[int] = []
        """A hash of each line that was read."""

    def read(self) -> list[dict[str, Any]]:
        """Return the lines added since the last call, without an incomplete last line.

        Raises:
            RecordError: A line is damaged.
        """
        kept: list[int] = []
        try:
            with self._path.open("rb") as file:
                number = os.fstat(file.fileno()).st_ino
                if number != self._file:
                    self._file, self._offset = number, 0
                    kept, self._known = self._known, []
                file.seek(self._offset)
                block = file.read()
        except FileNotFoundError:
            return []
        whole = block[: block.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = [line for line in whole.splitlines() if line.strip()]
        found = list(map(hash, lines))
        self._known += found
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(kept, found, strict=False))
        fresh = lines[len(list(same)) :]
        first = len(self._known) - len(fresh) + 1
        return [
            read_metrics_line(
                parse_as(line, dict[str, Any], place := f"{self._path}, line {n}", RecordError),
                place,
            )
            for n, line in enumerate(fresh, first)
        ]


class Progress:
    """Turns metrics into one live line on a terminal, or into about a dozen lines in a log."""

    def __init__(
        self, name: str, iterations: int, output: TextIO | None = None, *, done: int = 0
    ) -> None:
        """Start.

        Args:
            name: Shown first, such as the trainer's name.
            iterations: Number of iterations of the run.
            output: Where to write; standard error by default.
            done: Iterations recorded before.
        """
        self._name = name
        self.iterations = iterations
        self._output: TextIO | None = output or sys.stderr
        self._live = self._output.isatty()
        self._every = max(1, math.ceil(iterations / _LINES))
        self._began = time.monotonic()
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._shown = 0
        self.done = done
        """Iterations recorded so far."""

    def update(self, lines: list[dict[str, Any]]) -> None:
        """Process new lines of metrics and show the progress."""
        for line in lines:
            if line["split"] != "train":
                continue
            if self._recent and line["iteration"] <= self._recent[-1]["iteration"]:
                self._recent.clear()  # the trainer goes on from a checkpoint
            self._recent.append(line)
            self.done = line["iteration"] + 1
            if not self._live and (self.done % self._every == 0 or self.done == 1):
                self._write(self.status() + "\n")
        if self._live:
            # A wrapped line could not be overwritten.
            text = self.status()[: shutil.get_terminal_size().columns - 1]
            # Padding overwrites the rest of a longer line.
            self._write(f"\r{text:<{self._shown}}")
            self._shown = len(text)

    def say(self, text: str) -> None:
        """Show a line that stays."""
        line = f"{self._name}  {text}"
        self._write(f"\r{line:<{self._shown}}\n" if self._live else f"{line}\n")

    def close(self) -> None:
        """End the live line and keep it on the screen."""
        if self._live and self._shown:
            self._write("\n")

    def _write(self, text: str) -> None:
        if self._output is None:
            return
        try:
            self._output.write(text)
            self._output.flush()
        except OSError:
            # The terminal or pipe is closed: stop the output, but let the run go on.
            self._output = None

    def status(self) -> str:
        """Return the line."""
        elapsed = time.monotonic() - self._began
        if not self._recent:
            return f"{self._name}  starting  {clock(elapsed)}"
        parts = [self._name, f"{self.done}/{self.iterations}"]
        for label, key in (("success", "success_rate"), ("return", "return_mean")):
            parts.append(f"{label} {self._mean(key)}")
        parts.append(f"turns {self._mean('turns_mean', 1)}")
        rate = self._tokens_per_s()
        parts.append(f"{rate:,.0f} tok/s" if rate is not None else "- tok/s")
        parts.append(f"{clock(elapsed)} elapsed")
        per_iteration = self._seconds_per_iteration()
        if per_iteration is not None and self.done < self.iterations:
            parts.append(f"ETA {clock(per_iteration * (self.iterations - self.done))}")
        return "  ".join(parts)

    def _mean(self, key: str, digits: int = 3) -> str:
        known = [line[key] for line in self._recent if line.get(key) is not None]
        return f"{statistics.fmean(known):.{digits}f}" if known else "-"

    def _seconds_per_iteration(self) -> float | None:
        times = [line["time_s"] for line in self._recent]
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    def _tokens_per_s(self) -> float | None:
        """Sampled tokens per second of wall time, updates included."""
        first, *rest = self._recent
        seconds = rest[-1]["time_s"] - first["time_s"] if rest else 0.0
        if seconds <= 0:
            return None
        return float(sum(line.get("sampled_tokens") or 0 for line in rest)) / seconds


def clock(seconds: float) -> str:
    """Return `m:ss` or `h:mm:ss`."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
